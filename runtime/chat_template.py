"""Messages to prompt text, by the chat template of the checkpoint.

A template is code of a stranger. It runs in a sandbox (runtime/template_sandbox.py) with limits
on time, memory and output; whatever goes wrong in it is a ``ConfigError``.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from selfdraft.errors import ConfigError
from selfdraft.runtime.template_fuel import Fuel, TemplateLimitError, metered
from selfdraft.runtime.template_sandbox import TemplateSandbox
from selfdraft.runtime.text_stream import terminal_safe

_RAW_HINT = "use a bundle whose template you trust, or pass the prompt as it is with --raw"
_RESERVED = {
    "messages",
    "add_generation_prompt",
    "tools",
    "documents",
    "raise_exception",
    "strftime_now",
}
_DATE_FORMAT = re.compile(r"(?:[^%]|%[-#]?[A-Za-z%])*")


class _Said(TypedDict):
    role: str
    """``system``, ``user`` or ``assistant``."""
    content: str


class Message(_Said, total=False):
    """One turn of a conversation."""

    reasoning_content: str
    """Thoughts of a reply, where ``content`` is its answer alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """What one rendering may take."""

    source_chars: int = 131_072
    output_chars: int = 16_777_216
    seconds: float = 5.0
    base_units: int = 2_000_000
    """Fuel of a rendering (template_fuel) beside what its messages allow."""
    units_per_char: int = 32
    """Fuel that each character of the messages adds."""
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTexts:
    """Control tokens that templates spell, e.g. ``bos_token``."""

    bos_token: str = ""
    eos_token: str = ""
    others: Mapping[str, str] = field(default_factory=dict)


class _TemplateMessage(Exception):
    """``raise_exception`` was called by the template."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self,
        source: str,
        *,
        special: SpecialTexts | None = None,
        limits: TemplateLimits | None = None,
        now: Callable[[], dt.datetime] = dt.datetime.now,
    ) -> None:
        self._limits = limits or TemplateLimits()
        self._special = special or SpecialTexts()
        if len(source) > self._limits.source_chars:
            raise _broken(f"it has {len(source)} characters, {self._limits.source_chars} allowed")
        self._now = now
        self._template = self._guarded(lambda: TemplateSandbox().from_string(source), text=0)
        self.variables: frozenset[str] = self._guarded(
            lambda: frozenset(find_undeclared_variables(TemplateSandbox().parse(source))), text=0
        )
        """Names that the template reads and does not set itself."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        args: Mapping[str, Any] | None = None,
    ) -> str:
        """Prompt text of a conversation.

        ``args`` are further variables of the template (``--template-arg``); plain JSON values.
        Raises ``ConfigError`` when the template is broken, hostile, or refuses the messages.
        """
        clash = sorted(_RESERVED & set(args or {}))
        if clash:
            raise ConfigError(
                f"template argument {clash[0]!r} is set by selfdraft itself",
                hint="choose another name: --template-arg NAME=VALUE",
            )
        variables = self._variables(messages, add_generation_prompt, args or {})
        amount = sum(len(m["content"]) for m in messages) + len(str(args or {}))
        text: str = self._guarded(lambda: self._template.render(variables), text=amount)
        if len(text) > self._limits.output_chars:
            raise _broken(f"it writes {len(text)} characters, {self._limits.output_chars} allowed")
        return text

    def _variables(
        self, messages: Sequence[Message], add_generation_prompt: bool, args: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            **self._special.others,
            "bos_token": self._special.bos_token,
            "eos_token": self._special.eos_token,
            "tools": None,
            "documents": None,
            **args,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }

    def _strftime_now(self, pattern: str) -> str:
        if len(pattern) > 100 or not _DATE_FORMAT.fullmatch(pattern):
            raise TemplateLimitError("it formats the date in an unusual way")
        return self._now().strftime(pattern)

    def _guarded(self, work: Callable[[], Any], *, text: int) -> Any:
        """Run ``work`` on fuel for ``text`` characters of messages; failures as ConfigError."""
        limits = self._limits
        fuel = Fuel(
            units=limits.base_units + limits.units_per_char * text,
            deadline=limits.clock() + limits.seconds,
            clock=limits.clock,
        )
        try:
            with metered(fuel):
                return work()
        except Exception as error:  # noqa: BLE001 - a template can raise anything
            raise _template_problem(error) from None


def _raise_exception(message: object) -> None:
    raise _TemplateMessage(str(message))


def _template_problem(error: Exception) -> ConfigError:
    if isinstance(error, _TemplateMessage):
        return ConfigError(
            f"the chat template refuses these messages: {_shown(error)}",
            hint="change the messages or the template's arguments, or use --raw",
        )
    if isinstance(error, TemplateLimitError):
        return _broken(str(error))
    if isinstance(error, SecurityError):
        return _broken(f"it reaches for what it may not have: {_shown(error)}")
    if isinstance(error, RecursionError):
        return _broken("it nests or calls itself too deeply")
    if isinstance(error, TemplateSyntaxError):
        return _broken(f"line {error.lineno}: {_shown(error)}")
    if isinstance(error, TemplateError):
        return _broken(_shown(error))
    return _broken(f"{type(error).__name__}: {_shown(error)}")


def _broken(why: str) -> ConfigError:
    return ConfigError(f"the chat template cannot be used: {why}", hint=_RAW_HINT)


def _shown(error: Exception) -> str:
    """The message on one line, harmless on a terminal."""
    text = " ".join(terminal_safe(str(error)).split())
    return text if len(text) <= 200 else text[:197] + "..."
