"""The OpenAPI description holds, by schemathesis with good and malformed requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="pip install 'selfdraft[dev]'")
pytest.importorskip("uvicorn", reason="pip install 'selfdraft[serve]'")

from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as openapi_checks
from support.http_server import serving, wait_for_idle
from support.reciting_bundle import REPLY

from selfdraft.cli.load.address import loopback_address
from selfdraft.cli.load.client import CHAT, ask
from selfdraft.cli.serving.body_schemas import CHAT_FIELDS, REQUEST_FIELDS, SHARED_FIELDS
from selfdraft.runtime.request_json import REQUEST_OPTIONS

CONFORMANCE = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)
OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/health"),
]


@pytest.fixture(scope="module")
def opened(shared_bundle: Path) -> Iterator[Any]:
    with serving(shared_bundle, max_tokens=40) as server:
        yield server


@pytest.fixture(scope="module")
def schema(opened: Any) -> Any:
    return schemathesis.openapi.from_url(f"{opened.url}/openapi.json")


def test_every_option_of_a_request_is_described() -> None:
    assert set(REQUEST_FIELDS) == set(REQUEST_OPTIONS)
    assert not set(CHAT_FIELDS) & set(REQUEST_OPTIONS) - {"logprobs"}


def check(schema: Any, opened: Any, operation: tuple[str, str], *, examples: int) -> None:
    """Send generated requests, good and bad ones; each answer must be as described."""
    method, path = operation
    # Positive data may still be refused: fields can contradict each other.
    checks = [not_a_server_error, *(getattr(openapi_checks, name) for name in CONFORMANCE)]
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        if mode == GenerationMode.NEGATIVE and method == "GET":
            continue  # there is nothing to get wrong

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=schema[path][method].as_strategy(generation_mode=mode))
        def hold(case: Any) -> None:
            case.validate_response(case.call(base_url=opened.url), checks=checks)

        hold()
    assert wait_for_idle(opened).alive


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one[1])
def test_answers_are_those_described(schema: Any, opened: Any, operation: tuple[str, str]) -> None:
    check(schema, opened, operation, examples=3)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one[1])
def test_many_answers_are_those_described(
    schema: Any, opened: Any, operation: tuple[str, str]
) -> None:
    check(schema, opened, operation, examples=40)


@pytest.mark.parametrize(
    "body",
    [
        {"stream_options": {"unknown": None}},
        {"unknown": None},
        {"seed": True},
        {"thinking_budget": -1},
        {"logprobs": 3},
        {"response_format": {"type": "json_schema"}},
        {"structured": {"kind": "regex", "source": "("}},
    ],
)
def test_what_the_description_forbids_is_refused(opened: Any, body: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "recite"}]
    found = ask(loopback_address(opened.url), CHAT, {"messages": messages, **body})
    assert found.status == 400 and found.error


def test_null_is_as_good_as_left_out(opened: Any) -> None:
    body = dict.fromkeys((*REQUEST_FIELDS, *SHARED_FIELDS, *CHAT_FIELDS))
    messages = [{"role": "user", "content": "recite", "name": None}]
    found = ask(loopback_address(opened.url), CHAT, body | {"messages": messages})
    assert (found.status, found.text) == (200, REPLY)


@pytest.mark.parametrize("label", ["", "two words", "a" * 65, "caf\u00e9"])
def test_a_task_in_the_header_is_visible_ascii(opened: Any, label: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "recite"}]}).encode()
    headers = {"Content-Type": "application/json", "X-Selfdraft-Task": label}
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"{opened.url}{CHAT}", body, headers), timeout=30)
    assert caught.value.code == 400
