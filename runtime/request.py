"""One request: what to continue, how to draw tokens, and when to stop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfdraft.errors import ConfigError
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.processors import Processor
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.thinking import Thinking
from selfdraft.strict import closest_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and its options. Raises ``ConfigError`` for values out of range."""

    prompt_ids: tuple[int, ...]
    """At least one token."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logits: LogitParams = field(default_factory=LogitParams)
    max_tokens: int | None = None
    """Tokens to deliver at most; None: as many as the context holds."""
    min_tokens: int = 0
    """End tokens are banned until so many tokens are delivered."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the reply beside the model's own end tokens."""
    ignore_eos: bool = False
    """The model's own end tokens do not end the reply (benchmarks)."""
    thinking: Thinking | None = None
    """Budget of the thinking between tags; None: any length."""
    processors: tuple[Processor, ...] = ()
    """Further changes to the logits, after those of ``logits``; each run works on clones."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ConfigError("the prompt is empty", hint="give at least one token")
        _check_whole("max_tokens", self.max_tokens, 1)
        _check_whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}",
                hint="lower min_tokens or raise max_tokens",
            )

    def check_ids(self, vocab_size: int) -> None:
        """Raise ``ConfigError`` for a token outside ``[0, vocab_size)``."""
        named = {"prompt": self.prompt_ids, "stop": self.stop_token_ids, **self.logits.token_ids()}
        if self.thinking is not None:
            named |= self.thinking.token_ids()
        for name, ids in named.items():
            wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
            if wrong is not None:
                raise ConfigError(
                    f"{name} token {wrong} is outside the vocabulary of {vocab_size}",
                    hint="use the tokenizer of this bundle",
                )


_SAMPLING_OPTIONS = tuple(f.name for f in dataclasses.fields(SamplingParams))
_LENGTH_OPTIONS = ("max_tokens", "min_tokens", "stop_token_ids", "ignore_eos")
REQUEST_OPTIONS = _SAMPLING_OPTIONS + _LENGTH_OPTIONS
"""Every option that ``request_from_options`` knows."""


def request_from_options(prompt_ids: Sequence[int], options: Mapping[str, Any]) -> Request:
    """A request from flat options, e.g. of a JSON body or a config file.

    Raises ``ConfigError`` for an unknown option (with the closest known one) or a wrong value.
    """
    for name in options:
        if name not in REQUEST_OPTIONS:
            raise ConfigError(
                f"unknown option {name!r}{closest_hint(name, REQUEST_OPTIONS)}",
                hint=f"options are: {', '.join(REQUEST_OPTIONS)}",
            )
    lengths: dict[str, Any] = {k: v for k, v in options.items() if k in _LENGTH_OPTIONS}
    if "stop_token_ids" in lengths:
        lengths["stop_token_ids"] = tuple(lengths["stop_token_ids"])
    sampling = {k: v for k, v in options.items() if k in _SAMPLING_OPTIONS}
    return Request(
        prompt_ids=tuple(int(token) for token in prompt_ids),
        sampling=SamplingParams(**sampling),
        **lengths,
    )


def _check_whole(name: str, value: object, least: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and value >= least):  # type: ignore[operator]
        raise ConfigError(f"{name} is {value!r}", hint=f"give {name} a whole number from {least}")
