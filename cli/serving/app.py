"""The application: routes, and errors that no handler expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from selfdraft.cli.serving.access import Access
from selfdraft.cli.serving.answer import Answer
from selfdraft.cli.serving.asked import Asked
from selfdraft.cli.serving.body import read_object, wrong_field
from selfdraft.cli.serving.chat_body import chat_asked
from selfdraft.cli.serving.counted import Counted
from selfdraft.cli.serving.crowd import Crowd
from selfdraft.cli.serving.failures import ApiError, api_error
from selfdraft.cli.serving.openapi import document
from selfdraft.cli.serving.served import Served
from selfdraft.cli.serving.text_body import text_asked
from selfdraft.errors import ToolkitError
from selfdraft.runtime.request import MAX_TASK

TASK_HEADER = "x-selfdraft-task"
TASK = re.compile(rf"[!-~]{{1,{MAX_TASK}}}")
Read = Callable[..., Asked]


def application(served: Served, *, num_open: Callable[[], int]) -> Starlette:
    """The whole server as an ASGI application; ``num_open``: connections that are open now."""
    routes = [
        Route("/v1/chat/completions", partial(_answer, served, chat_asked), methods=["POST"]),
        Route("/v1/completions", partial(_answer, served, text_asked), methods=["POST"]),
        Route("/v1/models", partial(_models, served)),
        Route("/v1/models/{name:path}", partial(_model, served)),
        Route("/health", partial(_health, served)),
        Route("/metrics", partial(_metrics, served)),
        Route("/openapi.json", partial(_description, served)),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Counted, metrics=served.metrics, paths=[route.path for route in routes]),
            Middleware(Crowd, most=served.settings.max_connections, num_open=num_open),
            Middleware(Access, settings=served.settings),
        ],
        exception_handlers={
            ApiError: _refused,
            ToolkitError: _refused,
            HTTPException: _http_refused,
            Exception: _refused,
        },
    )


async def _answer(served: Served, read: Read, request: Request) -> Response:
    body = await read_object(request, served.settings)
    task = _task(request)
    # Templates and tokenizers take their time over long prompts.
    asked = await run_in_threadpool(read, served, body, task=task)
    return Answer(served, asked)


def _task(request: Request) -> str | None:
    """The label in the header: visible ASCII, as a header can hold it. Raises ``ApiError``."""
    task = request.headers.get(TASK_HEADER)
    if task is not None and not TASK.fullmatch(task):
        raise wrong_field(
            TASK_HEADER, f"{TASK_HEADER} has 1 to {MAX_TASK} visible ASCII characters"
        )
    return task


async def _models(served: Served, _request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_model_object(served)]})


async def _model(served: Served, request: Request) -> Response:
    served.check_model(request.path_params["name"])
    return JSONResponse(_model_object(served))


def _model_object(served: Served) -> Mapping[str, Any]:
    return {
        "id": served.model,
        "object": "model",
        "created": served.started,
        "owned_by": "selfdraft",
        "max_model_len": served.service.snapshot().context_length,
    }


async def _health(served: Served, _request: Request) -> Response:
    """200 while it takes requests, 503 when it shuts down or its worker has died."""
    now = served.service.snapshot()
    status = "failed" if not now.alive else "closing" if now.closing else "ok"
    body = {
        "status": status,
        "model": served.model,
        "slots": now.slots,
        "running": now.running,
        "waiting": now.waiting,
    }
    return JSONResponse(body, 200 if status == "ok" else 503)


async def _metrics(served: Served, _request: Request) -> Response:
    text = await run_in_threadpool(served.metrics.text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _description(served: Served, _request: Request) -> Response:
    return JSONResponse(document(served))


async def _refused(_request: Request, error: Exception) -> Response:
    return api_error(error).response()


async def _http_refused(request: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    message = {
        404: f"there is nothing at {request.url.path[:200]!r}: /openapi.json lists the paths",
        405: f"this path takes {headers.get('Allow', 'another method')}, not {request.method}",
    }.get(error.status_code, str(error.detail))
    response = ApiError(error.status_code, message).response()
    response.headers.update(headers)
    return response
