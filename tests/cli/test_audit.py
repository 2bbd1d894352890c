"""``selfdraft audit``: figures that can be known beforehand, and refusals by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from support.sparse_bundle import BUDGET, export_sparse, write_sparse_reciter

from selfdraft.cli.audit_rows import audited_rows, blocks_of_row, leaves_out, sparse_ops
from selfdraft.cli.audit_run import AuditReport, audit_text
from selfdraft.cli.session import EngineOptions, Session, open_session
from selfdraft.errors import ConfigError, VerificationError
from selfdraft.runtime.backend import BackboneOutput
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention
from selfdraft.trt_plugins.cached_attention.selection import slot_blocks

CONTEXT = 700
ROWS = 12


@pytest.fixture(scope="module")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_reciter(tmp_path_factory.mktemp("audit") / "reciter")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_sparse(tmp_path_factory.mktemp("audit-graphs"))


@pytest.fixture(scope="module")
def exported_int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"selector": "infllm_v2", "local_blocks": 3, "budget_tokens": 384, "kv": "int8"}
    return export_sparse(tmp_path_factory.mktemp("audit-int8"), **options)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    letters = np.random.default_rng(0).integers(97, 123, 400)
    file.write_text(bytes(letters.tolist()).decode(), encoding="utf-8")
    return file


def _session(bundle: Path, backend: str) -> Session:
    return open_session(bundle, EngineOptions(backend=backend, threads=1, drafts=0))


def _audit(session: Session, ids: list[int]) -> AuditReport:
    return audit_text(session, ids, rows=ROWS, on_progress=lambda *_: None)


def _random_ids(session: Session, length: int) -> list[int]:
    vocab = session.bundle.manifest.model.vocab_size
    return np.random.default_rng(1).integers(0, vocab, length).tolist()


def test_uniform_attention_has_the_recall_of_its_tokens(reciter: Path) -> None:
    session = _session(reciter, "reference")
    report = _audit(session, _random_ids(session, CONTEXT))
    (op,) = sparse_ops(session.bundle.manifest).values()
    for row in report.rows:
        unseen = (row.position // 64 + 1 - blocks_of_row(op, row.position)) * 64
        assert row.recall == pytest.approx(1 - unseen / (row.position + 1), abs=1e-12)
        assert row.kl == 0.0 and row.same_top, "attention adds nothing to this model"
    (layer,) = report.layers
    assert layer.best_recall == pytest.approx(layer.recall.mean)
    assert layer.recall.least < 1.0


@pytest.mark.parametrize("bundle", ["exported", "exported_int8"])
def test_engine_and_reference_audit_alike(bundle: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(bundle)
    engine, oracle = (_session(path, name) for name in ("ort", "reference"))
    ids = _random_ids(engine, CONTEXT)
    one, other = _audit(engine, ids), _audit(oracle, ids)
    assert [row.position for row in one.rows] == [row.position for row in other.rows]
    assert [row.blocks_read for row in one.rows] == [row.blocks_read for row in other.rows]
    np.testing.assert_allclose([r.kl for r in one.rows], [r.kl for r in other.rows], rtol=0.05)
    for layer, below in zip(one.layers, other.layers, strict=True):
        assert layer.recall.mean == pytest.approx(below.recall.mean, abs=1e-3)
        assert layer.prefill_error == pytest.approx(below.prefill_error, rel=0.05, abs=1e-9)
    assert one.replay_error < 1e-4 and other.replay_error < 1e-12


def test_best_choice_holds_at_least_what_the_selector_holds(exported: Path) -> None:
    session = _session(exported, "ort")
    report = _audit(session, _random_ids(session, CONTEXT))
    assert report.active and report.blocks_share < 0.9
    for layer in report.layers:
        assert layer.recall.least <= layer.recall.p5 <= layer.recall.mean <= layer.best_recall < 1
    assert report.layers[0].prefill_error == 0.0, "the first layer's keys see no attention"
    assert report.layers[1].prefill_error > 0.0
    assert any(row.kl > 0 for row in report.rows)


def test_budget_that_covers_the_text_is_dense_to_rounding(exported: Path) -> None:
    session = _session(exported, "ort")
    report = _audit(session, _random_ids(session, BUDGET))
    assert not report.active and report.blocks_share == 1.0
    assert all(row.kl < 1e-9 and row.prefill_kl < 1e-9 for row in report.rows)
    assert all(layer.prefill_error < 1e-5 for layer in report.layers)


def test_engine_that_reads_other_blocks_is_found_out(exported: Path) -> None:
    class RunsDense:
        """Says what a dense step reads, whatever it was asked for."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def run_backbone(self, states: Any, step: Any, ids: Any) -> BackboneOutput:
            dense = dataclasses.replace(step, attend_all=np.ones_like(step.attend_all))
            output: BackboneOutput = self._inner.run_backbone(states, dense, ids)
            return output

    session = _session(exported, "ort")
    fooled = dataclasses.replace(session, backend=RunsDense(session.backend))
    with pytest.raises(VerificationError, match="did not run as asked") as caught:
        _audit(fooled, _random_ids(session, CONTEXT))
    assert "its selection has 5" in caught.value.problem


