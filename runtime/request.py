"""One request: what to continue, how to draw tokens, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass, field

from selfdraft.baseline import DEFAULT_TASK
from selfdraft.errors import ConfigError
from selfdraft.runtime.checks import check_number
from selfdraft.runtime.grammar import StructuredOutput
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.logprobs import MAX_LOGPROBS
from selfdraft.runtime.processors import Processor
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.runtime.thinking import Thinking

MAX_TASK = 64
"""Characters of a task's label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and its options. Raises ``ConfigError`` for values out of range or at odds.

    The same record as JSON: ``runtime.request_json``.
    """

    prompt_ids: tuple[int, ...]
    """At least one token."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logits: LogitParams = field(default_factory=LogitParams)
    max_tokens: int | None = None
    """Tokens to deliver at most, resumed ones included; None: as many as the context holds."""
    min_tokens: int = 0
    """No end token and no stop string ends the reply within so many tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end the reply, which ends before them; they may begin and end inside tokens."""
    include_stop_str_in_output: bool = False
    """The stop string stays in the reply."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the reply beside the model's own end tokens."""
    ignore_eos: bool = False
    """The model's own end tokens do not end the reply (benchmarks)."""
    thinking: Thinking | None = None
    """Budget of the thinking between tags; None: any length."""
    logprobs: int | None = None
    """Log-probabilities of each token and of so many likeliest ones; None: none at all."""
    resumed_token_ids: tuple[int, ...] = ()
    """Tokens of this reply that an earlier run delivered: it goes on behind them."""
    task: str = DEFAULT_TASK
    """Kind of text, by which telemetry counts and alerts judge; it changes no token."""
    structured: StructuredOutput | None = None
    """What the text must match; None: anything."""
    processors: tuple[Processor, ...] = ()
    """Further changes to the logits, after those of ``logits`` and before thinking budget and
    structured output; each run works on clones."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ConfigError("the prompt is empty", hint="give at least one token")
        _check_whole("max_tokens", self.max_tokens, 1)
        _check_whole("min_tokens", self.min_tokens, 0)
        check_number(
            "logprobs",
            self.logprobs,
            lambda x: 0 <= x <= MAX_LOGPROBS,
            f"a whole number from 0 to {MAX_LOGPROBS}",
            whole=True,
        )
        if any(not text for text in self.stop):
            raise ConfigError("stop holds an empty text", hint="leave it out")
        if self.include_stop_str_in_output and not self.stop:
            raise ConfigError(
                "include_stop_str_in_output is given without stop", hint="give a stop string too"
            )
        if not self.task.isprintable() or not 1 <= len(self.task) <= MAX_TASK:
            raise ConfigError(
                f"task is {self.task[:80]!r}", hint=f"give it 1 to {MAX_TASK} printable characters"
            )
        self._check_lengths()

    def _check_lengths(self) -> None:
        if self.max_tokens is None:
            return
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}",
                hint="lower min_tokens or raise max_tokens",
            )
        if len(self.resumed_token_ids) >= self.max_tokens:
            raise ConfigError(
                f"the reply has {len(self.resumed_token_ids)} tokens already, max_tokens is "
                f"{self.max_tokens}",
                hint="raise max_tokens to go on",
            )

    def check_ids(self, vocab_size: int) -> None:
        """Raise ``ConfigError`` for a token outside ``[0, vocab_size)``."""
        named = {
            "prompt": self.prompt_ids,
            "resumed": self.resumed_token_ids,
            "stop": self.stop_token_ids,
            **self.logits.token_ids(),
        }
        if self.thinking is not None:
            named |= self.thinking.token_ids()
        for name, ids in named.items():
            wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
            if wrong is not None:
                raise ConfigError(
                    f"{name} token {wrong} is outside the vocabulary of {vocab_size}",
                    hint="use the tokenizer of this bundle",
                )


def _check_whole(name: str, value: object, least: int) -> None:
    check_number(name, value, lambda x: x >= least, f"a whole number from {least}", whole=True)
