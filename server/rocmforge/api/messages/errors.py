"""Errors as Anthropic words them."""

from __future__ import annotations

from rocmforge.api.http.errors import ErrorAnswer, answer_for
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


def anthropic_error(error: Exception, answer: ErrorAnswer | None = None) -> Error:
    """Returns the body of an error with Anthropic's type and words.

    Args:
        error: what went wrong.
        answer: what `answer_for` made of it, if it was asked already.
    """
    answer = answer or answer_for(error)
    kind = _TYPES.get(
        answer.status, "invalid_request_error" if answer.status < 500 else "api_error"
    )
    message = answer.detail.message
    if isinstance(error, ContextLengthExceeded):
        # Clients look for these words, and then shorten the conversation.
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.limit} maximum"
    elif answer.detail.param is not None and answer.detail.param not in message:
        message = f"{answer.detail.param}: {message}"  # there is no field for the place
    return Error(error=ErrorDetail(type=kind, message=message))


def error_event(error: Exception) -> bytes:
    """Returns the last event of a stream that failed before it had anything to say."""
    return named_event(anthropic_error(error))
