"""From the options on single tokens and texts to the fields of a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfdraft.errors import ConfigError
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.tokenizer import Tokenizer


def check_logprobs(logprobs: int | None, *, as_json: bool) -> None:
    """Refuse log-probabilities that nobody would see."""
    if logprobs is not None and not as_json:
        raise ConfigError("--logprobs shows in the JSON record only", hint="add --json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """What a reply may say and where it ends, as the command line gives it."""

    stop: Sequence[str] | None = None
    keep_stop: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Sequence[str] | None = None
    ban_token: Sequence[str] | None = None
    allow_token: Sequence[str] | None = None
    bad_word: Sequence[str] | None = None
    no_repeat_ngram: int = 0
    logprobs: int | None = None

    def chosen(self) -> dict[str, object]:
        """Options that are not left at their defaults, as the user spells them."""
        return {
            "--" + field.name.replace("_", "-"): True
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def fields(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The fields of ``Request`` that they stand for. Raises ``ConfigError``."""
        return {
            "stop": tuple(self.stop or ()),
            "include_stop_str_in_output": self.keep_stop,
            "min_tokens": self.min_tokens,
            "logprobs": self.logprobs,
            "logits": LogitParams(
                repetition_penalty=self.repetition_penalty,
                frequency_penalty=self.frequency_penalty,
                presence_penalty=self.presence_penalty,
                logit_bias=_biases(self.logit_bias or (), tokenizer),
                banned_token_ids=token_ids(self.ban_token or (), tokenizer),
                allowed_token_ids=(
                    token_ids(self.allow_token, tokenizer) if self.allow_token else None
                ),
                bad_words=tuple(self.bad_word or ()),
                no_repeat_ngram_size=self.no_repeat_ngram,
            ),
        }


def token_ids(spellings: Sequence[str], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of tokens as an option names them: a number is an id, a text must be one token."""
    return tuple(_token_id(spelling, tokenizer) for spelling in spellings)


def _token_id(spelling: str, tokenizer: Tokenizer) -> int:
    if spelling.isascii() and spelling.isdecimal():
        return int(spelling)
    known = tokenizer.id_of(spelling)
    if known is not None:
        return known
    ids = tokenizer.encode(spelling, add_special_tokens=False)
    if len(ids) != 1:
        raise ConfigError(
            f"token {spelling!r} is {len(ids)} tokens ({ids[:6]}), it must be one",
            hint="give a text that is one token, or a token id",
        )
    return ids[0]


def _biases(pairs: Sequence[str], tokenizer: Tokenizer) -> dict[int, float]:
    biases = {}
    for pair in pairs:
        spelling, equals, bias = pair.rpartition("=")
        try:
            biases[_token_id(spelling, tokenizer)] = float(bias)
        except ValueError:
            equals = ""
        if not equals or not spelling:
            raise ConfigError(
                f"logit bias {pair!r} is not TOKEN=NUMBER", hint="e.g. --logit-bias 42=-1.5"
            )
    return biases
