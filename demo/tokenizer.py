"""Trains the byte-level BPE tokenizer and writes its two files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 2048
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THINK, THINK_CLOSE = "<think>", "</think>"
ADDED_TOKENS = [END_OF_TEXT, IM_START, IM_END, THINK, THINK_CLOSE]  # ids 0 to 4
END_OF_TEXT_ID, IM_END_ID, THINK_CLOSE_ID = 0, 2, 4
# suffixes such as 's, words with one space in front, single digits, punctuation, line breaks, spaces
SPLIT = r"'\p{L}+| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s"
TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A byte-level BPE tokenizer with the added tokens at ids 0 to 4."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=ADDED_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    description = json.loads(tokenizer.to_str())
    for token in description["added_tokens"]:  # the think tags stay visible in decoded text
        token["special"] = token["content"] not in (THINK, THINK_CLOSE)
    return Tokenizer.from_str(json.dumps(description))


def tokenizer_config(max_positions: int) -> dict[str, object]:
    """The contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [IM_START, IM_END],
        "chat_template": TEMPLATE_PATH.read_text(encoding="utf-8"),
    }
