"""The demo model finds facts in long texts through sparse attention as well as densely."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfdraft.cli.audit_rows import selectable_tokens, sparse_ops
from selfdraft.cli.eval_run import EvalOptions, evaluate, needle_tasks
from selfdraft.cli.eval_tables import record_of
from selfdraft.cli.eval_wording import load_wording
from selfdraft.cli.session import EngineOptions, Session, open_session
from selfdraft.export.attention_options import AttentionOptions
from selfdraft.export.bundle import export_bundle
from selfdraft.export.options import ExportOptions

DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"
LENGTH = 1792
BUDGET = 512
DEPTHS = (0.2, 0.4, 0.6, 0.8)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("sparse-demo") / "bundle"
    # Selector and spread are the defaults. Eight local blocks would fill such a budget.
    attention = AttentionOptions(kind="sparse", budget_tokens=BUDGET, local_blocks=2)
    export_bundle(DEMO, folder, ExportOptions(attention=attention, context=2048))
    return open_session(folder, EngineOptions(threads=2, drafts=0))


@pytest.fixture(scope="module")
def found(session: Session) -> dict[str, Any]:
    options = EvalOptions(
        lengths=(LENGTH,), trials=3, tokens=24, wording=load_wording("demo"), seed=0
    )
    tasks = needle_tasks(depths=DEPTHS, keys=(1, 4))
    return record_of(evaluate(session, tasks, options, on_progress=lambda *_: None))


def test_every_layer_is_sparse_and_counted(session: Session) -> None:
    manifest = session.bundle.manifest
    assert len(sparse_ops(manifest)) == manifest.model.num_layers


def test_needles_lie_outside_sinks_and_window(session: Session) -> None:
    for op in sparse_ops(session.bundle.manifest).values():
        selectable = selectable_tokens(op, LENGTH - 1)
        assert all(selectable.start < depth * LENGTH < selectable.stop for depth in DEPTHS)


def test_demo_model_finds_needles_densely(found: dict[str, Any]) -> None:
    assert found["dense"] >= 0.6, found


def test_sparse_attention_loses_at_most_five_points(found: dict[str, Any]) -> None:
    assert found["lost_points"] <= 5.0, found


def test_at_most_thirty_percent_of_the_blocks_are_read(found: dict[str, Any]) -> None:
    assert 0.0 < found["share"] <= 0.30, found
