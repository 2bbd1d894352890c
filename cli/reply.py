"""One reply: tokens from the loop, text to the user as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from selfdraft.cli.attention_counters import attention_facts, attention_text, audit_text
from selfdraft.cli.interrupts import StopFlag
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult, TokenEvent
from selfdraft.runtime.thinking_record import ThinkingRate, ThinkingRecord
from selfdraft.runtime.thought_split import Part, TagTexts, ThoughtSplit

SLOT = 0
CUT_SHORT = {
    "length": "give more --max-tokens",
    "context": "give a larger --context, or a shorter prompt",
    "closed": "let it run to its end",
}
"""Ends of replies that did not end by themselves, and what would let them."""
STRUCTURE_NAMES = {"json_schema": "JSON schema", "regex": "pattern", "lark": "grammar"}
SCHEMA = "selfdraft.generation/2"


class Piece(NamedTuple):
    """Text of a reply as it comes."""

    text: str
    drafted: bool
    """The token that completed it was proposed by the MTP head."""
    thinking: bool
    """It stands between the tags; else it is part of the answer."""


Show = Callable[[Piece], None]
"""Takes a piece of the reply's text, thinking or answer, as it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The text of a reply and the record of how it came about."""

    text: str
    """All of it; tags of thinking are part of it where the tokenizer spells them."""
    thought: str | None
    """What stands between the tags of thinking; None where the reply did not think."""
    answer: str
    """The text without thoughts and tags."""
    drafted: tuple[bool, ...]
    """For each token of ``result``: proposed by the MTP head."""
    result: GenerationResult
    stopped: bool
    """The user ended it with Ctrl-C."""


def stream_reply(
    loop: DecodeLoop,
    request: Request,
    *,
    show: Show,
    tags: TagTexts | None = None,
    stop: StopFlag | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
) -> Reply:
    """Run ``request`` in the first slot to its end, or until ``stop`` is set.

    The loop must have a tokenizer. The end or stop token is not part of the text. ``tags`` tell
    thinking from the answer (``reply_tags``); without them all of it is answer.
    """
    stop = stop or StopFlag()
    shown = ShownText(show, request, tags)

    def prefilled(done: int, total: int) -> None:
        stop.check()
        if on_prefill:
            on_prefill(done, total)

    try:
        shown.take(loop.begin({SLOT: request}, on_progress=prefilled))
        while loop.active:
            stop.check()
            shown.take(loop.step())
    except StopFlag.Stopped:
        loop.cancel(SLOT)
    return shown.finish(loop.result(SLOT), stopped=stop.is_set)


class ShownText:
    """The text of a reply as it grows, thinking and answer apart.

    Line breaks right behind a tag are shown in neither.
    """

    def __init__(self, show: Show, request: Request, tags: TagTexts | None) -> None:
        self._split = ThoughtSplit(tags, (*request.prompt_ids, *request.resumed_token_ids))
        self._show = show
        self._length = 0
        self._behind_tag = self._thinking = self._split.is_open
        self._pieces: list[Piece] = []
        self._drafted: list[bool] = []

    def take(self, events: Iterable[TokenEvent]) -> None:
        """Show the texts of tokens."""
        for event in events:
            self._drafted.append(event.drafted)
            self.push(event.token, event.text, drafted=event.drafted)

    def push(self, token: int, text: str, *, drafted: bool) -> None:
        """Show the text of a token."""
        self._length += len(text)
        self._emit(self._split.push(token, text), drafted=drafted)

    def rest(self, text: str) -> None:
        """Show what was held back, and a last text that came without a token."""
        self._emit(self._split.finish(text), drafted=False)

    def finish(self, result: GenerationResult, *, stopped: bool) -> Reply:
        """Show what was held back; the reply."""
        text = result.text or ""
        self.rest(text[self._length :])
        thoughts = [piece.text for piece in self._pieces if piece.thinking]
        return Reply(
            text=text,
            thought="".join(thoughts) if thoughts else None,
            answer="".join(piece.text for piece in self._pieces if not piece.thinking),
            drafted=tuple(self._drafted),
            result=result,
            stopped=stopped,
        )

    def _emit(self, parts: Iterable[Part], *, drafted: bool) -> None:
        for part in parts:
            if part.is_thought != self._thinking:
                self._thinking, self._behind_tag = part.is_thought, True
            text = part.text.lstrip("\r\n") if self._behind_tag else part.text
            if text:
                self._behind_tag = False
                piece = Piece(text, drafted, part.is_thought)
                self._pieces.append(piece)
                self._show(piece)


