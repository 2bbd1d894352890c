"""Stop strings: one end and one text, however the text is cut into tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfdraft.runtime.reply_text import ReplyText


class Pieces:
    """A tokenizer whose token i adds the i-th byte string."""

    special_ids: frozenset[int] = frozenset()
    strips_first_space = False

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]


def _run(pieces: Sequence[bytes], stops: Sequence[str], **options: object) -> tuple[str, int, str]:
    """Text of all deltas, number of tokens delivered, and the stop string that matched."""
    reply = ReplyText(Pieces(pieces), tuple(stops), **options)  # type: ignore[arg-type]
    deltas: list[str] = []
    for index in range(len(pieces)):
        deltas += reply.push(index, last=index == len(pieces) - 1)
        if reply.matched is not None:
            break
    rest = reply.rest() if reply.matched is not None else ""
    return "".join(deltas) + rest, len(deltas), reply.matched or ""


def _expected(text: str, stops: Sequence[str], *, keep: bool) -> tuple[str, str]:
    """Character by character: the first one that completes a stop string; the longest of several."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if keep else end - len(longest)], longest
    return text, ""


ALPHABET = "ab<é☃🦜 "
texts = st.text(ALPHABET, min_size=1, max_size=24)
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3)


@settings(max_examples=400, deadline=None)
@given(text=texts, stops=stop_lists, cuts=st.sets(st.integers(1, 60)), keep=st.booleans())
def test_every_split_of_a_text_into_tokens_gives_the_same_text(
    text: str, stops: list[str], cuts: set[int], keep: bool
) -> None:
    data = text.encode()
    borders = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(borders)]
    wanted, stop = _expected(text, stops, keep=keep)
    shown, count, matched = _run(pieces, stops, keep_stop=keep)
    assert (shown, matched) == (wanted, stop)
    # Tokens and text end together: without the last token there would be less text.
    assert b"".join(pieces[:count]).decode(errors="ignore").startswith(wanted)
    assert bool(count) == bool(wanted)
    if stop and count:
        assert len(b"".join(pieces[: count - 1]).decode(errors="ignore")) < len(wanted)


@pytest.mark.parametrize("size", range(1, 12))
def test_stop_string_with_tags_and_wide_characters_is_found_at_every_border(size: int) -> None:
    data = "say ☃é</stop>never".encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    shown, count, matched = _run(pieces, ["</stop>"])
    assert (shown, matched) == ("say ☃é", "</stop>")
    assert count == -(-len("say ☃é".encode()) // size)


@pytest.mark.parametrize("keep", [False, True])
def test_held_text_of_a_delivered_token_is_kept_when_the_next_token_stops(keep: bool) -> None:
    """The second 🦜 may begin a stop string; the token behind it is another one."""
    pieces = [b"\xf0", b"\x9f", "🦜🦜".encode()[2:], b"a"]
    wanted = ("🦜🦜a", 4) if keep else ("🦜🦜", 3)
    assert _run(pieces, ["a", "🦜<"], keep_stop=keep) == (*wanted, "a")


def test_text_that_may_begin_a_stop_string_is_held_until_it_is_none() -> None:
    reply = ReplyText(Pieces([b"ab", b"ST", b"x", b"O"]), ("STOP",))
    assert reply.push(0) == ["ab"]
    assert reply.push(1) == []
    assert reply.push(2) == ["ST", "x"]
    assert reply.push(3, last=True) == ["O"]


def test_token_in_which_the_stop_string_begins_is_delivered_with_the_text_before_it() -> None:
    reply = ReplyText(Pieces([b"a", b"bST", b"OP"]), ("STOP",))
    assert reply.push(0) == ["a"]
    assert reply.push(1) == ["b"]
    assert reply.push(2) == [] and reply.matched == "STOP"


def test_stop_string_within_min_tokens_does_not_count() -> None:
    pieces = [b"x", b"S", b"S"]
    assert _run(pieces, ["S"], min_tokens=2) == ("xS", 2, "S")
    assert _run(pieces, ["S"], min_tokens=3) == ("xSS", 3, "")
    assert _run(pieces, ["S"], min_tokens=1) == ("x", 1, "S")


def test_reply_that_goes_on_delivers_what_the_first_part_held_back() -> None:
    pieces = [b"ab", b"cS", b"T", b"x"]
    whole = ReplyText(Pieces(pieces), ("STOP",))
    deltas = [whole.push(i) for i in range(4)]
    resumed = ReplyText(Pieces(pieces), ("STOP",))
    resumed.skip([0, 1])
    assert [resumed.push(2), resumed.push(3)] == deltas[2:] == [[], ["ST", "x"]]


def test_token_that_was_delivered_for_what_followed_is_not_delivered_again() -> None:
    """Half a character may begin a stop string, so its token waits for the other half."""
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:]]
    whole = ReplyText(Pieces(pieces), ("STOP",))
    assert [whole.push(i) for i in range(3)] == [["a"], [], ["", "é"]]
    resumed = ReplyText(Pieces(pieces), ("STOP",))
    resumed.skip([0, 1])
    assert resumed.push(2) == ["é"]


def test_given_up_reply_brings_held_text_of_delivered_tokens_to_light() -> None:
    reply = ReplyText(Pieces([b"abS", b"T"]), ("STOP",))
    assert reply.push(0) == ["ab"] and reply.push(1) == []
    assert reply.rest() == "S"


def test_end_token_has_no_text_and_completes_no_stop_string() -> None:
    reply = ReplyText(Pieces([b"a", b"b"]), ("ab",))
    assert reply.push(0) == []
    assert reply.push(1, last=True, silent=True) == ["a", ""]
    assert reply.matched is None
