"""Errors as clients see them: a status, a sentence, and never a traceback."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from starlette.responses import JSONResponse

from selfdraft.errors import ConfigError, ResourceError, ToolkitError
from selfdraft.runtime.serving.events import Closing, Overloaded, TimedOut

BUSY_RETRY_S = 1.0
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


class ApiError(Exception):
    """A refusal with its HTTP status; ``code`` is for programs, ``param`` names the field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def to_json(self) -> dict[str, Any]:
        """The body that OpenAI's clients know."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        inner = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": inner}

    def response(self) -> JSONResponse:
        """The whole answer."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(math.ceil(self.retry_after_s), 1))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return _AsciiJson(self.to_json(), self.status, headers=headers)


class _AsciiJson(JSONResponse):
    """What a client sent may be no Unicode, and is repeated to it: escaped."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


def api_error(error: Exception) -> ApiError:
    """``error`` for a client; what is no user's fault keeps its details to itself."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Overloaded):
        return ApiError(429, _told(error), code="overloaded", retry_after_s=error.retry_after_s)
    if isinstance(error, Closing):
        return ApiError(503, _told(error), code="shutting_down", retry_after_s=BUSY_RETRY_S)
    if isinstance(error, TimedOut):
        return ApiError(503, _told(error), code="timed_out", retry_after_s=BUSY_RETRY_S)
    if isinstance(error, ResourceError):
        return ApiError(400, _told(error), code="context_length_exceeded")
    if isinstance(error, ConfigError):
        return ApiError(400, _told(error), code="invalid_value")
    return ApiError(500, "the server failed at this request", code="internal_error")


def _told(error: ToolkitError) -> str:
    """Problem and hint; an option of the command line is a field here."""
    text = f"{error.problem} ({error.hint})"
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), text)
