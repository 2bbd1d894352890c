"""Request options that change logits before the draw: penalties, bias, bans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from selfdraft.errors import ConfigError
from selfdraft.runtime.checks import check_number

MAX_BIAS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitParams:
    """What is preferred and what may not be said. Names and ranges: OpenAI, vLLM, Transformers.

    Raises ``ConfigError`` for values out of range or at odds with each other.
    """

    repetition_penalty: float = 1.0
    """Divides the logits of tokens seen in prompt or reply (multiplies negative ones); 1: none."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time it stands in the reply; negative ones add."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that stand in the reply."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of single tokens, from -100 to 100."""
    banned_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be drawn; None: all."""
    bad_words: tuple[str, ...] = ()
    """Texts whose usual spelling in tokens never appears in the reply."""
    no_repeat_ngram_size: int = 0
    """No sequence of so many tokens stands in prompt and reply twice; 0: any may."""

    def __post_init__(self) -> None:
        check_number(
            "repetition_penalty",
            self.repetition_penalty,
            lambda x: 0 < x <= 100,
            "above 0 and at most 100",
        )
        for name in ("frequency_penalty", "presence_penalty"):
            check_number(name, getattr(self, name), lambda x: -2 <= x <= 2, "from -2 to 2")
        check_number(
            "no_repeat_ngram_size",
            self.no_repeat_ngram_size,
            lambda x: x >= 0,
            "a whole number, 0 or more",
            whole=True,
        )
        for token, bias in self.logit_bias.items():
            check_number(
                f"logit_bias of token {token}",
                bias,
                lambda x: math.isfinite(x) and abs(x) <= MAX_BIAS,
                f"from -{MAX_BIAS:g} to {MAX_BIAS:g}",
            )
        if any(not word for word in self.bad_words):
            raise ConfigError("bad_words holds an empty text", hint="leave it out")
        self._check_lists()

    def _check_lists(self) -> None:
        if self.allowed_token_ids is None:
            return
        if not self.allowed_token_ids:
            raise ConfigError(
                "allowed_token_ids is empty", hint="name at least one token, or leave it out"
            )
        both = set(self.allowed_token_ids) & set(self.banned_token_ids)
        if both:
            raise ConfigError(
                f"token {min(both)} stands in allowed_token_ids and in banned_token_ids",
                hint="take it out of one of them",
            )

    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """Every token id that the options name, by option."""
        return {
            "logit_bias": tuple(self.logit_bias),
            "banned_token_ids": self.banned_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
        }
