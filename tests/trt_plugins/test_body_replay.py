"""Speculative histories on the ONNX body: ONNX Runtime gives what it gives for plain decoding.

Rows that run together are summed in another order, so the last bits may differ; a wrong block, or
a summary that a rejected draft spoiled, changes whole outputs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attention_cases import SCORING
from support.attention_replay import Replay, plain, play, replay_of, without_rejections
from support.onnx_op import OnnxOp

from selfdraft.trt_plugins.cached_attention import onnx_selection
from selfdraft.trt_plugins.cached_attention.contract import CachedAttention, Selector

QUICK_REPLAYS = 50
SLOW_REPLAYS = 1000
TOLERANCE = 2e-5
"""fp32 sums over some hundred keys in another order; outputs are of size 1."""


class Result(NamedTuple):
    """What the replay reads of a step."""

    y: NDArray[np.float32]


class Body:
    """The ONNX body with the oracle's signature; sessions are kept by attributes."""

    def __init__(self) -> None:
        self._session = lru_cache(maxsize=64)(OnnxOp)

    def __call__(
        self,
        op: CachedAttention,
        q: NDArray[Any],
        k: NDArray[Any],
        v: NDArray[Any],
        **given: NDArray[Any],
    ) -> Result:
        # Padded rows are NaN in a replay; a runtime pads with rows of a real token.
        rows = (np.nan_to_num(x).astype(np.float32) for x in (q, k, v))
        lengths = {name: given[name] for name in ("past_len", "row_count", "attend_all")}
        states = {name: array for name, array in given.items() if name not in lengths}
        return Result(self._session(op)(*rows, states, **lengths))


def differs(replay: Replay, body: Body) -> str | None:
    """The first output that differs from plain decoding or from the oracle, in words."""
    together = play(replay, step=body, fp32_as=np.float32)
    for slot, outputs in enumerate(together):
        alone = play(plain(replay, slot), step=body, fp32_as=np.float32)[0]
        exact = play(plain(replay, slot))[0]
        for out, single, truth in zip(outputs, alone, exact, strict=True):
            assert out.position == single.position == truth.position
            for name, other in (("plain decoding", single.y), ("the oracle", truth.y)):
                if not np.allclose(out.y, other, rtol=0, atol=TOLERANCE):
                    off = np.abs(out.y - other).max()
                    return f"slot {slot} position {out.position}: off by {off:.2g} from {name}"
    return None


def check(seeds: range) -> None:
    body = Body()
    for seed in seeds:
        found = differs(replay_of(seed), body)
        assert found is None, f"seed {seed} {replay_of(seed).op}: {found}"


@pytest.mark.parametrize("part", range(2))
def test_random_accepts_and_rejects_on_the_body_give_plain_decoding(part: int) -> None:
    check(range(part, QUICK_REPLAYS, 2))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_accepts_and_rejects_on_the_body_give_plain_decoding(part: int) -> None:
    check(range(QUICK_REPLAYS + part, QUICK_REPLAYS + SLOW_REPLAYS, 4))


class WithoutHealing(Body):
    """Holds a summary for final once its block was complete, be it with a rejected draft."""

    def __init__(self) -> None:
        super().__init__()
        self._complete = 0

    def __call__(self, op: CachedAttention, **given: Any) -> Result:
        past, count = (int(given[name][0]) for name in ("past_len", "row_count"))
        # infllm_v2's last windows of a block reach into the next.
        reach = 1 if op.selector == "infllm_v2" else 0
        final = self._complete if past else 0
        before = given["summary"].copy()
        result = super().__call__(op, **given)
        given["summary"][:, :, :final] = before[:, :, :final]
        self._complete = max(final, (past + count) // op.block - reach)
        return result


def noticed(selector: Selector, body: Body) -> bool:
    """Whether any of a few replays refutes ``body``."""
    replays = (replay_of(seed, selector=selector, batch=1) for seed in range(12))
    return any(differs(replay, body) is not None for replay in replays)


@pytest.mark.parametrize("selector", SCORING)
def test_body_without_the_healing_of_summaries_is_noticed(selector: Selector) -> None:
    assert noticed(selector, WithoutHealing())
    # The rejections are what it fails on, not the summaries as such.
    replay = without_rejections(replay_of(0, selector=selector, batch=1))
    assert differs(replay, WithoutHealing()) is None


@pytest.mark.parametrize("selector", SCORING)
def test_body_that_shares_a_selection_between_rows_is_noticed(
    selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = onnx_selection.list_blocks
    monkeypatch.setattr(onnx_selection, "list_blocks", lambda op: shared(original(op)))
    assert noticed(selector, Body())


def shared(text: str) -> str:
    """Every row takes the blocks that the first row of the step chose."""
    changed = text.replace("  best, best_ids = ", "  best, ids_by_row = ")
    assert changed != text
    chosen = "(ranked, choice_count)\n"
    return changed.replace(
        chosen,
        f"""{chosen}
  ids_of_first = Slice (ids_by_row, zeros, ones, twos)
  every_row = Shape (ids_by_row)
  best_ids = Expand (ids_of_first, every_row)
""",
    )
