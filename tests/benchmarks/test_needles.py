"""Planted needles: the scene is what it says, and the figures are counted right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import tiny_model

from benchmarks import needles
from selfdraft.baseline import wilson_interval
from selfdraft.export.attention_options import AttentionOptions

SMALL = needles.Haystack(length=4096, head_dim=32, topic_tokens=128)


def test_needle_lies_in_one_selectable_block_and_has_its_share_of_attention() -> None:
    op = needles.make_op(SMALL, budget_tokens=512)
    for seed in range(5):
        scene = needles.draw_scene(SMALL, op, seed)
        first, last = scene.needle[0] // 64, scene.needle[-1] // 64
        assert len(scene.needle) == 16 and first == last
        assert op.sinks <= first <= 4095 // 64 - op.local_blocks
        share = scene.attention[:, list(scene.needle)].sum(axis=1).mean()
        assert share == pytest.approx(SMALL.needle_share, abs=1e-6)


def test_rotated_keys_keep_their_size_and_depend_on_the_distance_alone() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 32))
    at = [np.array([position]) for position in (5, 3, 1005, 1003)]
    q5, k3, q1005, k1003 = (
        needles.rotate(x, position, base=1e4) for x, position in zip((q, k, q, k), at, strict=True)
    )
    assert np.linalg.norm(q5) == pytest.approx(np.linalg.norm(q))
    assert float((q5 @ k3.T)[0, 0]) == pytest.approx(float((q1005 @ k1003.T)[0, 0]))


def test_every_way_reads_the_blocks_of_the_budget_and_exact_reads_most_attention() -> None:
    op = needles.make_op(SMALL, budget_tokens=512)
    for seed in range(3):
        scene = needles.draw_scene(SMALL, op, seed)
        per_block = scene.attention.mean(axis=0).reshape(-1, 64).sum(axis=1)
        seen = needles.selections(op, scene)
        assert seen.pop("window").sum() == op.sinks + op.local_blocks
        assert all(blocks.sum() == 8 for blocks in seen.values())
        covered = {name: per_block[blocks].sum() for name, blocks in seen.items()}
        assert covered["exact"] >= max(covered.values()) - 1e-12


def test_the_whole_context_as_budget_finds_every_needle() -> None:
    op = needles.make_op(SMALL, budget_tokens=SMALL.length)
    findings = needles.study(SMALL, op, seeds=2)
    del findings["window"]
    assert all(f.hits == 2 and f.recall == pytest.approx(1) for f in findings.values())


def test_a_needle_without_attention_is_mostly_missed() -> None:
    nothing = replace(SMALL, needle_share=0.0)
    findings = needles.study(nothing, needles.make_op(SMALL, budget_tokens=384), seeds=12)
    assert findings["exact"].hits <= 4


@pytest.mark.slow
def test_default_selector_finds_planted_needles() -> None:
    """The mark of the acceptance: 200 seeds at 32K, lower end of the Wilson 95 % interval."""
    spec = needles.Haystack()
    op = needles.make_op(spec, budget_tokens=4096)
    hits = 0
    for seed in range(200):
        scene = needles.draw_scene(spec, op, seed)
        hits += bool(needles.select(op, scene)[scene.needle.start // op.block])
    assert wilson_interval(hits, 200)[0] >= 0.85


def test_the_study_runs_the_selector_that_an_export_chooses() -> None:
    plan = AttentionOptions(kind="sparse").plan(tiny_model.model_spec())
    assert plan is not None
    op, layer = needles.make_op(needles.Haystack(), budget_tokens=4096), plan.layers[0]
    fields = ("selector", "spread", "sinks", "local_blocks", "budget_tokens")
    assert all(getattr(op, name) == getattr(layer, name) for name in fields)
    assert f"mean_std {layer.spread:g}" in needles.selections(
        needles.make_op(SMALL, budget_tokens=512),
        needles.draw_scene(SMALL, needles.make_op(SMALL, budget_tokens=512), 0),
    )


def test_command_writes_the_figures_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "needles.json"
    monkeypatch.setattr(
        "sys.argv",
        ["needles", "--seeds", "2", "--length", "2048", "--head-dim", "32", "--budget-tokens"]
        + ["512", "--json", str(target)],
    )
    needles.main()
    record = json.loads(target.read_text(encoding="utf-8"))
    assert record["haystack"]["length"] == 2048 and record["op"]["budget_tokens"] == 512
    printed = {
        line[:16].strip(): line[16:].split() for line in capsys.readouterr().out.splitlines()
    }
    for name, finding in record["selectors"].items():
        assert float(printed[name][0]) == pytest.approx(finding["hit_rate"], abs=5e-4)
