"""Requests as JSON: one flat object, with the names of the OpenAI and vLLM APIs where they exist.

Everything that is not at its default is written; everything that is not known is refused, with the
closest known name, or with the reason where other servers know it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from selfdraft.errors import ConfigError
from selfdraft.runtime.logit_params import LogitParams
from selfdraft.runtime.request import Request
from selfdraft.runtime.sampling import SamplingParams
from selfdraft.strict import StrictError, closest_hint, record_from_json

PROMPT = "prompt_token_ids"
_GROUPS: dict[str, type[Any]] = {"sampling": SamplingParams, "logits": LogitParams}
"""Fields of ``Request`` that are records themselves; their fields are options like the others."""
_NOT_OPTIONS = {*_GROUPS, "prompt_ids", "processors"}
_OWN_OPTIONS = tuple(f.name for f in dataclasses.fields(Request) if f.name not in _NOT_OPTIONS)
REQUEST_OPTIONS = (
    *(f.name for group in _GROUPS.values() for f in dataclasses.fields(group)),
    *_OWN_OPTIONS,
)
"""Every option that a request in JSON may have, beside its prompt."""
UNSUPPORTED = {
    "n": "one reply a request: send the request again with another seed",
    "best_of": "one reply a request: send the request again with another seed",
    "echo": "the prompt is never part of the reply",
    "suffix": "text is continued, not filled in",
    "prompt_logprobs": "log-probabilities are those of the reply",
    "top_logprobs": "give logprobs the number of likeliest tokens",
    "max_completion_tokens": "give max_tokens",
    "truncate_prompt_tokens": "a prompt is never cut: send a shorter one",
    "skip_special_tokens": "control tokens are never part of the text",
    "typical_p": "use top_p, top_k or min_p",
    "length_penalty": "it belongs to beam search",
}
"""Options of other servers, and what to do instead."""


def request_from_options(prompt_ids: Sequence[int], options: Mapping[str, Any]) -> Request:
    """A request from flat options, e.g. of a JSON body or a config file.

    Raises ``ConfigError`` for an unknown option (with the closest known one) or a wrong value.
    """
    for name in options:
        _check_known(name)
    values = {name: _plain(name, value) for name, value in options.items()}
    parts = {
        part: _record(group, {f.name for f in dataclasses.fields(group)}, values)
        for part, group in _GROUPS.items()
    }
    own = _record(_Own, set(_OWN_OPTIONS), values)
    return Request(
        prompt_ids=tuple(int(token) for token in prompt_ids),
        **parts,
        **{f.name: getattr(own, f.name) for f in dataclasses.fields(_Own)},
    )


def request_from_json(data: object) -> Request:
    """A request from decoded JSON that holds its prompt as ``prompt_token_ids``."""
    if not isinstance(data, Mapping):
        raise ConfigError("the request is no JSON object", hint='e.g. {"prompt_token_ids": [1]}')
    options = dict(data)
    prompt = options.pop(PROMPT, None)
    if not isinstance(prompt, list) or not all(_is_whole(token) for token in prompt):
        raise ConfigError(
            f"{PROMPT} is {str(prompt)[:60]}", hint=f"give {PROMPT} a list of token ids"
        )
    return request_from_options(prompt, options)


def request_to_json(request: Request) -> dict[str, Any]:
    """The request as plain values; ``request_from_json`` gives the same request again.

    Raises ``ConfigError`` where it has processors of its own, which are code.
    """
    if request.processors:
        raise ConfigError(
            "the request has processors of its own, which JSON cannot hold",
            hint="leave Request.processors out",
        )
    options: dict[str, Any] = {PROMPT: list(request.prompt_ids)}
    records = [*(getattr(request, part) for part in _GROUPS), request]
    for record in records:
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if field.name not in _NOT_OPTIONS and value != _default(field):
                options[field.name] = _as_json(value)
    return options


def _own_fields() -> list[tuple[str, Any, Any]]:
    hints = get_type_hints(Request)
    return [
        (f.name, hints[f.name], dataclasses.field(default=f.default))
        for f in dataclasses.fields(Request)
        if f.name in _OWN_OPTIONS
    ]


_Own = dataclasses.make_dataclass("request", _own_fields(), kw_only=True, frozen=True)
"""The options of ``Request`` itself: strict reading needs a record without the other parts."""


def _check_known(name: str) -> None:
    if name in UNSUPPORTED:
        raise ConfigError(f"option {name!r} is not supported", hint=UNSUPPORTED[name])
    if name not in REQUEST_OPTIONS:
        raise ConfigError(
            f"unknown option {name!r}{closest_hint(name, REQUEST_OPTIONS)}",
            hint=f"options are: {', '.join(REQUEST_OPTIONS)}",
        )


def _record(cls: type[Any], names: set[str], values: Mapping[str, Any]) -> Any:
    own = {name: value for name, value in values.items() if name in names}
    bias = own.pop("logit_bias", None)
    try:
        record = record_from_json(cls, own, where="request")
    except StrictError as error:
        raise ConfigError(str(error), hint="give that option a value of its type") from None
    return record if bias is None else dataclasses.replace(record, logit_bias=bias)


def _plain(name: str, value: Any) -> Any:
    """A value as its record wants it, where JSON and OpenAI write it otherwise."""
    if name == "stop" and isinstance(value, str):
        return (value,)
    if name == "logit_bias":
        try:
            return {int(token): float(bias) for token, bias in dict(value).items()}
        except (TypeError, ValueError):
            raise ConfigError(
                f"logit_bias is {value!r}", hint='give it as {"TOKEN ID": NUMBER}'
            ) from None
    return value


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()}
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