def test_dense_bundle_is_refused_with_the_next_step(
    run: Any, shared_bundle: Path, text: Path
) -> None:
    result = run("audit", shared_bundle, "--text", text)
    assert result.exit_code == ConfigError.exit_code
    assert "every layer of this bundle is dense" in result.stderr
    assert "--attention sparse" in result.stderr


def test_json_has_every_row_and_layer(run: Any, reciter: Path, text: Path, tmp_path: Path) -> None:
    plot = tmp_path / "audit.svg"
    arguments = ("--text", text, "--context", 600, "--rows", 5, "--plot", plot, "--json")
    result = run("audit", reciter, *arguments)
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["schema"] == "selfdraft.audit/1" and record["active"]
    assert record["context"] == 600 and record["rows"][-1]["position"] == 599
    assert record["kl"] == {"mean": 0.0, "p95": 0.0, "max": 0.0}
    assert record["blocks_share"] == pytest.approx(
        sum(r["blocks_read"] for r in record["rows"])
        / sum(r["blocks_in_use"] for r in record["rows"])
    )
    bars = ElementTree.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 1 + 2 * len(record["layers"])


def test_text_within_the_budget_gets_a_note(run: Any, reciter: Path, text: Path) -> None:
    result = run("audit", reciter, "--text", text, "--context", BUDGET, "--rows", 3)
    assert result.exit_code == 0, result.stderr
    assert "sparse path active          no" in result.stdout
    assert f"note: the budget covers all {BUDGET} tokens" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--plot", "a.png"], 2, "a.png is no .svg"),
        (["--plot", "absent/a.svg"], 4, "there is no folder absent"),
        (["--context", 5000], 4, "5000 tokens do not fit the context of 2048"),
        (["--text", "missing.txt"], 2, "missing.txt cannot be read"),
    ],
)
def test_wrong_options_are_named(
    run: Any, reciter: Path, text: Path, arguments: list[Any], code: int, part: str
) -> None:
    result = run("audit", reciter, "--text", text, *arguments)
    assert result.exit_code == code
    assert part in result.stderr


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("selector", ["mean_std", "window", "infllm_v2"])
def test_blocks_of_a_row_are_what_the_selection_gives_it(selector: Any, share: float) -> None:
    op = CachedAttention(
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        scale=0.5,
        sinks=2,
        local_blocks=3,
        budget_tokens=450,
        budget_share=share,
        selector=selector,
    )
    rng = np.random.default_rng(0)
    summary = rng.standard_normal((1, 32, max(op.summary_vectors, 1), 4))
    for position in (0, 63, 64, 200, 449, 450, 511, 512, 900, 2000):
        query = rng.standard_normal((1, 8))
        seen = slot_blocks(op, query, summary, past_len=position, attend_all=False)
        assert blocks_of_row(op, position) == seen.sum()
        assert leaves_out(op, position) == (not seen.all())


def test_audited_rows_lie_where_something_is_left_out() -> None:
    op = CachedAttention(
        num_heads=1, num_kv_heads=1, head_dim=4, scale=0.5, budget_tokens=256, selector="mean_std"
    )
    rows = audited_rows([op], length=1000, count=10)
    assert rows[0] == 256 and rows[-1] == 999 and len(rows) == 10
    assert audited_rows([op], length=200, count=4) == [0, 66, 132, 199]
    assert audited_rows([op], length=258, count=50) == [256, 257]
