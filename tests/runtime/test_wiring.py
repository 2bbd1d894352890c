"""Wiring mistakes leave the output right and only lower acceptance: each is seen here.

The crafted head predicts the target exactly, so that right wiring accepts every draft.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfdraft.runtime import drafting
from selfdraft.runtime.backend import MtpOutput
from selfdraft.runtime.draft import MtpDrafter
from selfdraft.runtime.generation import generate
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.slot_range import TapRows

WIRINGS = [
    {"tap": tap, "concat": concat, "recycle": tap}
    for tap in ("pre_norm", "post_norm")
    for concat in ("hidden_first", "embedding_first")
]


def _acceptance(backend: Any, *, drafts: int) -> np.ndarray[Any, Any]:
    """Acceptance per position over a few prompts; the output is checked against plain."""
    drafted = np.zeros(drafts)
    accepted = np.zeros(drafts)
    for seed in range(4):
        prompt = [0, 1 + seed, 2, 3 + seed, *range(5 + seed, 25)]
        speculative = generate(backend, prompt, max_tokens=64, drafts=drafts, prefill_rows=7)
        plain = generate(backend, prompt, max_tokens=64, drafts=0)
        assert [e.token for e in speculative] == [e.token for e in plain]
        drafted += speculative.result.drafted
        accepted += speculative.result.accepted
    return accepted / drafted


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda w: f"{w['tap']}-{w['concat']}")
def test_right_wiring_accepts_every_draft(
    tiny: ModuleType, copy_model: ModuleType, wiring: dict[str, str]
) -> None:
    backend = copy_model.backend(tiny, mtp=wiring)
    assert _acceptance(backend, drafts=4).tolist() == [1.0] * 4


@pytest.mark.parametrize("drafts", [1, 3])
def test_every_draft_is_accepted_across_turns_edits_and_joins(
    tiny: ModuleType, copy_model: ModuleType, drafts: int
) -> None:
    loop = DecodeLoop(copy_model.backend(tiny), batch=2, drafts=drafts, prefill_rows=5)
    for turn in range(8):
        slot, text = turn % 2, loop.tokens(turn % 2)
        kept = len(text) - 3 * (turn % 3)
        prompt = (0, *text[1:kept], *range(9 + turn, 16))
        loop.begin({slot: Request(prompt_ids=prompt, max_tokens=14)})
        while slot in loop.active and not (turn == 5 and loop.result(slot).steps == 2):
            loop.step()
    while loop.active:
        loop.step()
    for slot in range(2):
        result = loop.result(slot)
        assert result.drafted[0] > 0 and result.accepted == result.drafted
        assert result.reused_tokens > 40


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda w: f"{w['tap']}-{w['concat']}")
def test_wrong_hidden_tap_lowers_acceptance(
    tiny: ModuleType, copy_model: ModuleType, wiring: dict[str, str]
) -> None:
    wrong = "post_norm" if wiring["tap"] == "pre_norm" else "pre_norm"
    backend = copy_model.backend(tiny, mtp=wiring, claimed={"tap": wrong})
    assert _acceptance(backend, drafts=1)[0] < 0.5


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda w: f"{w['tap']}-{w['concat']}")
def test_wrong_concat_order_lowers_acceptance(
    tiny: ModuleType, copy_model: ModuleType, wiring: dict[str, str]
) -> None:
    right = wiring["concat"]
    wrong = "embedding_first" if right == "hidden_first" else "hidden_first"
    backend = copy_model.backend(tiny, mtp=wiring, claimed={"concat": wrong})
    assert _acceptance(backend, drafts=1)[0] < 0.5


def test_wrong_recycled_state_lowers_acceptance_from_the_second_draft_on(
    tiny: ModuleType, copy_model: ModuleType
) -> None:
    backend = copy_model.backend(tiny, claimed={"recycle": "post_norm"})
    acceptance = _acceptance(backend, drafts=2)
    assert acceptance[0] == 1.0
    assert acceptance[1] < 0.5


def test_missing_resync_lowers_acceptance(
    tiny: ModuleType, copy_model: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "MtpDrafter", SkipsResync)
    backend = copy_model.backend(tiny)
    for drafts in (1, 2, 4):
        assert _acceptance(backend, drafts=drafts)[0] < 0.9


def test_missing_mtp_prefill_lowers_acceptance(
    tiny: ModuleType, copy_model: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "MtpDrafter", SkipsPrefill)
    assert _acceptance(copy_model.backend(tiny), drafts=1)[0] < 0.9


class _OnlyNewestRow(MtpDrafter):
    """Takes in the newest row alone and leaves the others as they are (planted mistake)."""

    prompt_rows: int

    def catch_up(self, rows: TapRows, slots: Iterable[int], *, leave: int = 0) -> MtpOutput:
        table = self._slots
        pending = int(table.cached[0] - table.drafter_cached[0])
        if table.attend_all[0] != self.prompt_rows:
            return super().catch_up(rows, slots, leave=leave)
        table.drafter_cached[0] += pending - 1
        hidden = self._backend.to_host(rows.hidden)[:, pending - 1 : pending]
        newest = rows._replace(hidden=hidden, num_rows=1)
        return super().catch_up(newest, slots)


class SkipsResync(_OnlyNewestRow):
    prompt_rows = 0


class SkipsPrefill(_OnlyNewestRow):
    prompt_rows = 1


def test_rows_one_position_later_draft_the_same(tiny: ModuleType, copy_model: ModuleType) -> None:
    """Rotary attention sees distances alone; a rule that shifted some rows only would not pass."""
    shifted = copy_model.backend(tiny, mtp={"position": "next"})
    assert _acceptance(shifted, drafts=3).tolist() == [1.0, 1.0, 1.0]
