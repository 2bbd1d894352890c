"""An error in the middle of a batch leaves a loop that can be used again."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from selfdraft.runtime.generation import Generation, generate
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.processors import Processor
from selfdraft.runtime.request import Request
from selfdraft.runtime.row_view import RowView

PROMPT = (0, 5, 9, 2, 7)


class FailsAfter(Processor):
    """A processor that raises at the row after ``count`` tokens."""

    def __init__(self, count: int, *, clonable: bool = True) -> None:
        self._count = count
        self._clonable = clonable

    @property
    def active(self) -> bool:
        if not self._count:
            raise ValueError("no more rows")
        return False

    def process(self, row: RowView) -> None:
        raise AssertionError("never active")

    def advance(self, token: int) -> None:
        self._count -= 1

    def clone(self) -> FailsAfter:
        if not self._clonable:
            raise ValueError("no clone")
        return FailsAfter(self._count)


def _failing(count: int, *, clonable: bool = True) -> Request:
    return Request(
        prompt_ids=PROMPT, max_tokens=20, processors=(FailsAfter(count, clonable=clonable),)
    )


def _plain(backend: Any, prompt: tuple[int, ...]) -> list[int]:
    return [event.token for event in generate(backend, prompt, max_tokens=20, drafts=0)]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("drafts", [0, 3])
def test_error_while_drawing_frees_every_slot_and_the_next_turn_is_exact(
    tiny: ModuleType, count: int, drafts: int
) -> None:
    backend = tiny.backend()
    loop = DecodeLoop(backend, batch=2, drafts=drafts)
    prompt = (0, 3, 3)
    with pytest.raises(ValueError, match="no more rows"):
        list(Generation(loop, {0: Request(prompt_ids=prompt), 1: _failing(count)}))
    assert loop.active == ()
    for slot in (0, 1):
        longer = (*loop.tokens(slot), 11, 4)
        request = Request(prompt_ids=longer, max_tokens=20)
        reply = [event.token for event in Generation(loop, {slot: request})]
        assert reply == _plain(backend, longer)


def test_request_that_cannot_start_leaves_no_other_slot_half_begun(tiny: ModuleType) -> None:
    loop = DecodeLoop(tiny.backend(), batch=2, drafts=1)
    with pytest.raises(ValueError, match="no clone"):
        loop.begin({0: Request(prompt_ids=PROMPT), 1: _failing(9, clonable=False)})
    assert loop.active == ()
