"""``selfdraft export`` and ``inspect`` for long contexts: every option reaches the manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfdraft.manifest import AttentionSpec, capacity_for, load_manifest

pytest.importorskip("torch", reason="the exporter needs torch: pip install 'selfdraft[export]'")

SPARSE = ("--attention", "sparse")
LONG = 40_000
"""What the config of ``long_checkpoint`` allows."""


def test_every_option_reaches_the_plan(sparse_bundle: Path) -> None:
    manifest = load_manifest(sparse_bundle)
    plan = manifest.attention
    assert plan is not None and manifest.precision.kv == "int8"
    common = {"selector": "min_max", "sinks": 2, "local_blocks": 2, "budget_share": 0.25}
    first = AttentionSpec(**common, budget_tokens=640)  # type: ignore[arg-type]
    rest = AttentionSpec(**common, budget_tokens=256)  # type: ignore[arg-type]
    assert plan.layers == (first, rest)
    assert plan.mtp is not None
    assert (plan.mtp.selector, plan.mtp.sinks, plan.mtp.sliding_window) == ("window", 2, 100)


def test_inspect_tells_plan_and_bytes_at_a_context(run: Any, sparse_bundle: Path) -> None:
    facts = json.loads(run("inspect", sparse_bundle, "--context", 1024, "--json").stdout)
    first, rest, mtp = facts["attention"]
    assert (first["layers"], rest["layers"], mtp["layers"]) == ("layer 0", "layer 1", "MTP layer")
    assert (first["seen_tokens"], rest["seen_tokens"]) == (640, 256)
    assert mtp["seen_tokens"] == 2 * 64 + 100
    slots = capacity_for(1024)
    kinds = facts["state_bytes_by_kind"]["backbone"]
    # int8 codes and fp16 scales of keys and values; centre and half width of each block in fp16.
    assert kinds["kv"] == 2 * 2 * 2 * slots * (16 + 2)
    in_fp16 = 2 * 2 * 2 * slots * 16 * 2
    assert kinds["kv"] * 2 * 16 == in_fp16 * (16 + 2)
    assert kinds["summary"] == 2 * 2 * (slots // 64) * 2 * 16 * 2
    assert facts["state_bytes"]["backbone"] == sum(kinds.values())
    text = run("inspect", sparse_bundle, "--context", 1024).stdout
    assert (
        "min_max: 2 sink and 2 local blocks, budget 256 or 25.0%, spread 1; sees 256 of 1024"
        in text
    )
    assert "window of 100 tokens; sees 228 of 1024" in text and "summary" in text


def test_share_of_the_context_wins_where_it_is_more(run: Any, sparse_bundle: Path) -> None:
    facts = json.loads(run("inspect", sparse_bundle, "--context", 2048, "--json").stdout)
    assert facts["attention"][1]["seen_tokens"] == 512


def test_dense_bundle_says_dense(run: Any, shared_bundle: Path) -> None:
    text = run("inspect", shared_bundle).stdout
    assert "layer 0    dense" in text and "MTP layer  dense" in text


@pytest.mark.parametrize(("context", "told"), [(4096, True), (4097, False), (LONG, False)])
def test_context_within_the_budget_is_told(
    run: Any, long_checkpoint: Path, tmp_path: Path, context: int, told: bool
) -> None:
    options = ("--context", context, *SPARSE, "--dry-run", "--json")
    plan = json.loads(run("export", long_checkpoint, "-o", tmp_path / "b", *options).stdout)
    assert plan["context_length"] == context
    assert any("never leaves anything out" in note for note in plan["notes"]) == told


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--budget", 512], "no meaning with dense attention"),
        (["--attention", "spars"], "attention 'spars' is unknown"),
        ([*SPARSE, "--selector", "mean"], "selector 'mean' is unknown"),
        ([*SPARSE, "--first-layers", 3], "first_layers is 3, the model has 2 layers"),
        ([*SPARSE, "--first-budget", 512], "given for no layer"),
        ([*SPARSE, "--local-blocks", 1], "local_blocks"),
        ([*SPARSE, "--budget-share", 1.5], "budget_share"),
        ([*SPARSE, "--spread", "-1"], "spread is -1.0"),
        ([*SPARSE, "--mtp-window", 0], "mtp_window is 0"),
        (["--kv", "fp8"], "kv 'fp8' is unknown"),
        (["--context", LONG + 1], "max_position_embeddings"),
    ],
)
def test_wrong_attention_options_are_refused(
    run: Any, long_checkpoint: Path, tmp_path: Path, options: list[object], part: str
) -> None:
    result = run("export", long_checkpoint, "-o", tmp_path / "b", *options)
    assert result.exit_code == 2 and part in result.stderr, result.stderr
    assert not (tmp_path / "b").exists()


def test_help_lists_long_context_options_together(run: Any) -> None:
    text = run("export", "--help").stdout
    general, long_context = text.split("\nLong context:\n")
    assert "--weights" in general and "--attention" in long_context and "--kv" in long_context
    assert "--attention" not in general.split("\nOptions:\n")[1]
