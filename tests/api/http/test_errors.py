"""Every error has a place in the table, and looks to clients as OpenAI's errors do."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from rocmforge import errors
from rocmforge.api.http.errors import ERROR_TABLE, answer_for


def subclasses(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for child in root.__subclasses__():
        yield from subclasses(child)


SERVERS_OWN = [
    kind for kind in subclasses(errors.RocmForgeError) if kind.__module__.startswith("rocmforge.")
]  # backends' are answered as what they derive from


@pytest.mark.parametrize("kind", SERVERS_OWN)
def test_every_error_class_has_a_row_of_its_own(kind: type[Exception]) -> None:
    assert kind in ERROR_TABLE


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InvalidParameter("no", param="n"), 400, "invalid_value"),
        (errors.UnsupportedFeature("no", param="tools"), 400, "unsupported_parameter"),
        (
            errors.ContextLengthExceeded(
                limit=10, prompt_tokens=9, max_tokens=5, param="max_tokens"
            ),
            400,
            "context_length_exceeded",
        ),
        (errors.NotAuthenticated("no"), 401, "invalid_api_key"),
        (errors.ModelNotFound("a", ("b",)), 404, "model_not_found"),
        (errors.RequestTooLarge(limit_bytes=1), 413, "request_too_large"),
        (errors.QueueFull("later", retry_after_s=1), 429, "rate_limit_exceeded"),
        (errors.NotReady("later", retry_after_s=1), 503, "model_not_ready"),
        (errors.Draining("later", retry_after_s=1), 503, "shutting_down"),
        (errors.DeadlineExceeded("late", retry_after_s=1), 504, "deadline_exceeded"),
        (errors.EngineDied("gone"), 503, "engine_died"),
    ],
)
def test_an_error_keeps_its_message_and_gets_status_and_code(
    error: errors.RocmForgeError, status: int, code: str
) -> None:
    answer = answer_for(error)
    detail = json.loads(answer.body)["error"]
    assert answer.status == status
    assert detail["code"] == code
    assert detail["message"] == error.message
    assert detail["param"] == getattr(error, "param", None)
    assert detail["type"]


@pytest.mark.parametrize(
    "error", [errors.BackendError("hipMalloc", "secret"), ValueError("secret"), KeyError("secret")]
)
def test_our_own_failures_are_logged_with_an_id_and_hidden_from_clients(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = answer_for(error)
    message = json.loads(answer.body)["error"]["message"]
    assert answer.status == 500
    assert "secret" not in message
    (record,) = caplog.records
    error_id = record.getMessage().removeprefix("error ")
    assert error_id in message
    assert answer.headers == {"x-request-id": error_id, "request-id": error_id}
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


def test_capacity_errors_say_when_to_come_back() -> None:
    answer = answer_for(errors.QueueFull("later", retry_after_s=2.6))
    assert answer.headers["Retry-After"] == "3"


def test_retry_after_is_never_zero() -> None:
    answer = answer_for(errors.QueueFull("later", retry_after_s=0.01))
    assert answer.headers["Retry-After"] == "1"


def test_a_missing_key_names_the_scheme() -> None:
    assert answer_for(errors.NotAuthenticated("no")).headers["WWW-Authenticate"] == "Bearer"
