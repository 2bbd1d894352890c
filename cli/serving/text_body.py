"""From the body of a completion request to what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfdraft.cli.serving.asked import Asked, finish_request, take_answering
from selfdraft.cli.serving.body import Fields, wrong_field
from selfdraft.cli.serving.served import Served


def text_asked(served: Served, body: Mapping[str, Any], *, task: str | None) -> Asked:
    """What the body asks for. Raises ``ApiError`` or ``ConfigError``."""
    fields = Fields(body)
    served.check_model(fields.take("model", str))
    answering = take_answering(fields)
    prompt_ids = _prompt_ids(served, fields.take_any("prompt"))
    request = finish_request(
        served,
        fields,
        prompt_ids,
        task=task,
        logprobs=fields.take("logprobs", int),
        changes={},
    )
    return Asked(
        kind="text",
        request=request,
        stream=answering.stream,
        include_usage=answering.include_usage,
        include_record=answering.include_record,
        tags=None,
    )


def _prompt_ids(served: Served, prompt: Any) -> list[int]:
    """Tokens of a text or of a list of tokens; a list of one prompt is that prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return served.session.tokenizer.encode(prompt, add_special_tokens=True)
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        raise wrong_field("prompt", "prompt must be one text, or one list of token ids")
    return list(prompt)
