"""JSON schemas of the bodies: every field that is read, and what it may hold.

``null`` is as good as left out for every field, so each schema takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfdraft.baseline import DEFAULT_TASK
from selfdraft.cli.serving.asked import MAX_STOP_CHARS, MAX_STOPS
from selfdraft.cli.serving.chat_body import (
    EMPTY_MESSAGE_FIELDS,
    IGNORED_MESSAGE_FIELDS,
    ROLES,
)
from selfdraft.cli.serving.foreign_fields import IGNORED, NEUTRAL
from selfdraft.runtime.logit_params import MAX_BIAS
from selfdraft.runtime.logprobs import MAX_LOGPROBS
from selfdraft.runtime.request import MAX_TASK
from selfdraft.runtime.sampling import MAX_SEED, MODES

Schema = Mapping[str, Any]

BOOL: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
SOME_TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
TOKEN_IDS: Schema = {"type": "array", "items": COUNT}
SOME_TOKEN_IDS: Schema = {"type": "array", "items": COUNT, "minItems": 1}
STOP_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
OBJECT: Schema = {"type": "object"}


def _record(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _optional(schema: Schema) -> dict[str, Any]:
    return {"anyOf": [dict(schema), {"type": "null"}]}


STRUCTURED = _record(
    {"kind": {"enum": ["json_schema", "regex", "lark"]}, "source": TEXT}, "kind", "source"
)
THINKING = _record(
    {
        "budget": COUNT,
        "tags": _record(
            {"start_ids": SOME_TOKEN_IDS, "end_ids": SOME_TOKEN_IDS}, "start_ids", "end_ids"
        ),
        "wrap_up_ids": TOKEN_IDS,
    },
    "budget",
    "tags",
)
REQUEST_FIELDS: dict[str, Schema] = {
    "temperature": {"type": "number", "minimum": 0},
    "top_k": COUNT,
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "seed": {"type": "integer", "minimum": 0, "maximum": MAX_SEED},
    "verification": {"enum": list(MODES)},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "logit_bias": {
        "type": "object",
        "patternProperties": {
            "^[0-9]{1,6}$": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}
        },
        "additionalProperties": False,
    },
    "banned_token_ids": TOKEN_IDS,
    "allowed_token_ids": SOME_TOKEN_IDS,
    "bad_words": {"type": "array", "items": SOME_TEXT},
    "no_repeat_ngram_size": COUNT,
    "max_tokens": {"type": "integer", "minimum": 1},
    "min_tokens": COUNT,
    "stop": {"anyOf": [STOP_TEXT, {"type": "array", "items": STOP_TEXT, "maxItems": MAX_STOPS}]},
    "include_stop_str_in_output": BOOL,
    "stop_token_ids": TOKEN_IDS,
    "ignore_eos": BOOL,
    "thinking": THINKING,
    "logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS},
    "resumed_token_ids": TOKEN_IDS,
    "task": {"type": "string", "minLength": 1, "maxLength": MAX_TASK, "default": DEFAULT_TASK},
    "structured": STRUCTURED,
}
"""Options of ``runtime.Request``, under their own names."""

SHARED_FIELDS: dict[str, Schema] = {
    "model": TEXT,
    "stream": BOOL,
    "stream_options": _record(
        {"include_usage": _optional(BOOL), "include_obfuscation": _optional(BOOL)}
    ),
    "return_record": BOOL,
    "max_completion_tokens": {"type": "integer", "minimum": 1},
    "response_format": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"type": {"enum": ["text", "json_object"]}},
                "required": ["type"],
            },
            {
                "type": "object",
                "properties": {
                    "type": {"const": "json_schema"},
                    "json_schema": {
                        "type": "object",
                        "properties": {"schema": OBJECT},
                        "required": ["schema"],
                    },
                },
                "required": ["type", "json_schema"],
            },
        ]
    },
    **{name: {} for name in IGNORED},
    **{name: {"enum": list(values)} for name, values in NEUTRAL.items() if values},
}
MESSAGE = _record(
    {
        "role": {"enum": list(ROLES)},
        "content": {
            "anyOf": [
                TEXT,
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": TEXT},
                        "required": ["type", "text"],
                    },
                },
            ]
        },
        "reasoning_content": {"type": ["string", "null"]},
        **{name: {} for name in IGNORED_MESSAGE_FIELDS},
        **{name: {"enum": [None, "", [], {}, False, 0]} for name in EMPTY_MESSAGE_FIELDS},
    },
    "role",
    "content",
)
CHAT_FIELDS: dict[str, Schema] = {
    "logprobs": BOOL,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS},
    "chat_template_kwargs": OBJECT,
    "thinking_budget": COUNT,
    "wrap_up": TEXT,
    "budget_prompt": TEXT,
    "think_start": TEXT,
    "think_end": TEXT,
}
PROMPT: Schema = {
    "anyOf": [
        SOME_TEXT,
        SOME_TOKEN_IDS,
        {"type": "array", "items": SOME_TEXT, "minItems": 1, "maxItems": 1},
        {"type": "array", "items": SOME_TOKEN_IDS, "minItems": 1, "maxItems": 1},
    ]
}


def _body(fields: Mapping[str, Schema], needed: str, schema: Schema) -> dict[str, Any]:
    return _record(
        {needed: dict(schema), **{name: _optional(one) for name, one in fields.items()}}, needed
    )


CHAT_BODY = _body(
    {**REQUEST_FIELDS, **SHARED_FIELDS, **CHAT_FIELDS},
    "messages",
    {"type": "array", "items": MESSAGE, "minItems": 1},
)
TEXT_BODY = _body({**REQUEST_FIELDS, **SHARED_FIELDS}, "prompt", PROMPT)
