"""Thinking and answer told apart: tags, their parts, line breaks, and what is held back."""

from __future__ import annotations

import random

import pytest

from selfdraft.runtime.thinking import ThinkTags
from selfdraft.runtime.thinking_record import thought_at
from selfdraft.runtime.thinking_split import Piece, ThinkingSplit

ONE = ThinkTags(start_ids=(1,), end_ids=(2,))
LONG = ThinkTags(start_ids=(1, 1, 3), end_ids=(2, 4))


def split(tags: ThinkTags | None, tokens: str, *, opened: bool = False) -> tuple[str, str]:
    """Thinking and answer of digits, which are tokens and their own texts."""
    sorter = ThinkingSplit(tags, opened=opened)
    pieces: list[Piece] = []
    for token in tokens:
        pieces += sorter.push(ord(token) - 48, token, drafted=False)
    pieces += sorter.rest()
    joined = {side: "".join(p.text for p in pieces if p.thinking == side) for side in (True, False)}
    return joined[True], joined[False]


@pytest.mark.parametrize(
    ("tags", "tokens", "opened", "thought", "answer"),
    [
        (None, "19285", False, "", "19285"),
        (ONE, "19285", False, "9", "85"),
        (ONE, "9285", True, "9", "85"),
        (ONE, "2285", False, "", "2285"),
        (ONE, "81928192", False, "99", "88"),
        (LONG, "1139245", False, "9", "5"),
        (LONG, "1113924", False, "9", "1"),
        (LONG, "1119", False, "", "1119"),
        (LONG, "922", True, "922", ""),
    ],
)
def test_tags_part_thinking_from_answer_and_belong_to_neither(
    tags: ThinkTags | None, tokens: str, opened: bool, thought: str, answer: str
) -> None:
    assert split(tags, tokens, opened=opened) == (thought, answer)


def test_line_breaks_behind_a_tag_are_left_out_and_others_kept() -> None:
    sorter = ThinkingSplit(ONE, opened=True)
    texts = [(9, "\n"), (9, "a\n"), (2, "</think>"), (8, "\n\n"), (8, "\nb"), (8, "\n")]
    pieces = [p for token, text in texts for p in sorter.push(token, text, drafted=True)]
    assert pieces == [
        Piece("a\n", True, True),
        Piece("b", True, False),
        Piece("\n", True, False),
    ]


def test_only_what_may_be_a_tag_is_held_back() -> None:
    sorter = ThinkingSplit(LONG)
    assert [p.text for p in sorter.push(8, "8", drafted=False)] == ["8"]
    assert sorter.push(1, "1", drafted=True) == []
    assert sorter.push(8, "8", drafted=False) == [Piece("1", True, False), Piece("8", False, False)]


def test_text_without_a_token_goes_where_the_reply_stands() -> None:
    sorter = ThinkingSplit(ONE, opened=True)
    assert sorter.rest("end") == [Piece("end", False, True)]


@pytest.mark.parametrize("tags", [ONE, LONG])
def test_it_agrees_with_the_record_of_lengths(tags: ThinkTags) -> None:
    rng = random.Random(5)
    for _ in range(500):
        tokens = [rng.randrange(5) for _ in range(rng.randrange(20))]
        opened = rng.random() < 0.5
        inside, _ = thought_at(tags.start_ids if opened else (0,), tokens, tags)
        thought, _ = split(tags, "".join(map(str, tokens)), opened=opened)
        assert thought == "".join(str(tokens[index]) for index in inside)
