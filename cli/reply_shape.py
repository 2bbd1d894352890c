"""From the options that shape a reply to a thinking budget, a grammar, and the words of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfdraft.cli.text_files import read_utf8
from selfdraft.errors import ConfigError
from selfdraft.runtime.grammar import Kind, StructuredOutput
from selfdraft.runtime.thinking_text import thinking_from_text

if TYPE_CHECKING:
    from selfdraft.runtime.chat_template import ChatTemplate
    from selfdraft.runtime.thinking import Thinking
    from selfdraft.runtime.tokenizer import Tokenizer

BUDGET_MARK = "{budget}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingOptions:
    """The thinking budget as the command line gives it."""

    budget: int | None = None
    wrap_up: str | None = None
    prompt: str | None = None
    """Text for the system prompt."""
    start: str | None = None
    end: str | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            self._check_prompt()
            return
        for name, value in (
            ("--wrap-up", self.wrap_up),
            ("--budget-prompt", self.prompt),
            ("--think-start", self.start),
            ("--think-end", self.end),
        ):
            if value is not None:
                raise ConfigError(
                    f"{name} means nothing without a budget", hint="give --thinking-budget N"
                )

    def _check_prompt(self) -> None:
        if self.prompt is not None and BUDGET_MARK not in self.prompt:
            raise ConfigError(
                f"--budget-prompt does not say where the number goes: {BUDGET_MARK} is missing",
                hint=f'for example: --budget-prompt "Think for at most {BUDGET_MARK} tokens."',
            )

    def thinking(self, tokenizer: Tokenizer) -> Thinking | None:
        """The budget of the request. Raises ``ConfigError`` where no tags are known."""
        if self.budget is None:
            return None
        return thinking_from_text(
            tokenizer, self.budget, start=self.start, end=self.end, wrap_up=self.wrap_up or ""
        )

    def template_args(self, template: ChatTemplate) -> dict[str, Any]:
        """Variables that tell the template of the budget, as far as it reads them."""
        if self.budget is None:
            return {}
        told = {"enable_thinking": self.budget > 0, "thinking_budget": self.budget}
        return {name: value for name, value in told.items() if name in template.variables}

    def system(self, given: str | None) -> str | None:
        """The system prompt ``given``, with the budget told at its end where that is asked for."""
        if self.prompt is None:
            return given
        told = self.prompt.replace(BUDGET_MARK, str(self.budget))
        return f"{given}\n{told}" if given else told


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureOptions:
    """Structured output as the command line gives it: one of these, or none."""

    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None

    def output(self) -> StructuredOutput | None:
        """What the reply must match. Raises ``ConfigError`` for two of them, or an unread file."""
        given: dict[Kind, str | None] = {
            "json_schema": self.json_schema,
            "regex": self.regex,
            "lark": self.grammar,
        }
        chosen = {kind: text for kind, text in given.items() if text is not None}
        if len(chosen) > 1:
            raise ConfigError(
                "a reply can follow one of --json-schema, --regex and --grammar, not several",
                hint="leave out the others",
            )
        for kind, text in chosen.items():
            inline = kind == "regex" or (kind == "json_schema" and text.lstrip().startswith("{"))
            return StructuredOutput(kind=kind, source=text if inline else _read(Path(text)))
        return None


def _read(path: Path) -> str:
    return read_utf8(path, hint="name a file with the schema or grammar")
