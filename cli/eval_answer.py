"""Answering prompts greedily, sparse and dense, over one prefill of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from selfdraft.cli.eval_cases import Prompt
from selfdraft.cli.text_passes import RowOutput, TextPasses
from selfdraft.manifest import BLOCK_TOKENS
from selfdraft.runtime.attention_record import sparse_layers

if TYPE_CHECKING:
    from selfdraft.cli.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One reply and how much of it was right."""

    text: str
    score: float
    """Part of the wanted answers that stand in the reply as words of their own."""
    blocks_read: int
    """By the rows of the reply, summed over sparse layers."""
    blocks_in_use: int


class Answerer:
    """Replies of at most ``tokens`` tokens from one engine.

    The text is prefilled densely. Behind it the question (unless ``dense_question``) and the reply
    run as the mode says, so that nothing about the question was seen with more than that. Plain
    decoding: drafts would change no token.
    """

    def __init__(self, session: Session, *, length: int, tokens: int, dense_question: bool) -> None:
        limits = session.bundle.manifest.limits
        self._session = session
        self._tokens = tokens
        self._dense_question = dense_question
        self._layers = len(sparse_layers(session.bundle.manifest))
        self._passes = TextPasses(
            session.backend,
            length=length + tokens,
            chunk_rows=session.options.chunk or limits.prefill_rows,
        )

    @property
    def modes(self) -> tuple[str, ...]:
        """``dense``, and ``sparse`` where the bundle has it."""
        return ("dense", "sparse") if self._layers else ("dense",)

    def answer(self, prompt: Prompt) -> dict[str, Answer]:
        """The reply of each mode."""
        # The last token of the prompt gives the first of the reply, so its row is the mode's own.
        shared = min(prompt.text_tokens, len(prompt.ids) - 1)
        self._passes.cached = 0
        self._passes.fill(prompt.ids[:shared], dense=True)
        answers = {}
        for mode in self.modes:
            self._passes.cached = shared
            answers[mode] = self._reply(prompt, shared, dense=mode == "dense")
        return answers

    def _reply(self, prompt: Prompt, shared: int, *, dense: bool) -> Answer:
        question = prompt.ids[shared:-1]
        self._passes.fill(question, dense=dense or self._dense_question)
        token, reply = prompt.ids[-1], list[int]()
        read = in_use = 0
        while len(reply) < self._tokens:
            row: RowOutput = self._passes.row(token, dense=dense)
            read += sum(row.blocks_read)
            in_use += self._layers * -(-self._passes.cached // BLOCK_TOKENS)
            token = int(np.argmax(row.logits))
            if token in self._session.bundle.manifest.text.eos_ids:
                break
            reply.append(token)
        text = self._session.tokenizer.decode(reply)
        return Answer(
            text=text,
            score=score(text, prompt.answers),
            blocks_read=read,
            blocks_in_use=in_use,
        )


def score(reply: str, answers: Sequence[str]) -> float:
    """Part of ``answers`` that stand in ``reply`` as words of their own, case ignored."""
    found = [
        re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply, re.IGNORECASE) for answer in answers
    ]
    return sum(match is not None for match in found) / len(answers)
