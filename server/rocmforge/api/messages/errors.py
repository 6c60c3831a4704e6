"""Errors as Anthropic words them."""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.api.http.errors import answer_for
from rocmforge.api.http.sse import named_event
from rocmforge.api.messages.schema import Error, ErrorDetail
from rocmforge.errors import ContextLengthExceeded

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class AnthropicError:
    """An exception, ready to be sent."""

    status: int
    body: Error
    headers: dict[str, str]


def anthropic_error(error: Exception) -> AnthropicError:
    """The same status as everywhere, with Anthropic's type and body."""
    answer = answer_for(error)
    kind = _TYPES.get(
        answer.status, "invalid_request_error" if answer.status < 500 else "api_error"
    )
    message = answer.detail.message
    if isinstance(error, ContextLengthExceeded):
        # Clients look for these words, and then shorten the conversation.
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.limit} maximum"
    elif answer.detail.param is not None and answer.detail.param not in message:
        message = f"{answer.detail.param}: {message}"  # there is no field for the place
    body = Error(error=ErrorDetail(type=kind, message=message))
    return AnthropicError(status=answer.status, body=body, headers=answer.headers)


def error_event(error: Exception) -> bytes:
    """The last event of a stream that failed before it had anything to say."""
    return named_event(anthropic_error(error).body)
