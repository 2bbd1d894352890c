"""The OpenAPI description of the server, made from what it reads.

Kept by hand rather than derived by a framework: the validator of requests is the runtime's own, and
a second one (FastAPI's models) would have to agree with it field by field, at the cost of a compiled
dependency on the board. Tests hold the description against the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfdraft import __version__
from selfdraft.cli.serving.body_schemas import CHAT_BODY, TEXT_BODY
from selfdraft.cli.serving.served import Served

OPENAPI = "3.1.0"
REFUSALS = {
    "400": "The request is wrong; the message says where.",
    "401": "The API key is missing or wrong.",
    "403": "A name that this server does not answer to.",
    "404": "There is no such model, or no such path.",
    "405": "Another method is needed.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON.",
    "429": "There is no room for one more request now.",
    "500": "The server failed.",
    "503": "It is shutting down, the request took too long, or too many connections are open.",
}
ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
USAGE: Mapping[str, Any] = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
}
MODEL: Mapping[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": {"type": "string"}, "object": {"const": "model"}},
}
TASK_HEADER: Mapping[str, Any] = {
    "name": "X-Selfdraft-Task",
    "in": "header",
    "required": False,
    "description": "Kind of text, by which telemetry counts; a field task wins.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[!-~]+$"},
}


def document(served: Served) -> dict[str, Any]:
    """The description of this server."""
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "selfdraft",
            "version": __version__,
            "description": f"OpenAI's API over the bundle {served.model!r}.",
        },
        "paths": {
            "/v1/chat/completions": {"post": _asks("Answer a conversation.", "chat", CHAT_BODY)},
            "/v1/completions": {"post": _asks("Continue a text.", "text", TEXT_BODY)},
            "/v1/models": {"get": _tells("The models: one.", _listed(MODEL))},
            "/v1/models/{model}": {
                "get": _tells("A model.", MODEL)
                | {
                    "parameters": [
                        {
                            "name": "model",
                            "in": "path",
                            "required": True,
                            "schema": {"type": "string"},
                        }
                    ]
                }
            },
            "/health": {"get": _health()},
        },
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        **({"security": [{"key": []}]} if served.settings.api_key else {}),
    }


def _asks(summary: str, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    whole = {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "object": {"const": "chat.completion" if kind == "chat" else "text_completion"},
            "choices": {"type": "array", "minItems": 1, "maxItems": 1},
            "usage": USAGE,
        },
    }
    content = {"application/json": {"schema": whole}, "text/event-stream": {"schema": {}}}
    return {
        "summary": summary,
        "parameters": [TASK_HEADER],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "The reply.", "content": content}, **_refusals()},
    }


def _tells(summary: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {"description": "Found.", "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "responses": {"200": found, **_refusals()}}


def _health() -> dict[str, Any]:
    state = {
        "type": "object",
        "required": ["status", "slots", "running", "waiting"],
        "properties": {"status": {"enum": ["ok", "closing", "failed"]}},
    }
    content = {"application/json": {"schema": state}}
    return {
        "summary": "Whether it takes requests.",
        "security": [],
        "responses": {
            "200": {"description": "It does.", "content": content},
            "503": {"description": "It does not.", "content": content},
            **{status: _refusal(REFUSALS[status]) for status in ("403", "405")},
        },
    }


def _listed(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": schema}},
    }


def _refusals() -> dict[str, Any]:
    return {status: _refusal(text) for status, text in REFUSALS.items()}


def _refusal(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