def reply_record(reply: Reply, *, bundle: str, prompt_ids: Sequence[int]) -> dict[str, Any]:
    """The reply as plain values, for ``--json``."""
    result = reply.result
    return {
        "schema": SCHEMA,
        "bundle": bundle,
        "prompt_token_ids": list(prompt_ids),
        **asdict(result),
        "text": reply.text,
        "thought": reply.thought,
        "answer": reply.answer,
        "attention": attention_facts([result]),
        "telemetry": result.telemetry.to_json() if result.telemetry else None,
        "drafted_tokens": reply.drafted,
        "acceptance_per_position": result.acceptance_per_position,
        "acceptance_rate": result.acceptance_rate,
        "tokens_per_step": result.tokens_per_step,
        "prefill_tok_per_s": result.prefill_tok_per_s,
        "decode_tok_per_s": result.decode_tok_per_s,
    }


def summary_line(result: GenerationResult) -> str:
    """Tokens, speed and acceptance on one line."""
    parts = [f"{len(result.tokens)} tokens ({result.finish_reason})"]
    if result.decode_tok_per_s is not None:
        parts.append(f"{result.decode_tok_per_s:.1f} tokens/s")
    if result.drafted and result.tokens_per_step is not None:
        parts.append(f"{result.tokens_per_step:.2f} tokens a step")
        parts.append(f"accepted {acceptance_text(result)}")
    if result.thinking is not None:
        parts.append(thinking_text(result.thinking))
    if result.reused_tokens:
        known = result.prompt_tokens + result.resumed_tokens
        kind = "prompt and reply" if result.resumed_tokens else "prompt"
        parts.append(f"{result.reused_tokens} of {known} {kind} tokens reused")
    parts += [text for text in (attention_text([result]), audit_text([result])) if text]
    return " · ".join(parts)


def cut_text(reply: Reply, request: Request) -> str | None:
    """What a reply lacks that ended before it was whole: a structure, or any answer; else None."""
    reason = reply.result.finish_reason
    if reason not in CUT_SHORT:
        return None
    if request.structured is not None:
        return (
            f"the reply was cut off ({reason}), so it does not match its "
            f"{STRUCTURE_NAMES[request.structured.kind]}; {CUT_SHORT[reason]}"
        )
    if reply.thought is not None and not reply.answer:
        return (
            f"the reply ended ({reason}) while it was thinking, so there is no answer; "
            f"{CUT_SHORT[reason]}, or limit the thoughts: --thinking-budget N"
        )
    return None


def thinking_text(record: ThinkingRecord) -> str:
    """How a reply kept to its budget, e.g. ``thought 64 of 64 tokens, cut``."""
    cut = ", cut" if record.triggered else ""
    over = ", over its budget" if record.violated else ""
    return f"thought {record.thinking_tokens} of {record.budget} tokens{cut}{over}"


def rate_text(rate: ThinkingRate) -> str:
    """Replies of one level, e.g. ``budget 64, temperature 0: 5 replies, 2 cut, 0 over budget``."""
    return (
        f"budget {rate.budget}, temperature {rate.temperature:g}: {rate.replies} replies, "
        f"{rate.triggered} cut, {rate.violated} over budget"
    )


def acceptance_text(result: GenerationResult) -> str:
    """Acceptance at each draft position, e.g. ``1st 88 % (22/25), 2nd 61 % (14/23)``."""
    parts = []
    for index, (accepted, drafted) in enumerate(
        zip(result.accepted, result.drafted, strict=True), start=1
    ):
        if not drafted and index > 1:
            break  # a deeper chain than any step had
        share = f"{100 * accepted / drafted:.0f} %" if drafted else "–"
        parts.append(f"{ordinal(index)} {share} ({accepted}/{drafted})")
    return ", ".join(parts)


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``4th`` … ``8th``."""
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
