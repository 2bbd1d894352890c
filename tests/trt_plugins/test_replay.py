"""Speculative histories against plain decoding: rollback is a length, summaries heal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.attention_cases import SCORING
from support.attention_replay import first_difference, replay_of, without_rejections

from selfdraft.trt_plugins.cached_attention import oracle, summaries
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, Selector
from selfdraft.trt_plugins.cached_attention.selection import slot_blocks

QUICK_REPLAYS = 200
SLOW_REPLAYS = 1000


def noticed(*, selector: Selector, seeds: range) -> bool:
    """Whether any of the replays refutes the op as it stands now."""
    return any(
        first_difference(replay_of(seed, selector=selector, batch=1)) is not None for seed in seeds
    )


@pytest.mark.parametrize("part", range(5))
def test_random_accepts_and_rejects_give_the_output_of_plain_decoding(part: int) -> None:
    for seed in range(part, QUICK_REPLAYS, 5):
        assert first_difference(replay_of(seed)) is None, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_many_random_accepts_and_rejects_give_the_output_of_plain_decoding(part: int) -> None:
    for seed in range(QUICK_REPLAYS + part, QUICK_REPLAYS + SLOW_REPLAYS, 5):
        assert first_difference(replay_of(seed)) is None, f"seed {seed}"


@pytest.mark.parametrize("selector", SCORING)
def test_without_healing_a_rejected_draft_changes_later_output(
    selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(12)
    assert not noticed(selector=selector, seeds=seeds)
    monkeypatch.setattr(summaries, "stale_blocks", finalise_once())
    assert noticed(selector=selector, seeds=seeds)
    # The rejections are what it fails on, not the summaries as such.
    for seed in seeds:
        replay = without_rejections(replay_of(seed, selector=selector, batch=1))
        assert first_difference(replay) is None


def finalise_once() -> Callable[..., range]:
    """Summaries as they would be if each was computed when complete, and then held final."""
    complete = 0

    def stale_blocks(op: CachedAttention, *, past_len: int, rows: int) -> range:
        nonlocal complete
        # infllm_v2's last window of a block is complete half a block later, C2 a whole one.
        reach = 1 if op.selector == "infllm_v2" else 0
        begin = 0 if past_len == 0 else complete
        complete = max(begin, (past_len + rows) // op.block - reach)
        return range(begin, complete)

    return stale_blocks


def test_without_the_block_before_windows_that_reach_over_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only_touched(op: CachedAttention, *, past_len: int, rows: int) -> range:
        return range(past_len // op.block, -(-(past_len + rows) // op.block))

    monkeypatch.setattr(summaries, "stale_blocks", only_touched)
    assert noticed(selector="infllm_v2", seeds=range(12))


@pytest.mark.parametrize("selector", SCORING)
@pytest.mark.parametrize("rule", ["union", "first", "last"])
def test_selection_shared_between_rows_is_noticed(
    selector: Selector, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(12)
    assert not noticed(selector=selector, seeds=seeds)
    monkeypatch.setattr(oracle, "slot_blocks", shared_between_rows(rule))
    assert noticed(selector=selector, seeds=seeds)


def shared_between_rows(rule: str) -> Callable[..., Any]:
    """One selection for all rows of a step, their windows apart."""

    def shared(*args: Any, **kwargs: Any) -> Any:
        blocks = slot_blocks(*args, **kwargs)  # [Hkv, rows, blocks]
        if rule == "union":
            return np.broadcast_to(blocks.any(axis=1, keepdims=True), blocks.shape)
        row = 0 if rule == "first" else -1
        return blocks | blocks[:, [row]] if rule == "last" else blocks[:, [row]] | own(blocks)

    def own(blocks: Any) -> Any:
        """The last block that each row sees: its own."""
        ids = np.arange(blocks.shape[-1])
        last = np.where(blocks, ids, -1).max(axis=-1, keepdims=True)
        return ids == last

    return shared
