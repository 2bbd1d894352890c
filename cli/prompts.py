"""From what the user typed to a request: prompt, sampling, stop tokens, template arguments."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from selfdraft.baseline import DEFAULT_TASK
from selfdraft.cli.reply_shape import StructureOptions, ThinkingOptions
from selfdraft.cli.reply_tokens import TokenOptions, token_ids
from selfdraft.errors import ConfigError
from selfdraft.runtime.chat_template import ChatTemplate, Message
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Sampling as the command line gives it."""

    mode: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """What a reply should be like, as the command line gives it."""

    sampling: SamplingOptions
    max_tokens: int | None = None
    stop_tokens: tuple[str, ...] = ()
    system: str | None = None
    template_args: tuple[str, ...] = ()
    thinking: ThinkingOptions = field(default_factory=ThinkingOptions)
    structure: StructureOptions = field(default_factory=StructureOptions)
    tokens: TokenOptions = field(default_factory=TokenOptions)
    task: str = DEFAULT_TASK


def prompt_ids(session: Session, prompt: str, options: ReplyOptions, *, raw: bool) -> list[int]:
    """Tokens of one prompt, through the chat template unless ``raw``."""
    if raw:
        return session.tokenizer.encode(prompt, add_special_tokens=True)
    template = session.chat_template()
    text = template.render(
        messages_of(prompt, system=options.thinking.system(options.system)),
        args=prompt_args(template, options),
    )
    return session.tokenizer.encode(text, add_special_tokens=False)


def reply_request(session: Session, ids: Sequence[int], options: ReplyOptions) -> Request:
    """The request for a reply to the tokens ``ids``."""
    return Request(
        prompt_ids=tuple(ids),
        sampling=sampling_params(options.sampling),
        max_tokens=options.max_tokens,
        thinking=options.thinking.thinking(session.tokenizer),
        structured=options.structure.output(),
        task=options.task,
        stop_token_ids=token_ids(options.stop_tokens, session.tokenizer),
        **options.tokens.fields(session.tokenizer),
    )


def sampling_params(options: SamplingOptions) -> SamplingParams:
    """Parameters of the draw; ``ConfigError`` where ``--mode`` and the others disagree."""
    return SamplingParams(
        verification=options.mode,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
    )


def read_prompt(prompt: str | None) -> str:
    """The prompt; ``-``, or nothing with input piped in, reads stdin."""
    if prompt is None and not sys.stdin.isatty():
        prompt = STDIN
    if prompt is None:
        raise ConfigError(
            "no prompt is given", hint='add it: selfdraft generate BUNDLE "PROMPT" (or - for stdin)'
        )
    text = _read_stdin() if prompt == STDIN else prompt
    if not text.strip():
        raise ConfigError("the prompt is empty", hint="give some text")
    return text


def _read_stdin() -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"stdin is not UTF-8 at byte {error.start}", hint="pipe the prompt in as UTF-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def messages_of(prompt: str, *, system: str | None) -> list[Message]:
    """A conversation that asks ``prompt``."""
    head: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": prompt}]


def prompt_args(template: ChatTemplate, options: ReplyOptions) -> dict[str, Any]:
    """Variables of the template: the thinking budget, and what the user says, which wins."""
    return options.thinking.template_args(template) | template_args(options.template_args)


def template_args(pairs: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs; a value that is JSON is taken as such, else as text."""
    args = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"template argument {pair!r} is not NAME=VALUE",
                hint="e.g. --template-arg enable_thinking=false",
            )
        try:
            args[name] = json.loads(value)
        except (ValueError, RecursionError):
            args[name] = value
    return args
