"""Speculative decoding gives the tokens of plain decoding."""

from __future__ import annotations

from types import ModuleType

import pytest

from selfdraft.runtime.generation import generate


@pytest.mark.parametrize("drafts", range(1, 9))
def test_speculative_greedy_equals_plain(tiny: ModuleType, drafts: int) -> None:
    backend = tiny.backend()
    plain = generate(backend, [1, 2, 3, 4, 5], max_tokens=60, drafts=0)
    speculative = generate(backend, [1, 2, 3, 4, 5], max_tokens=60, drafts=drafts)
    assert [e.token for e in speculative] == [e.token for e in plain]
    assert len(set(plain.result.tokens)) > 20, "the text has no variety"
