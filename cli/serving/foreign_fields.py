"""Fields of OpenAI's API that mean nothing here: some may be sent, others would mislead.

A field that would not change the reply is ignored. One that would change it, and that is not
supported, is refused unless it says what holds anyway. Every other unknown name is refused too,
with the closest known one (``runtime.request_json``).
"""

from __future__ import annotations

from typing import Any

from selfdraft.cli.serving.body import Fields, wrong_field

IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "verbosity",
    "reasoning_effort",
)
"""They label a request, or hint at how to serve it."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Fields that would change the reply, with the values that change nothing."""

INSTEAD = {
    "n": "one reply a request: send the request again with another seed",
    "best_of": "one reply a request: send the request again with another seed",
    "echo": "the prompt is never part of the reply",
    "suffix": "text is continued, not filled in",
    "tools": "describe the call in the prompt, and give response_format a JSON schema",
}


def drop_foreign(fields: Fields) -> None:
    """Take the fields above out of ``fields``. Raises ``ApiError`` for one that asks for something."""
    for name in IGNORED:
        fields.take_any(name)
    for name, values in NEUTRAL.items():
        value = fields.take_any(name)
        if value is not None and not any(value == v and type(value) is type(v) for v in values):
            instead = INSTEAD.get(name)
            why = f" ({instead})" if instead else ""
            raise wrong_field(name, f"{name} is not supported{why}")
