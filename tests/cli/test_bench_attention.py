"""``selfdraft bench --attention``: what is filled, counted and told. No time is judged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfdraft.cli.bench_filled_record import bytes_read, row_overlap
from selfdraft.cli.measure import Series
from selfdraft.cli.measure_filled import FilledOptions, FilledSeries, measure_filled
from selfdraft.cli.session import EngineOptions, open_session
from selfdraft.cli.synthetic_cache import Content, filled_cache
from selfdraft.manifest import capacity_for, load_manifest
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.slot_cache import used_parts
from selfdraft.trt_plugins.cached_attention.from_manifest import layer_ops
from selfdraft.trt_plugins.cached_attention.summaries import refresh

ORT = ("--backend", "ort", "--threads", 1)
FAST = ("--tokens", 4, "--repeats", 2, "--warmup", 1, "--json")
BOTH = ("--context", "1024,2000", "--attention", "sparse,dense")


def lines(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def records(sparse_bundle: Path) -> list[dict[str, Any]]:
    from typer.testing import CliRunner

    from selfdraft.cli.main import app

    forced = ("--drafts", 2, "--force-acceptance", "1,1")
    arguments = ["bench", sparse_bundle, *BOTH, *forced, *FAST, *ORT]
    return lines(CliRunner().invoke(app, [str(argument) for argument in arguments]))


def test_series_of_contexts_attentions_and_drafts_in_order(records: list[dict[str, Any]]) -> None:
    found = [(r["context"], r["attention"], r["drafts"]) for r in records]
    expected = [(c, a, k) for c in (1024, 2000) for a in ("sparse", "dense") for k in (0, 2)]
    assert found == expected


def test_sparse_reads_its_budget_and_dense_everything(records: list[dict[str, Any]]) -> None:
    for record in records:
        in_use = -(-record["context"] // 64)
        assert record["blocks_in_use"] == in_use
        first, rest = record["blocks_read"]
        if record["attention"] == "dense":
            assert (first, rest) == (in_use, in_use)
            assert record["bytes_read"]["summaries"] == 0
        elif record["drafts"] == 0:
            # Budgets of 640 and 256 tokens, or a quarter of the context.
            assert first == 10 and rest == max(4, -(-in_use // 4))
            vectors = 2 * 16 * 2 * 2  # two vectors of head_dim 16, fp16, two kv heads
            assert record["bytes_read"]["summaries"] == 2 * in_use * vectors
            assert record["bytes_read"]["kv"] == 2 * 2 * 16 * 64 * (first + rest)
            assert record["bytes_read"]["scales"] == 2 * 2 * 2 * 64 * (first + rest)


def test_every_line_says_it_is_synthetic_and_with_what(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert record["schema"] == "selfdraft.bench-attention/1"
        assert record["synthetic"] and "seed 0" in record["content"]
        assert 0 <= record["attention_share"] < 1 and record["base_step_ms"] > 0
        assert len(record["bundle_sha256"]) == 64
        spread = record["step_ms"]
        assert 0 < spread["p10"] <= spread["median"] <= spread["p90"]
        assert record["steps"] == 2 * (3 if record["drafts"] == 0 else 1)
        assert (record["forced_acceptance"] == [1.0, 1.0]) == (record["drafts"] == 2)
        assert (record["row_overlap"] is not None) == (
            record["drafts"] == 2 and record["attention"] == "sparse"
        )
    ratios = [r["this_by_shortest"] for r in records if r["context"] == 1024]
    assert ratios == [1.0] * 4
    assert [r["dense_by_this"] for r in records if r["attention"] == "dense"] == [1.0] * 4


def test_table_names_what_was_measured(run: Any, sparse_bundle: Path) -> None:
    options = (*BOTH, "--tokens", 3, "--repeats", 1, "--warmup", 0, *ORT)
    result = run("bench", sparse_bundle, *options)
    assert result.exit_code == 0, result.stderr
    machine, header, *rows = result.stdout.splitlines()
    assert "synthetic caches" in machine and "attention %" in header and "× dense" in header
    assert [row.split()[1] for row in rows] == ["sparse", "dense"] * 2


def test_dense_bundle_is_measured_densely(run: Any, endless_bundle: Path) -> None:
    options = ("--context", "100,300", "--attention", "dense", *FAST)
    short, long = lines(run("bench", endless_bundle, *options))
    assert short["blocks_read"] == [] == long["blocks_read"]
    # fp32 keys and values of one kv head of 8, one layer.
    assert (short["bytes_read"]["kv"], long["bytes_read"]["kv"]) == (100 * 64, 300 * 64)


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["--attention", "sparse"], 2, "attends densely"),
        (["--attention", "dens"], 2, "--attention has 'dens'"),
        (["--attention", "dense", "--drafts", "1"], 2, "cannot be judged"),
        (["--attention", "dense", "--context", "17"], 2, "--context has 17"),
        (["--attention", "dense", "--context", "257"], 4, "257 tokens do not fit"),
        (["--attention", "dense", "--prompt", "hi"], 2, "computes no prompt"),
        (["--attention", "dense", "--prefill", "sparse"], 2, "leave out --prefill"),
    ],
)
def test_wrong_options_are_refused(
    run: Any, shared_bundle: Path, options: list[str], code: int, part: str
) -> None:
    result = run("bench", shared_bundle, *options)
    assert result.exit_code == code and part in result.stderr, result.stderr


@pytest.fixture(scope="module")
def engine(sparse_bundle: Path) -> Any:
    return open_session(sparse_bundle, EngineOptions(backend="ort", threads=1)).backend


def test_filled_summaries_are_those_that_the_body_would_compute(engine: Any) -> None:
    """Steps recompute the summaries of the blocks they touch: nothing changes but new rows."""
    states = engine.allocate(batch=1, capacity=capacity_for(700))
    cache = filled_cache(engine, states, length=640, content=Content())
    before = cache.arrays["backbone.summary_1"].copy()
    loop = DecodeLoop(engine, context_length=700, drafts=0)
    loop.restore(0, cache)
    loop.begin({0: Request(prompt_ids=cache.tokens, max_tokens=4)})
    loop.cancel(0)
    after = loop.slot_cache(0)
    assert after.cached == 641
    found = after.arrays["backbone.summary_1"][:, :10]
    np.testing.assert_allclose(found, before, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        after.arrays["backbone.k_cache_1"][:, :640], cache.arrays["backbone.k_cache_1"]
    )


@pytest.mark.parametrize("selector", ["mean_std", "min_max", "infllm_v2"])
def test_filled_summaries_follow_the_stored_keys(sparse_bundle: Path, selector: Any) -> None:
    manifest = load_manifest(sparse_bundle)
    plan = manifest.attention
    assert plan is not None
    layers = tuple(
        dataclasses.replace(layer, selector=selector, local_blocks=3) for layer in plan.layers
    )
    precision = dataclasses.replace(manifest.precision, kv="fp32")
    manifest = dataclasses.replace(
        manifest, attention=dataclasses.replace(plan, layers=layers), precision=precision
    )
    backend = HostStates(manifest)
    states = backend.allocate(batch=1, capacity=512)
    cache = filled_cache(backend, states, length=300, content=Content())  # type: ignore[arg-type]
    op = layer_ops(manifest.model, manifest.attention)[0]
    expected = np.zeros_like(states["backbone.summary_0"][0])
    refresh(op, expected, states["backbone.k_cache_0"][0], blocks=range(5), length=300)
    np.testing.assert_array_equal(states["backbone.summary_0"][0], expected)
    assert np.abs(states["backbone.k_cache_0"][0, :, :300]).min() > 0
    assert not states["backbone.k_cache_0"][0, :, 300:].any()
    assert len(cache.tokens) == 301


def test_caches_in_the_layout_of_boards_are_filled_with_the_same_rows(sparse_bundle: Path) -> None:
    def for_a_board(state: Any) -> Any:
        if "capacity" not in state.shape:
            return state
        batch, heads, _, *width = state.shape
        return dataclasses.replace(state, shape=(batch, "blocks", heads, 64, *width))

    manifest = load_manifest(sparse_bundle)
    graphs = {
        name: dataclasses.replace(graph, states=tuple(map(for_a_board, graph.states)))
        for name, graph in manifest.graphs.items()
    }
    found = []
    for each in (manifest, dataclasses.replace(manifest, graphs=graphs)):
        backend: Any = DeclaredStates(each)
        states = backend.allocate(batch=1, capacity=512)
        filled_cache(backend, states, length=300, content=Content())
        found.append(states)
    host, board = found
    assert board["backbone.k_cache_0"].shape != host["backbone.k_cache_0"].shape
    for name, array in board.items():
        own = array
        if array.ndim > host[name].ndim:
            own = np.moveaxis(array, 2, 1).reshape(host[name].shape)
        is_cache = "cache" in name or "scale" in name
        part = np.s_[:, :, :300] if is_cache else np.s_[:]
        np.testing.assert_array_equal(own[part], host[name][part], err_msg=name)


class DeclaredStates:
    """States as a manifest declares them, on the host; no passes."""

    def __init__(self, manifest: Any) -> None:
        self.manifest = manifest

    def allocate(self, *, batch: int, capacity: int) -> Any:
        return {
            state.name: np.zeros(state.sizes(batch=batch, capacity=capacity), state.dtype)
            for graph in self.manifest.graphs.values()
            for state in graph.states
        }

    def export_states(self, states: Any, *, slot: int, lengths: Any) -> Any:
        return used_parts(self.manifest, states, slot=slot, lengths=lengths)

    def import_states(self, states: Any, *, slot: int, lengths: Any, arrays: Any) -> None:
        """They are filled in place."""


class HostStates:
    """Only the states of a backend, on the host; none of its passes."""

    def __init__(self, manifest: Any) -> None:
        self.manifest = manifest

    def allocate(self, *, batch: int, capacity: int) -> Any:
        from selfdraft.trt_plugins.cached_attention.from_manifest import mtp_op
        from selfdraft.trt_plugins.cached_attention.states import empty_states

        plan, model = self.manifest.attention, self.manifest.model
        ops = [(f"backbone.{{}}_{i}", op) for i, op in enumerate(layer_ops(model, plan))]
        ops.append(("mtp.{}_0", mtp_op(model, plan)))
        return {
            pattern.format(name): array
            for pattern, op in ops
            for name, array in empty_states(op, batch=batch, capacity=capacity).items()
        }

    def export_states(self, states: Any, *, slot: int, lengths: Any) -> Any:
        parts = {}
        for name, array in states.items():
            length = lengths[name.split(".")[0]]
            used = -(-length // 64) if "summary" in name else length
            parts[name] = array[slot, :, :used]
        return parts

    def import_states(self, states: Any, *, slot: int, lengths: Any, arrays: Any) -> None:
        """They are filled in place."""


def test_block_spread_without_random_rows_is_refused(sparse_bundle: Path) -> None:
    from typer.testing import CliRunner

    from selfdraft.cli.main import app

    result = CliRunner().invoke(app, ["bench", str(sparse_bundle), "--block-spread", "0.2"])
    assert result.exit_code == 2
    assert "--attention, which is not given" in result.stderr


def test_block_spread_decides_how_alike_rows_choose(engine: Any) -> None:
    def overlap(spread: float) -> float:
        options = FilledOptions(
            contexts=(2040,),
            attentions=("sparse",),
            drafts=(2,),
            tokens=12,
            repeats=1,
            warmup=0,
            forced_acceptance=(1.0, 1.0),
            content=Content(block_spread=spread),
        )
        plain, drafting = measure_filled(engine, options).measured
        found = row_overlap(drafting, plain)
        assert found is not None
        return found

    alike, apart = overlap(0.5), overlap(0.0)
    assert alike > 0.8 > apart + 0.05


def test_overlap_counts_what_further_rows_add() -> None:
    def entry(drafts: int, blocks: tuple[int, ...]) -> FilledSeries:
        return FilledSeries(
            context=9999, attention="sparse", series=Series(drafts=drafts), steps_blocks=[blocks]
        )

    plain = entry(0, (40, 60))
    assert row_overlap(entry(1, (40, 60)), plain) == 1.0
    assert row_overlap(entry(1, (44, 66)), plain) == pytest.approx(0.9)
    assert row_overlap(entry(2, (120, 180)), plain) == pytest.approx(0.0)
    assert row_overlap(plain, plain) is None


def test_bytes_of_a_covered_step_hold_no_summaries(sparse_bundle: Path) -> None:
    entry = FilledSeries(
        context=600, attention="sparse", series=Series(drafts=0), steps_blocks=[(10, 4)]
    )
    found = bytes_read(load_manifest(sparse_bundle), entry)
    # The first layer's 640 tokens cover the context: dense, no more rows than there are.
    assert found["kv"] == 2 * 2 * 16 * (600 + 256)
    assert found["summaries"] == 10 * 2 * 2 * 16 * 2
