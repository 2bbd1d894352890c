"""A request as the server takes it: what to run, and how to answer."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from selfdraft.cli.serving.body import Fields, wrong_field
from selfdraft.cli.serving.foreign_fields import drop_foreign
from selfdraft.cli.serving.served import Served
from selfdraft.runtime.grammar import StructuredOutput
from selfdraft.runtime.request import Request
from selfdraft.runtime.request_json import REQUEST_OPTIONS, request_from_options
from selfdraft.runtime.thought_split import TagTexts

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request."""

    kind: Literal["chat", "text"]
    request: Request
    stream: bool
    include_usage: bool
    """At the end of a stream."""
    include_record: bool
    tags: TagTexts | None
    """Tags that part the reply into thinking and answer; None: it stays whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """How to answer."""

    stream: bool
    include_usage: bool
    include_record: bool


def take_answering(fields: Fields) -> Answering:
    """``stream``, ``stream_options`` and ``return_record``."""
    stream = fields.take("stream", bool) or False
    options = Fields(fields.take("stream_options", dict) or {})
    include_usage = options.take("include_usage", bool)
    options.take("include_obfuscation", bool)
    if options.rest():
        raise wrong_field("stream_options", "stream_options knows include_usage only")
    if include_usage is not None and not stream:
        raise wrong_field("stream_options", "stream_options belongs to stream: true")
    return Answering(
        stream=stream,
        include_usage=include_usage or False,
        include_record=fields.take("return_record", bool) or False,
    )


def finish_request(
    served: Served,
    fields: Fields,
    prompt_ids: list[int],
    *,
    task: str | None,
    logprobs: int | None,
    changes: dict[str, Any],
) -> Request:
    """The request of a body whose own fields are taken: the rest are options of ``Request``.

    ``task``: of the header, where the body has none. ``changes``: fields of the request that were
    made already. Raises ``ApiError`` or ``ConfigError``.
    """
    max_tokens = _max_tokens(served, fields)
    structured = _response_format(fields)
    if structured is not None:
        changes = {**changes, "structured": structured}
    drop_foreign(fields)
    options = {
        name: value
        for name, value in fields.rest().items()
        if value is not None or name not in REQUEST_OPTIONS
    }
    for name in changes:
        if name in options:
            raise wrong_field(name, f"{name} is given twice, under another name too")
    _check_stops(options.get("stop"))
    if task is not None:
        options.setdefault("task", task)
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if logprobs is not None:
        options["logprobs"] = logprobs
    request = request_from_options(prompt_ids, options)
    return dataclasses.replace(request, **changes) if changes else request


def _max_tokens(served: Served, fields: Fields) -> int | None:
    """``max_completion_tokens``, or ``max_tokens`` by its older name, within the server's limit."""
    new, old = (fields.take(name, int) for name in ("max_completion_tokens", "max_tokens"))
    if new is not None and old is not None and new != old:
        raise wrong_field("max_tokens", "max_tokens and max_completion_tokens differ: give one")
    asked, limit = new if old is None else old, served.settings.max_tokens
    if asked is not None and limit is not None and asked > limit:
        raise wrong_field("max_tokens", f"replies have {limit} tokens at most here")
    return limit if asked is None else asked


def _check_stops(stop: Any) -> None:
    if isinstance(stop, str):
        stop = [stop]
    if not isinstance(stop, list):
        return
    if len(stop) > MAX_STOPS or any(isinstance(t, str) and len(t) > MAX_STOP_CHARS for t in stop):
        raise wrong_field(
            "stop", f"stop takes {MAX_STOPS} texts of {MAX_STOP_CHARS} characters at most"
        )


def _response_format(fields: Fields) -> StructuredOutput | None:
    given = fields.take("response_format", dict)
    if given is None:
        return None
    kind, name = given.get("type"), "response_format"
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutput(kind="json_schema", source=ANY_OBJECT)
    if kind != "json_schema":
        raise wrong_field(name, f"{name} has the type text, json_object or json_schema")
    inner = given.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise wrong_field(name, f"{name} needs its schema: json_schema.schema is no object")
    return StructuredOutput(kind="json_schema", source=json.dumps(schema))
