"""The texts of a probe: those kept in the bundle, and the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from selfdraft.baseline import DEFAULT_TASK
from selfdraft.cli.baseline import stored_texts
from selfdraft.cli.ladder_text import probe_prompts
from selfdraft.cli.text_files import read_utf8
from selfdraft.errors import ConfigError
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from selfdraft.cli.session import Session

SEQUENCE = 256
"""Tokens of a sequence, as in a calibration."""
LEAST_TOKENS = 64
REPLY_TOKENS = 128
REPLY_SLOT = 0
OWN, BASELINE = "your text", "baseline text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeText:
    """A text in sequences ``[N, T]``, and as one."""

    name: str
    ids: NDArray[np.int64]
    whole: NDArray[np.int64]
    """``[tokens]``."""
    counted: NDArray[np.bool_] | None = None
    """Rows ``[N, T - 1]`` whose drafts count: of replies, not of prompts; None: all."""
    task: str = DEFAULT_TASK


def baseline_text(session: Session, task: str, *, tokens: int) -> ProbeText | None:
    """The text that the bundle keeps for ``task``; None where it keeps none.

    Raises ``ConfigError`` for a task that it does not know.
    """
    texts = {text.task: text for text in stored_texts(session.bundle)}
    if not texts:
        return None
    if task not in texts:
        raise ConfigError(
            f"the bundle has no baseline for the task {task!r}",
            hint=f"it has: {', '.join(texts)}",
        )
    return _in_sequences(BASELINE, texts[task].ids, tokens=tokens, task=task)


def user_text(session: Session, file: Path, *, tokens: int) -> ProbeText:
    """A UTF-8 file. Raises ``ConfigError`` where it cannot be read or is too short."""
    text = read_utf8(file, hint="give a UTF-8 text")
    ids = session.tokenizer.encode(text, add_special_tokens=False)
    if len(ids) < LEAST_TOKENS:
        raise ConfigError(
            f"{file} has {len(ids)} tokens, a probe needs {LEAST_TOKENS} or more",
            hint="give a text of some pages",
        )
    return _in_sequences(OWN, ids, tokens=tokens)


def replies_text(session: Session, file: Path, *, tokens: int) -> ProbeText:
    """Greedy replies to the prompts in ``file``, one a line, each behind its prompt."""
    lines = read_utf8(file, hint="give a UTF-8 file with a prompt on each line").splitlines()
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"{file} holds no prompt", hint="one prompt a line")
    ids: list[int] = []
    is_reply: list[bool] = []
    loop = session.loop()
    for prompt in probe_prompts(session.bundle, prompts):
        request = Request(
            prompt_ids=tuple(prompt),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=REPLY_TOKENS,
        )
        generation = Generation(loop, {REPLY_SLOT: request})
        for _ in generation:
            pass
        reply = generation.result.tokens
        ids += [*prompt, *reply]
        is_reply += [False] * len(prompt) + [True] * len(reply)
        if len(ids) >= tokens:
            break
    text = _in_sequences(OWN, ids, tokens=tokens)
    replies = np.array(is_reply[: text.ids.size]).reshape(text.ids.shape)
    # Row p drafts for position p + 2, which for the last row stands in the next sequence.
    last = np.zeros((len(replies), 1), dtype=np.bool_)
    return replace(text, counted=np.hstack([replies[:, 2:], last]))


def _in_sequences(
    name: str, ids: Sequence[int], *, tokens: int, task: str = DEFAULT_TASK
) -> ProbeText:
    whole = np.array(ids[:tokens], dtype=np.int64)
    length = min(SEQUENCE, len(whole))
    count = len(whole) // length
    return ProbeText(
        name=name, ids=whole[: count * length].reshape(count, length), whole=whole, task=task
    )
