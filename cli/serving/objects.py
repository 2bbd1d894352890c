"""OpenAI's objects: the whole reply, the chunks of a stream, and what stands in them."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfdraft.cli.reply import Reply, reply_record
from selfdraft.cli.serving.asked import Asked
from selfdraft.cli.serving.logprob_objects import chat_logprobs, text_logprobs
from selfdraft.cli.serving.reply_parts import Delta, ReplyParts, finish_reason
from selfdraft.cli.serving.served import Served
from selfdraft.runtime.result import GenerationResult, TokenEvent

NAMES = {
    "chat": ("chatcmpl-", "chat.completion", "chat.completion.chunk"),
    "text": ("cmpl-", "text_completion", "text_completion"),
}
RECORD = "selfdraft"
"""Field of the record of how a reply came about."""


@dataclass(slots=True, kw_only=True)
class Objects:
    """Makes the objects of one reply."""

    served: Served
    asked: Asked
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    _offset: int = 0
    """Characters of the text so far."""

    def whole(self, parts: ReplyParts, deltas: Sequence[Delta], result: GenerationResult) -> Any:
        """The reply in one piece."""
        answer = "".join(delta.answer for delta in deltas)
        thought = "".join(delta.thought for delta in deltas)
        events = [event for delta in deltas for event in delta.events]
        choice = self._choice(events) | self._end(result)
        if self.asked.kind == "chat":
            message = {"role": "assistant", "content": answer, "refusal": None}
            choice["message"] = message | ({"reasoning_content": thought} if thought else {})
        else:
            choice["text"] = answer
        body = self._head(chunk=False, choices=[choice])
        return body | {"usage": self._usage(parts, result)} | self._record(parts, result)

    def opening(self) -> Iterator[Any]:
        """The first chunk of a chat: who speaks."""
        if self.asked.kind == "chat":
            yield self._chunk([], {"role": "assistant", "content": ""})

    def piece(self, delta: Delta) -> Iterator[Any]:
        """Chunks for ``delta``; none where it says nothing yet."""
        says = delta.answer or delta.thought
        if not says and not (delta.events and self.asked.request.logprobs is not None):
            return
        if self.asked.kind == "text":
            yield self._chunk(delta.events, delta.answer)
            return
        added = {"reasoning_content": delta.thought} if delta.thought else {}
        if delta.answer or not delta.thought:
            added["content"] = delta.answer
        yield self._chunk(delta.events, added)

    def closing(self, parts: ReplyParts, result: GenerationResult) -> Iterator[Any]:
        """The end of a stream: why it ended, and what was asked for beside the text."""
        last = self._chunk([], {} if self.asked.kind == "chat" else "")
        last["choices"][0].update(self._end(result))
        yield last | self._record(parts, result)
        if self.asked.include_usage:
            yield self._head(chunk=True, choices=[]) | {"usage": self._usage(parts, result)}

    def _chunk(self, events: Sequence[TokenEvent], added: Any) -> dict[str, Any]:
        key = "delta" if self.asked.kind == "chat" else "text"
        choice = self._choice(events) | {"finish_reason": None, key: added}
        body = self._head(chunk=True, choices=[choice])
        return body | ({"usage": None} if self.asked.include_usage else {})

    def _head(self, *, chunk: bool, choices: list[Any]) -> dict[str, Any]:
        prefix, whole, piece = NAMES[self.asked.kind]
        return {
            "id": prefix + self.id,
            "object": piece if chunk else whole,
            "created": self.created,
            "model": self.served.model,
            "choices": choices,
        }

    def _choice(self, events: Sequence[TokenEvent]) -> dict[str, Any]:
        return {"index": 0, "logprobs": self._logprobs(events)}

    def _logprobs(self, events: Sequence[TokenEvent]) -> Any:
        ends = self._end_ids()
        told = [event for event in events if event.logprobs and event.token not in ends]
        if self.asked.request.logprobs is None or not told:
            return None
        tokenizer = self.served.session.tokenizer
        if self.asked.kind == "chat":
            return chat_logprobs(tokenizer, told)
        record = text_logprobs(tokenizer, told, offset=self._offset)
        self._offset += sum(len(event.text) for event in told)
        return record

    def _end_ids(self) -> frozenset[int]:
        """Tokens that end the reply and are no part of its text."""
        request = self.asked.request
        own = () if request.ignore_eos else self.served.session.bundle.manifest.text.eos_ids
        return frozenset((*own, *request.stop_token_ids))

    def _end(self, result: GenerationResult) -> dict[str, Any]:
        return {"finish_reason": finish_reason(result), "stop_reason": result.stop_reason}

    def _usage(self, parts: ReplyParts, result: GenerationResult) -> dict[str, Any]:
        prompt, reply = result.prompt_tokens, len(result.tokens)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": reply,
            "total_tokens": prompt + reply,
            "prompt_tokens_details": {"cached_tokens": result.reused_tokens},
            "completion_tokens_details": {"reasoning_tokens": parts.num_thought},
        }

    def _record(self, parts: ReplyParts, result: GenerationResult) -> dict[str, Any]:
        if not self.asked.include_record:
            return {}
        reply = Reply(
            text=result.text or "",
            thought=parts.thought,
            answer=parts.answer,
            drafted=parts.drafted,
            result=result,
            stopped=False,
        )
        record = reply_record(
            reply,
            bundle=self.served.session.bundle.path.name,
            prompt_ids=self.asked.request.prompt_ids,
        )
        return {RECORD: _finite(record)}


def _finite(value: Any) -> Any:
    """``value`` without infinities, which JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
