"""Thinking and answer told apart: tags, their parts, and what is held back."""

from __future__ import annotations

import random

import pytest

from selfdraft.runtime.thinking import ThinkTags
from selfdraft.runtime.thinking_record import thought_at
from selfdraft.runtime.thought_split import Part, TagTexts, ThoughtSplit

ONE = TagTexts(tags=ThinkTags(start_ids=(1,), end_ids=(2,)), start="1", end="2")
LONG = TagTexts(tags=ThinkTags(start_ids=(1, 1, 3), end_ids=(2, 4)), start="113", end="24")
HIDDEN = TagTexts(tags=ONE.tags, start="", end="")


def split(tags: TagTexts | None, tokens: str, *, opened: bool = False) -> tuple[str, str]:
    """Thinking and answer of digits, which are tokens and their own texts."""
    prompt = tags.tags.start_ids if tags and opened else (0,)
    sorter = ThoughtSplit(tags, prompt)
    parts: list[Part] = []
    for token in tokens:
        hidden = tags is HIDDEN and token in "12"
        parts += sorter.push(ord(token) - 48, "" if hidden else token)
    parts += sorter.finish()
    joined = {
        side: "".join(p.text for p in parts if p.is_thought == side) for side in (True, False)
    }
    return joined[True], joined[False]


@pytest.mark.parametrize(
    ("tags", "tokens", "opened", "thought", "answer"),
    [
        (None, "19285", False, "", "19285"),
        (ONE, "19285", False, "9", "85"),
        (HIDDEN, "19285", False, "9", "85"),
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
    tags: TagTexts | None, tokens: str, opened: bool, thought: str, answer: str
) -> None:
    assert split(tags, tokens, opened=opened) == (thought, answer)


def test_only_what_may_be_a_tag_is_held_back() -> None:
    sorter = ThoughtSplit(LONG, ())
    assert sorter.push(8, "8") == [Part("8", False)]
    assert sorter.push(1, "1") == []
    assert sorter.push(8, "8") == [Part("18", False)]


def test_text_without_a_token_goes_where_the_reply_stands() -> None:
    assert ThoughtSplit(ONE, (1,)).finish("end") == [Part("end", True)]


@pytest.mark.parametrize("tags", [ONE, LONG])
def test_it_agrees_with_the_record_of_lengths(tags: TagTexts) -> None:
    rng = random.Random(5)
    for _ in range(500):
        tokens = [rng.randrange(5) for _ in range(rng.randrange(20))]
        opened = rng.random() < 0.5
        inside, _ = thought_at(tags.tags.start_ids if opened else (0,), tokens, tags.tags)
        thought, _ = split(tags, "".join(map(str, tokens)), opened=opened)
        assert thought == "".join(str(tokens[index]) for index in inside)
