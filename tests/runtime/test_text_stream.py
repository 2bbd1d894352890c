"""Streaming text: deltas join to the full decoding, and a terminal stays unharmed."""

from __future__ import annotations

import unicodedata
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as HfTokenizer

from selfdraft.runtime.text_stream import TextStream, terminal_safe
from selfdraft.runtime.tokenizer import Tokenizer

PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
SHIFTED = [byte for byte in range(256) if byte not in PRINTABLE]
CHAR_OF_BYTE = [
    chr(byte) if byte in PRINTABLE else chr(0x100 + SHIFTED.index(byte)) for byte in range(256)
]


def tokenizer_of(pieces: list[bytes]) -> Tokenizer:
    """One ordinary token per byte string, then two special tokens."""
    vocab = {"".join(CHAR_OF_BYTE[b] for b in piece): i for i, piece in enumerate(pieces)}
    hf = HfTokenizer(models.WordLevel(vocab=vocab, unk_token=next(iter(vocab))))
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens([AddedToken("<|end|>"), AddedToken("<☃>")])
    return Tokenizer(hf)


SINGLE_BYTES = tokenizer_of([bytes([b]) for b in range(256)])

utf8_shreds = st.text(min_size=1, max_size=3).flatmap(
    lambda text: st.sampled_from(
        [text.encode("utf-8", "replace")[a:] for a in range(len(text.encode("utf-8", "replace")))]
    )
)
piece_lists = st.lists(
    st.one_of(st.binary(min_size=1, max_size=5), utf8_shreds), min_size=1, max_size=8, unique=True
)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), pieces=piece_lists, skip=st.booleans())
def test_joined_deltas_equal_the_decoding_of_all_tokens(
    data: st.DataObject, pieces: list[bytes], skip: bool
) -> None:
    tokenizer = tokenizer_of(pieces)
    ids = data.draw(st.lists(st.integers(0, len(pieces) + 1), max_size=30))
    stream = TextStream(tokenizer, skip_special=skip)
    deltas = [stream.push([i]) for i in ids]
    shown = [
        pieces[i] if i < len(pieces) else [b"<|end|>", "<☃>".encode()][i - len(pieces)]
        for i in ids
        if i < len(pieces) or not skip
    ]
    expected = b"".join(shown).decode("utf-8", errors="replace")
    assert "".join(deltas) + stream.finish() == expected
    assert tokenizer.decode(ids, skip_special=skip) == expected


@settings(max_examples=300, deadline=None)
@given(text=st.text(min_size=1), cuts=st.lists(st.integers(1, 5), min_size=1))
def test_valid_text_never_shows_a_replacement_character(text: str, cuts: list[int]) -> None:
    ids = list(text.encode())
    stream = TextStream(SINGLE_BYTES)
    out, start = "", 0
    while start < len(ids):
        step = cuts[start % len(cuts)]
        out += stream.push(ids[start : start + step])
        assert text.startswith(out), "a delta changed what was already certain"
        start += step
    assert out + stream.finish() == text


@pytest.mark.parametrize("character", ["é", "☃", "🦜", "e\u0301"])
def test_split_character_is_held_until_complete(character: str) -> None:
    data = list(character.encode())
    stream = TextStream(SINGLE_BYTES)
    early = "".join(stream.push([byte]) for byte in data[:-1])
    assert "\ufffd" not in early and stream.held_bytes > 0
    assert early + stream.push([data[-1]]) == character
    assert stream.held_bytes == 0


def test_invalid_byte_is_replaced_as_soon_as_it_is_certain() -> None:
    stream = TextStream(SINGLE_BYTES)
    assert stream.push([0xE2, 0x98]) == ""
    assert stream.push([ord("a")]) == "\ufffda"
    assert stream.push([0xFF]) == "\ufffd"


def test_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    stream = TextStream(SINGLE_BYTES)
    stream.push([0xF0, 0x9F, 0xA6])
    assert stream.finish() == "\ufffd"


def test_each_token_is_decoded_once_however_long_the_reply() -> None:
    stream, lengths = TextStream(SINGLE_BYTES), []
    real = stream._decoder.decode
    with patch.object(stream, "_decoder") as decoder:
        decoder.decode.side_effect = lambda data: lengths.append(len(data)) or real(data)
        for _ in range(5000):
            stream.push([97])
    assert sum(lengths) == 5000


def test_first_space_of_a_sentencepiece_reply_is_stripped_once() -> None:
    vocab = {"▁hi": 0, "▁": 1, "<0xE2>": 2}
    hf = HfTokenizer(models.WordLevel(vocab=vocab, unk_token="▁"))
    hf.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]
    )
    stream = TextStream(Tokenizer(hf))
    assert [stream.push([0]), stream.push([0]), stream.push([1])] == ["hi", " hi", " "]


HOSTILE = {
    "\x1b[2J": "␛[2J",
    "\x1b]0;title\x07": "␛]0;title␇",
    "a\rb": "a␍b",
    "a\x08b": "a␈b",
    "\x00": "␀",
    "\x7f": "␡",
    "\x9b31m": "<U+009B>31m",
    "\x85": "<U+0085>",
    "abc\u202edef": "abc<U+202E>def",
    "\u2066x\u2069": "<U+2066>x<U+2069>",
    "\u200f": "<U+200F>",
    "\u2028": "<U+2028>",
    "tab\tline\n": "tab\tline\n",
    "naïve ☃ 日本 🦜": "naïve ☃ 日本 🦜",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_control_characters_become_visible(text: str, shown: str) -> None:
    assert terminal_safe(text) == shown


@given(text=st.text())
def test_no_control_character_survives(text: str) -> None:
    left = [c for c in terminal_safe(text) if unicodedata.category(c) == "Cc"]
    assert set(left) <= {"\n", "\t"}


def test_pictures_are_the_unicode_names_of_the_controls() -> None:
    assert unicodedata.name(terminal_safe("\x1b")) == "SYMBOL FOR ESCAPE"
    assert unicodedata.name(terminal_safe("\x7f")) == "SYMBOL FOR DELETE"
