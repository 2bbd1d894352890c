from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import write_tokenizer
from support.refusals import refused

from selfdraft.export import draft_vocab
from selfdraft.export.draft_vocab import choose_draft_ids

ALWAYS = (256, 257, 258)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def choose(size: int, tokenizer, text: Path | None, vocab_size: int = 288) -> list[int]:
    ids = choose_draft_ids(
        size, vocab_size=vocab_size, always=ALWAYS, tokenizer=tokenizer, text=text
    )
    assert ids.dtype == np.int64
    return ids.tolist()


def ids_of(tokenizer, characters: str) -> list[int]:
    return [tokenizer.token_to_id(character) for character in characters]


def test_without_a_text_the_lowest_ids_and_the_special_tokens_are_kept(tokenizer) -> None:
    assert choose(10, tokenizer, None) == [*range(7), *ALWAYS]


def test_most_frequent_tokens_of_the_text_are_kept_in_ascending_order(tokenizer, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("zzzzz" + "mmmm" + "aaa" + "bb" + "c")
    expected = sorted([*ids_of(tokenizer, "zma"), *ALWAYS])
    assert choose(6, tokenizer, text) == expected


def test_equal_counts_and_the_rest_go_by_lowest_id(tokenizer, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("dcba" * 3 + "z")
    order = sorted(ids_of(tokenizer, "abcd"))
    assert choose(5, tokenizer, text) == sorted([*order[:2], *ALWAYS])
    used = ids_of(tokenizer, "abcdz")
    unused = [i for i in range(256) if i not in used][:2]
    assert choose(10, tokenizer, text) == sorted([*used, *unused, *ALWAYS])


def test_special_tokens_count_once_and_stay_when_the_text_has_them(tokenizer, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>" * 9 + "x")
    assert choose(4, tokenizer, text) == sorted([*ids_of(tokenizer, "x"), *ALWAYS])


def test_text_is_counted_in_batches_like_in_one(tokenizer, tmp_path, monkeypatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i * 7919 % 101}\n" for i in range(500)))
    whole = choose(12, tokenizer, text)
    monkeypatch.setattr(draft_vocab, "BATCH_LINES", 3)
    assert choose(12, tokenizer, text) == whole


@pytest.mark.parametrize("size", [1, 3, 288, 1000])
def test_size_that_cannot_be_is_refused_with_the_range(tokenizer, size: int) -> None:
    with refused(str(size), "3 special tokens", "288"):
        choose(size, tokenizer, None)


def test_text_that_cannot_serve_is_named(tokenizer, tmp_path) -> None:
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text("")
    binary.write_bytes(b"\xff\xfe\x00")
    for path, word in ((empty, "no tokens"), (binary, "UTF-8"), (tmp_path / "none", "UTF-8")):
        with refused(str(path), word):
            choose(10, tokenizer, path)
