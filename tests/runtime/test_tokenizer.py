"""Tokens and bytes: our decoding agrees with the tokenizers library, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from selfdraft.errors import BundleError, ConfigError
from selfdraft.runtime.tokenizer import Tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(*, merges: list[tuple[str, str]] | None = None) -> HfTokenizer:
    merges = merges or []
    vocab = {char: i for i, char in enumerate([*ALPHABET, *(a + b for a, b in merges)])}
    hf = HfTokenizer(models.BPE(vocab=vocab, merges=merges))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens([AddedToken("<|end|>", special=True)])
    hf.add_tokens([AddedToken("<think>", special=False)])
    return hf


def sentencepiece() -> HfTokenizer:
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    pieces = ["<unk>", *bytes_, "▁", "h", "i", "▁hi", "é"]
    merges = [("▁", "h"), ("▁h", "i")]
    vocab = {p: i for i, p in enumerate([*pieces, "▁h"])}
    hf = HfTokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>"))
    hf.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return hf


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_encode_then_decode_gives_the_text_back(text: str) -> None:
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special=False) == text


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 259), max_size=40), skip=st.booleans())
def test_decode_equals_the_library_on_any_bytes(ids: list[int], skip: bool) -> None:
    hf = byte_level(merges=[("Ã", "©")])
    assert Tokenizer(hf).decode(ids, skip_special=skip) == hf.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="hié☃ ", max_size=12))
def test_sentencepiece_decode_equals_the_library_on_text(text: str) -> None:
    hf = sentencepiece()
    ids = [i for i in hf.encode("▁" + text.replace(" ", "▁"), add_special_tokens=False).ids]
    assert Tokenizer(hf).decode(ids) == hf.decode(ids) == text


def test_special_tokens_are_the_ones_marked_special() -> None:
    tokenizer = Tokenizer(byte_level())
    end, think = tokenizer.id_of("<|end|>"), tokenizer.id_of("<think>")
    assert end in tokenizer.special_ids and think not in tokenizer.special_ids
    assert tokenizer.decode([end, think]) == "<think>"
    assert tokenizer.decode([end, think], skip_special=False) == "<|end|><think>"


def test_id_without_a_token_adds_nothing() -> None:
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.token_of(tokenizer.vocab_size + 5) is None
    assert tokenizer.token_of(-1) is None


def test_spelled_control_token_becomes_its_id() -> None:
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.encode("a<|end|>", add_special_tokens=False)
    assert ids[-1] == tokenizer.id_of("<|end|>")


def test_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match="character 2"):
        Tokenizer(byte_level()).encode("ab\ud800", add_special_tokens=False)


def test_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level().to_str(), encoding="utf-8")
    tokenizer = Tokenizer.from_file(path)
    assert tokenizer.decode(tokenizer.encode("naïve ☃", add_special_tokens=True)) == "naïve ☃"


@pytest.mark.parametrize("content", [None, "{", '{"model": 3}', "\x00"])
def test_broken_file_is_a_bundle_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BundleError, match="no readable tokenizer") as caught:
        Tokenizer.from_file(path)
    assert "\n" not in caught.value.problem


def test_unknown_decoder_is_refused_by_name() -> None:
    hf = byte_level()
    hf.decoder = decoders.WordPiece()
    with pytest.raises(BundleError, match="WordPiece"):
        Tokenizer(hf)


def test_truncation_and_padding_of_the_file_never_touch_a_prompt(tmp_path: Path) -> None:
    hf = byte_level()
    hf.enable_truncation(max_length=2)
    hf.enable_padding(length=9)
    hf.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json")
    ids = tokenizer.encode("four", add_special_tokens=False)
    assert len(ids) == 4 and tokenizer.decode(ids) == "four"


def test_token_name_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ConfigError, match="not valid Unicode"):
        Tokenizer(byte_level()).id_of("h\udcff")
