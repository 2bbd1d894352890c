"""A conversation: its messages, and the tokens that stand for them.

The chat template renders the whole conversation each turn. Where the new text only continues the
old one, the model's own tokens are kept and just the rest is encoded, so that the caches are
reused to the last token; where the template changed the past (e.g. dropped thoughts), the text
is encoded anew, and the loop reuses what both have in common.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from selfdraft.errors import ConfigError
from selfdraft.runtime.chat_template import ChatTemplate, Message
from selfdraft.runtime.tokenizer import Tokenizer


class Conversation:
    """Messages of a chat, turned into prompts."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        *,
        system: str | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._system = system
        self._args = dict(args or {})
        self.messages: list[Message] = []
        self._known_text = ""
        self._known_ids: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []
        self._known_text, self._known_ids = "", []

    def saved_text(self, tokens: Sequence[int]) -> str:
        """The conversation as text to keep beside a cache, which holds ``tokens``."""
        count = len(self._known_ids)
        kept = self._known_ids == list(tokens[:count])
        record = {
            "messages": self.messages,
            "known_text": self._known_text if kept else "",
            "known_tokens": count if kept else 0,
        }
        return json.dumps(record, ensure_ascii=False)

    def restore(self, saved: str, tokens: Sequence[int]) -> None:
        """Go on from ``saved_text`` with the ``tokens`` of its cache.

        A system prompt given anew must be the one of that conversation; ``ConfigError`` otherwise.
        """
        try:
            record = json.loads(saved)
            messages = [_message(said) for said in record["messages"]]
            known_text, known = str(record["known_text"]), int(record["known_tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the saved conversation cannot be read: {error!r}",
                hint="start anew without --load-cache",
            ) from None
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        if self._system is not None and self._system != system:
            raise ConfigError(
                "the saved conversation has another system prompt",
                hint="leave --system out, or start anew without --load-cache",
            )
        self._system, self.messages = system, messages
        self._known_text, self._known_ids = known_text, list(tokens[:known])

    def prompt_with(self, user_text: str) -> list[int]:
        """Tokens of the conversation with this message; nothing is added to it yet."""
        self._asked: Message = {"role": "user", "content": user_text}
        self._asked_text = self._template.render([*self.messages, self._asked], args=self._args)
        self._asked_ids = self._encode(self._asked_text)
        return self._asked_ids

    def add_turn(
        self,
        reply_text: str,
        reply_ids: Sequence[int],
        *,
        spelled: str | None = None,
        thought: str | None = None,
        answer: str | None = None,
    ) -> None:
        """Add the message last asked and the model's reply to it.

        ``reply_ids`` are the tokens that gave ``reply_text``, or its first part ``spelled``, without
        an end token. Where the model thought, the template is given ``thought`` and ``answer`` apart:
        it drops or keeps the former, and would not see where it ends in a text without tags.
        """
        said: Message = {"role": "assistant", "content": reply_text}
        if thought is not None and answer is not None:
            said = {"role": "assistant", "reasoning_content": thought, "content": answer}
        self.messages += [self._asked, said]
        self._known_text = self._asked_text + (reply_text if spelled is None else spelled)
        self._known_ids = [*self._asked_ids, *reply_ids]

    def _encode(self, text: str) -> list[int]:
        if self._known_ids and text.startswith(self._known_text):
            rest = text[len(self._known_text) :]
            return self._known_ids + self._tokenizer.encode(rest, add_special_tokens=False)
        return self._tokenizer.encode(text, add_special_tokens=False)


def _message(said: Mapping[str, Any]) -> Message:
    """A saved message. Raises ``KeyError`` where a part is missing."""
    message: Message = {"role": said["role"], "content": said["content"]}
    if "reasoning_content" in said:
        message["reasoning_content"] = said["reasoning_content"]
    return message
