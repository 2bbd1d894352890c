"""The prompt of a benchmark, at the lengths asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from selfdraft.cli.prompts import messages_of, read_prompt
from selfdraft.cli.text_files import read_utf8
from selfdraft.errors import ConfigError

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

RANDOM_TOKENS = 64
EXAMPLE_PROMPTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """Tokens to continue, and where they came from."""

    name: str
    """``prompt``, ``file``, ``example`` or ``random``."""
    ids: tuple[int, ...]

    def at_length(self, length: int) -> tuple[tuple[int, ...], str]:
        """The first ``length`` tokens, repeated where there are fewer, and a name for that."""
        if length == len(self.ids):
            return self.ids, self.name
        times = -(-length // len(self.ids))
        how = "repeated" if times > 1 else "cut"
        return (self.ids * times)[:length], f"{self.name}, {how}"


def choose_prompt(session: Session, *, prompt: str | None, file: Path | None) -> PromptSource:
    """The prompt given, else the bundle's first example, else random tokens."""
    if prompt is not None and file is not None:
        raise ConfigError("--prompt and --prompt-file are both given", hint="leave one out")
    if file is not None:
        return PromptSource(name="file", ids=_file_ids(session, file))
    text = session.bundle.manifest.text
    if prompt is not None:
        return PromptSource(name="prompt", ids=_prompt_ids(session, read_prompt(prompt)))
    if text.examples and text.chat_template:
        return PromptSource(name="example", ids=_prompt_ids(session, text.examples[0]))
    return PromptSource(name="random", ids=_random_ids(session))


def natural_prompts(session: Session, source: PromptSource) -> list[tuple[int, ...]]:
    """Prompts whose replies end by themselves: the one given, or several of the examples."""
    if source.name != "example":
        return [source.ids]
    examples = session.bundle.manifest.text.examples[:EXAMPLE_PROMPTS]
    return [_prompt_ids(session, text) for text in examples]


def _prompt_ids(session: Session, prompt: str) -> tuple[int, ...]:
    if session.bundle.manifest.text.chat_template is None:
        return tuple(session.tokenizer.encode(prompt, add_special_tokens=True))
    text = session.chat_template().render(messages_of(prompt, system=None))
    return tuple(session.tokenizer.encode(text, add_special_tokens=False))


def _file_ids(session: Session, file: Path) -> tuple[int, ...]:
    text = read_utf8(file, hint="give a UTF-8 text")
    ids = tuple(session.tokenizer.encode(text, add_special_tokens=True))
    if not ids:
        raise ConfigError(f"{file} is empty", hint="give a text of some length")
    return ids


def _random_ids(session: Session) -> tuple[int, ...]:
    """Seeded ids without control tokens, so that no end token stands in the prompt."""
    special = session.tokenizer.special_ids
    size = session.bundle.manifest.model.vocab_size
    ordinary = np.array([i for i in range(size) if i not in special])
    return tuple(np.random.default_rng(0).choice(ordinary, RANDOM_TOKENS).tolist())
