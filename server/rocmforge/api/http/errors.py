"""The one table that turns exceptions into HTTP: status, OpenAI error type and code.

The same body serves as the answer of a request that failed before its first byte and as the last
event of a stream that failed later.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

import msgspec
from litestar.exceptions import HTTPException

from rocmforge import errors
from rocmforge.api.http.headers import request_id_headers

log = logging.getLogger(__name__)


class ErrorDetail(msgspec.Struct, kw_only=True):
    """The error in a body."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    """Every answer with a status of 400 or more, and the last event of a failed stream."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The look of one exception class to a client.

    `hidden` keeps the message in our log and gives the client an id to quote.
    """

    status: int
    type: str
    code: str
    hidden: bool = False


_BAD_REQUEST = ErrorRow(400, "invalid_request_error", "invalid_value")
_INTERNAL = ErrorRow(500, "server_error", "internal_error", hidden=True)

ERROR_TABLE: dict[type[Exception], ErrorRow] = {
    errors.RequestError: _BAD_REQUEST,
    errors.InvalidParameter: _BAD_REQUEST,
    errors.UnsupportedFeature: ErrorRow(400, "invalid_request_error", "unsupported_parameter"),
    errors.ContextLengthExceeded: ErrorRow(400, "invalid_request_error", "context_length_exceeded"),
    errors.NotAuthenticated: ErrorRow(401, "invalid_request_error", "invalid_api_key"),
    errors.NotAuthorized: ErrorRow(403, "invalid_request_error", "insufficient_permissions"),
    errors.RequestTimeout: ErrorRow(408, "invalid_request_error", "request_timeout"),
    errors.ModelNotFound: ErrorRow(404, "invalid_request_error", "model_not_found"),
    errors.ResponseNotFound: ErrorRow(404, "invalid_request_error", "response_not_found"),
    errors.UnknownPath: ErrorRow(404, "invalid_request_error", "unknown_url"),
    errors.HeadersTooLarge: ErrorRow(431, "invalid_request_error", "headers_too_large"),
    errors.RequestTooLarge: ErrorRow(413, "invalid_request_error", "request_too_large"),
    errors.CapacityError: ErrorRow(503, "server_error", "unavailable"),
    errors.QueueFull: ErrorRow(429, "rate_limit_error", "rate_limit_exceeded"),
    errors.RateLimited: ErrorRow(429, "rate_limit_error", "rate_limit_exceeded"),
    errors.NotReady: ErrorRow(503, "server_error", "model_not_ready"),
    errors.ModelUnavailable: ErrorRow(503, "server_error", "model_unavailable"),
    errors.Draining: ErrorRow(503, "server_error", "shutting_down"),
    errors.DeadlineExceeded: ErrorRow(504, "server_error", "deadline_exceeded"),
    errors.EngineDied: ErrorRow(503, "server_error", "engine_died"),
    errors.RocmForgeError: _INTERNAL,
    errors.EngineError: _INTERNAL,
    errors.BackendError: _INTERNAL,
    errors.OutOfMemory: _INTERNAL,
    errors.ModelLoadError: _INTERNAL,
    errors.ModelFileNotFound: _INTERNAL,
    errors.DownloadFailed: _INTERNAL,
    errors.NotInHub: _INTERNAL,
    errors.BadGguf: _INTERNAL,
    errors.BadFolder: _INTERNAL,
    errors.BadTokenizer: _INTERNAL,
    errors.BadTemplate: _INTERNAL,
    errors.UnsupportedArchitecture: _INTERNAL,
    errors.UnsupportedTensor: _INTERNAL,
    errors.BadAdapter: _INTERNAL,
    errors.RemoteError: _INTERNAL,
    errors.ConfigurationError: _INTERNAL,
}

# What the web framework itself refuses: no such path, wrong method, and the like.
_HTTP_CODES = {
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
}

RESTART_RETRY_S = 5
"""Retry-After once the engine has died: about what a restart with a warm page cache takes."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An exception, ready to be sent."""

    status: int
    detail: ErrorDetail
    headers: dict[str, str]

    @property
    def body(self) -> bytes:
        """The body as OpenAI words it."""
        return msgspec.json.encode(ErrorBody(error=self.detail))


def answer_for(error: Exception) -> ErrorAnswer:
    """Looks `error` up by its class, or the nearest base that is in the table."""
    if isinstance(error, HTTPException):
        return _framework_answer(error)
    row = next((ERROR_TABLE[c] for c in type(error).__mro__ if c in ERROR_TABLE), _INTERNAL)
    if row.hidden:
        return _hidden_answer(error, row)
    assert isinstance(error, errors.RocmForgeError)
    detail = _detail(error.message, row, getattr(error, "param", None))
    return ErrorAnswer(row.status, detail, _headers(error))


def _hidden_answer(error: Exception, row: ErrorRow) -> ErrorAnswer:
    error_id = uuid.uuid4().hex
    log.error("error %s", error_id, exc_info=error)
    message = f"The server failed to handle this request. Its log has the details under {error_id}."
    return ErrorAnswer(row.status, _detail(message, row, None), request_id_headers(error_id))


def _headers(error: Exception) -> dict[str, str]:
    match error:
        case errors.CapacityError():
            return {"Retry-After": str(max(1, round(error.retry_after_s)))}
        case errors.EngineDied():
            return {"Retry-After": str(RESTART_RETRY_S)}
        case errors.NotAuthenticated():
            return {"WWW-Authenticate": "Bearer"}
        case _:
            return {}


def _framework_answer(error: HTTPException) -> ErrorAnswer:
    if error.status_code >= 500:
        return _hidden_answer(error, _INTERNAL)
    code = _HTTP_CODES.get(error.status_code, "bad_request")
    row = ErrorRow(error.status_code, "invalid_request_error", code)
    return ErrorAnswer(
        row.status, _detail(_framework_message(error), row, None), error.headers or {}
    )


def _framework_message(error: HTTPException) -> str:
    match error.status_code:
        case 405:
            methods = {*(error.headers or {}).get("allow", "").split(", ")} - {"OPTIONS"}
            return f"This path takes {', '.join(sorted(methods))} only."
        case _:
            return error.detail


def _detail(message: str, row: ErrorRow, param: str | None) -> ErrorDetail:
    return ErrorDetail(message=message, type=row.type, param=param, code=row.code)
