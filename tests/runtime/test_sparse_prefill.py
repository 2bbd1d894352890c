"""Sparse prefill: each row as in a decode step, whatever the chunks; refused where it cannot be."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfdraft.errors import ConfigError
from selfdraft.manifest import BLOCK_TOKENS
from selfdraft.runtime import prefill
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request

LENGTH = 450
PROMPT = (0, *(int(t) for t in np.random.default_rng(4).integers(1, 64, size=LENGTH - 1)))


class Watched:
    """A backend that remembers its passes: rows, attend_all, lengths and blocks read."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.passes: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run_backbone(self, states: Any, step: Any, input_ids: Any) -> Any:
        output = self._inner.run_backbone(states, step, input_ids)
        self.passes.append(
            {
                "rows": input_ids.shape[1],
                "attend_all": step.attend_all.tolist(),
                "length": int((step.past_len + step.row_count).max()),
                "blocks_read": output.blocks_read.tolist(),
            }
        )
        return output


@pytest.fixture(scope="module")
def backend(tiny: ModuleType, sparse_model: ModuleType) -> Any:
    return sparse_model.backend(tiny)


def generated(backend: Any, *, count: int = 24, **options: Any) -> tuple[DecodeLoop, Any]:
    loop = DecodeLoop(backend, **options)
    loop.begin({0: Request(prompt_ids=PROMPT, max_tokens=count)})
    while loop.active:
        loop.step()
    return loop, loop.result(0)


@pytest.mark.parametrize("chunk", [None, 7, 63, 65, 449])
def test_chunks_change_neither_tokens_nor_caches(
    backend: Any, engine: str, chunk: int | None
) -> None:
    if engine != "reference" and chunk == 449:
        pytest.skip("engines refuse more than 65 rows: tests/runtime/test_trt_builder.py")
    sparse: dict[str, Any] = {"prefill_attention": "sparse", "drafts": 1}
    by_one, expected = generated(backend, **sparse, prefill_rows=1)
    loop, result = generated(backend, **sparse, prefill_rows=chunk)
    assert result.tokens == expected.tokens and result.accepted == expected.accepted
    ours, theirs = loop.slot_cache(0), by_one.slot_cache(0)
    assert ours.lengths == theirs.lengths
    for name, array in theirs.arrays.items():
        rows = slice(None) if "summary" not in name else slice(ours.cached // BLOCK_TOKENS)
        np.testing.assert_allclose(
            ours.arrays[name][:, rows], array[:, rows], rtol=1e-9, atol=1e-6, err_msg=name
        )


def test_sparse_and_dense_prefill_compute_other_rows(backend: Any) -> None:
    """Else the tests beside this one would show nothing."""
    dense, _ = generated(backend, drafts=0)
    sparse, _ = generated(backend, drafts=0, prefill_attention="sparse")
    last = "backbone.v_cache_1"
    difference = np.abs(dense.slot_cache(0).arrays[last] - sparse.slot_cache(0).arrays[last])
    rows = difference.max(axis=(0, 2))[:LENGTH]
    assert rows[:250].max() < 1e-5, "the budget covers the first rows"
    assert rows[260:].max() > 1e-3


@pytest.mark.parametrize("selector", ["mean_std", "min_max", "infllm_v2"])
def test_plain_and_speculative_agree_after_a_sparse_prefill(
    tiny: ModuleType, copy_model: ModuleType, sparse_model: ModuleType, selector: str
) -> None:
    backend = sparse_model.backend(tiny, copy_model, selector=selector, budget=320)
    _, plain = generated(backend, drafts=0, prefill_attention="sparse")
    _, speculative = generated(backend, drafts=3, prefill_attention="sparse", prefill_rows=40)
    assert speculative.tokens == plain.tokens
    assert 0 < speculative.accepted[0] < speculative.drafted[0] + 1


def test_chunks_stay_small_and_read_less_than_there_is(backend: Any) -> None:
    watched = Watched(backend)
    loop = DecodeLoop(watched, drafts=0, prefill_attention="sparse")  # type: ignore[arg-type]
    loop.begin({0: Request(prompt_ids=PROMPT, max_tokens=4)})
    assert [p["rows"] for p in watched.passes] == [64] * 7 + [2]
    assert all(p["attend_all"] == [0] for p in watched.passes)
    last = watched.passes[-1]
    assert max(last["blocks_read"]) < -(-last["length"] // BLOCK_TOKENS)


def test_prompts_attend_densely_by_default(backend: Any) -> None:
    watched = Watched(backend)
    loop = DecodeLoop(watched, drafts=0)  # type: ignore[arg-type]
    loop.begin({0: Request(prompt_ids=PROMPT, max_tokens=4)})
    assert [p["rows"] for p in watched.passes] == [128, 128, 128, 66]
    assert all(p["attend_all"] == [1] for p in watched.passes)


@pytest.mark.parametrize(
    ("end", "batch", "heads", "rows"),
    [
        (8192, 1, 32, 256),
        (8193, 1, 32, 240),  # 255 rows would fit: whole multiples of 16
        (131_072, 1, 12, 32),
        (131_072, 4, 32, 4),
        (1 << 24, 4, 32, 1),  # never none
    ],
)
def test_chunks_get_shorter_where_their_weights_would_not_fit(
    end: int, batch: int, heads: int, rows: int
) -> None:
    assert prefill.chunk_rows_at(end, most=256, batch=batch, num_heads=heads) == rows
    assert rows == 1 or rows * batch * heads * end * 4 <= prefill.WEIGHT_BYTES


@pytest.mark.parametrize("attention", ["dense", "sparse"])
def test_weights_of_no_chunk_pass_the_limit_and_rows_stay_the_same(
    backend: Any, monkeypatch: pytest.MonkeyPatch, attention: Any
) -> None:
    options: dict[str, Any] = {"drafts": 1, "prefill_attention": attention, "batch": 2}
    prompts = {0: PROMPT, 1: PROMPT[:70]}
    expected = replies(DecodeLoop(backend, **options), prompts)
    heads = backend.manifest.model.num_heads
    limit = 4 * 2 * heads * LENGTH * 20  # 20 rows at the end of the longer prompt
    monkeypatch.setattr(prefill, "WEIGHT_BYTES", limit)
    watched = Watched(backend)
    assert replies(DecodeLoop(watched, **options), prompts) == expected  # type: ignore[arg-type]
    chunks = [p for p in watched.passes if p["rows"] > 2]
    assert all(4 * 2 * heads * p["rows"] * p["length"] <= limit for p in chunks)
    assert len({p["rows"] for p in chunks}) > 1, "earlier chunks are longer"


def replies(loop: DecodeLoop, prompts: dict[int, tuple[int, ...]]) -> list[Any]:
    loop.begin({s: Request(prompt_ids=ids, max_tokens=12) for s, ids in prompts.items()})
    while loop.active:
        loop.step()
    return [loop.result(slot).tokens for slot in prompts]


def test_sparse_prefill_on_a_dense_bundle_is_refused_by_name(noisy: Any) -> None:
    with pytest.raises(ConfigError, match="attends densely") as caught:
        DecodeLoop(noisy, prefill_attention="sparse")
    assert "--attention sparse" in caught.value.hint


def test_unknown_prefill_is_refused(backend: Any) -> None:
    with pytest.raises(ConfigError, match="prefill 'spars' is unknown"):
        DecodeLoop(backend, prefill_attention="spars")
