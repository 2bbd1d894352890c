"""From the body of a chat request to what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfdraft.cli.reply_shape import ThinkingOptions
from selfdraft.cli.serving.asked import Asked, finish_request, take_answering
from selfdraft.cli.serving.body import Fields, wrong_field
from selfdraft.cli.serving.failures import ApiError
from selfdraft.cli.serving.served import Served
from selfdraft.runtime.chat_template import Message
from selfdraft.runtime.logprobs import MAX_LOGPROBS
from selfdraft.runtime.thinking import Thinking
from selfdraft.runtime.thought_split import TagTexts, tag_texts

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""OpenAI's roles by those that templates know."""
EMPTY_MESSAGE_FIELDS = ("refusal", "tool_calls", "function_call", "audio", "annotations")
IGNORED_MESSAGE_FIELDS = ("name",)


def chat_asked(served: Served, body: Mapping[str, Any], *, task: str | None) -> Asked:
    """What the body asks for. Raises ``ApiError`` or ``ConfigError``."""
    if served.template is None:
        raise ApiError(400, "this model has no chat template: use /v1/completions")
    fields = Fields(body)
    served.check_model(fields.take("model", str))
    answering = take_answering(fields)
    options = _thinking_options(fields)
    thinking = options.thinking(served.session.tokenizer)
    messages = _with_budget(_messages(fields.take_any("messages")), options)
    args = options.template_args(served.template)
    args |= fields.take("chat_template_kwargs", dict) or {}
    text = served.template.render(messages, args=args)
    request = finish_request(
        served,
        fields,
        served.session.tokenizer.encode(text, add_special_tokens=False),
        task=task,
        logprobs=_logprobs(fields),
        changes={"thinking": thinking} if thinking else {},
    )
    return Asked(
        kind="chat",
        request=request,
        stream=answering.stream,
        include_usage=answering.include_usage,
        include_record=answering.include_record,
        tags=_tags(served, request.thinking),
    )


def _thinking_options(fields: Fields) -> ThinkingOptions:
    return ThinkingOptions(
        budget=fields.take("thinking_budget", int),
        wrap_up=fields.take("wrap_up", str),
        prompt=fields.take("budget_prompt", str),
        start=fields.take("think_start", str),
        end=fields.take("think_end", str),
    )


def _tags(served: Served, thinking: Thinking | None) -> TagTexts | None:
    return tag_texts(served.session.tokenizer, thinking.tags) if thinking else served.tags


def _logprobs(fields: Fields) -> int | None:
    """Chat asks for log-probabilities with a switch and a number."""
    wanted, top = fields.take("logprobs", bool), fields.take("top_logprobs", int)
    if top is not None and not wanted:
        raise wrong_field("top_logprobs", "top_logprobs needs logprobs: true")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise wrong_field("top_logprobs", f"top_logprobs is 0 to {MAX_LOGPROBS}")
    return (top or 0) if wanted else None


def _with_budget(messages: list[Message], options: ThinkingOptions) -> list[Message]:
    """The messages, with the budget told in the system prompt where that is asked for."""
    given = messages[0]["content"] if messages[0]["role"] == "system" else None
    told = options.system(given)
    if told is None or told == given:
        return messages
    return [{"role": "system", "content": told}, *messages[given is not None :]]


def _messages(given: Any) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise wrong_field("messages", "messages must be a list of at least one message")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(given)]


def _message(where: str, given: Any) -> Message:
    if not isinstance(given, dict):
        raise wrong_field("messages", f"{where} is no object")
    fields = Fields(given)
    role = ROLES.get(str(fields.take_any("role")))
    if role is None:
        raise wrong_field("messages", f"{where}.role is none of {', '.join(ROLES)}")
    content = _content(where, fields.take_any("content"))
    thought = fields.take("reasoning_content", str)
    for name in IGNORED_MESSAGE_FIELDS:
        fields.take_any(name)
    for name in EMPTY_MESSAGE_FIELDS:
        if fields.take_any(name):
            raise wrong_field("messages", f"{where}.{name} is not supported")
    unknown = fields.rest()
    if unknown:
        raise wrong_field("messages", f"{where} has the unknown field {min(unknown)[:60]!r}")
    message: Message = {"role": role, "content": content}
    if thought is not None and role == "assistant":
        message["reasoning_content"] = thought
    return message


def _content(where: str, given: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise wrong_field("messages", f"{where}.content must be a text, or a list of text parts")
    texts = []
    for part in given:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise wrong_field("messages", f"{where}.content has a part that is no text")
        texts.append(text)
    return "".join(texts)
