"""The line that is logged for each request, and its trace."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from litestar.testing import TestClient
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.request_log import RequestLog
from rocmforge.api.metrics.tracing import Tracer
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, RequestTiming, TokenEvent
from rocmforge.logs import FIELDS, JsonFormatter, TextFormatter
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model, say

SECRET = "a very secret key"
HEADERS = {"authorization": f"Bearer {SECRET}"}
BODY = {"model": "tiny", "prompt": "private words", "max_tokens": 5}
Ask = Callable[..., Any]


@pytest.fixture
def ask(engine: FakeEngine) -> Ask:
    """Sends one request to a server that logs as told."""

    def ask(log: RequestLog | None = None, **fields: Any) -> Any:
        keys = Keyring(given_keys([SECRET]))
        app = build_app(make_model(engine), ApiSettings(), keys, request_log=log)
        with TestClient(app) as client:
            return client.post("/v1/completions", json={**BODY, **fields}, headers=HEADERS)

    return ask


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """What was logged of requests."""
    caplog.set_level(logging.DEBUG)

    def fields() -> list[dict[str, Any]]:
        return [getattr(r, FIELDS) for r in caplog.records if r.name == "rocmforge.request"]

    return fields


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line_with_its_numbers(ask: Ask, lines: Any, stream: bool) -> None:
    response = ask(stream=stream)
    (line,) = lines()
    assert line["request_id"] == response.headers["x-request-id"]
    assert (line["path"], line["model"]) == ("/v1/completions", "tiny")
    assert line["key"] == "api-key-1"
    assert line["finish_reason"] == "stop"
    assert line["output_tokens"] == 3
    assert line["cached_tokens"] == 3
    assert line["prompt_tokens"] > 0
    assert 0 <= line["first_token_s"] <= line["total_s"]
    assert line["tokens_per_s"] > 0
    assert "texts" not in line


def test_a_line_names_the_id_that_a_request_came_with(
    engine: FakeEngine, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with TestClient(build_app(make_model(engine), ApiSettings())) as client:
        given = {"x-request-id": 'their"s' + "x" * 200}
        client.post("/v1/completions", json=BODY, headers=given)
        client.post("/v1/completions", json={}, headers=given)
    made, refused = lines()
    assert made["given_id"] == refused["given_id"] == 'their"s' + "x" * 121
    shown = f"given_id={json.dumps(made['given_id'])}"
    written = [r for r in caplog.records if r.name == "rocmforge.request"]
    assert [shown in TextFormatter().format(record) for record in written] == [True, True]


@pytest.mark.parametrize(("times", "shown"), [(0, ""), (2, ", resumed 2x")])
def test_a_line_says_that_another_engine_process_went_on(
    times: int, shown: str, ask: Ask, engine: FakeEngine, lines: Any, caplog: Any
) -> None:
    engine.resumed = times
    ask(n=2)
    assert lines()[0]["resumed"] == times
    (written,) = (r for r in caplog.records if r.name == "rocmforge.request")
    assert TextFormatter().format(written).endswith(f" tokens/s{shown}")


def test_each_choice_says_how_it_ended(ask: Ask, lines: Any, engine: FakeEngine) -> None:
    engine.script = say([262], finish=FinishReason.LENGTH)
    ask(n=2)
    assert lines()[0]["finish_reason"] == "length,length"


def test_a_failed_request_is_a_line_too(ask: Ask, lines: Any, engine: FakeEngine) -> None:
    engine.script = say([262], finish=FinishReason.DIED)
    assert ask().status_code == 503
    assert lines()[0]["finish_reason"] == "died"


def test_neither_prompts_nor_keys_are_logged(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ask()
    written = " ".join(JsonFormatter().format(record) for record in caplog.records)
    assert written
    assert "private" not in written
    assert SECRET not in written


def test_prompts_and_answers_are_logged_when_asked_for(ask: Ask, lines: Any) -> None:
    answer = ask(RequestLog(with_texts=True)).json()["choices"][0]["text"]
    assert lines()[0]["texts"] == ["private words", answer]


def test_a_slow_request_is_a_warning(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    ask(RequestLog(slow_s=1e-9))
    (record,) = [r for r in caplog.records if r.name == "rocmforge.request"]
    assert (record.levelname, record.getMessage()) == ("WARNING", "slow request")


def test_people_read_a_short_line(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    request_id = ask(RequestLog(with_texts=True)).headers["x-request-id"]
    (made,) = [r for r in caplog.records if r.name == "rocmforge.request"]
    line, _, texts = TextFormatter().format(made).partition(" texts=")
    assert f"request {request_id} /v1/completions tiny by " in line
    assert re.search(r": (stop|length), \d+ \(\d+ cached\) \+ \d+ tokens in \S+ s", line)
    assert len(line) < 3 * 80, "no line takes more than three rows"
    assert json.loads(texts)[0] == "private words"
    assert "summary" not in json.loads(JsonFormatter().format(made))


# --- formats ---


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("a.logger", logging.INFO, "f.py", 1, message, None, None)
    setattr(made, FIELDS, fields)
    return made


def test_json_lines_are_objects_with_everything_in_them() -> None:
    line = json.loads(JsonFormatter().format(record("hello", tokens=3, nothing=None)))
    assert line["message"] == "hello"
    assert line["level"] == "info"
    assert line["logger"] == "a.logger"
    assert (line["tokens"], line["nothing"]) == (3, None)
    assert line["time"].endswith("Z")


def test_json_holds_tracebacks() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (type(error), error, error.__traceback__)
    assert "ValueError: why" in json.loads(JsonFormatter().format(made))["exception"]


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_nobody_can_begin_a_line_of_their_own(formatter: logging.Formatter) -> None:
    forged = "x\n2026-01-01 ERROR forged: gone\r\nagain"
    assert len(formatter.format(record(forged, texts=[forged])).splitlines()) == 1


def test_text_lines_show_values_that_are_there() -> None:
    line = TextFormatter().format(record("request", tokens=3, key=None, path="/v1/a b"))
    assert line.endswith('a.logger: request tokens=3 path="/v1/a b"')


# --- traces ---


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def spans(exporter: InMemorySpanExporter, tracer: Tracer) -> tuple[ReadableSpan, ...]:
    tracer.close()
    return exporter.get_finished_spans()


def test_a_request_is_a_span_with_its_numbers(ask: Ask, exporter: InMemorySpanExporter) -> None:
    tracer = Tracer("http://127.0.0.1:9/v1/traces", exporter)
    response = ask(RequestLog(trace=tracer))
    (span,) = spans(exporter, tracer)
    assert span.name == "generate /v1/completions"
    assert span.attributes is not None
    assert span.attributes["gen_ai.response.id"] == response.headers["x-request-id"]
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    assert span.attributes["rocmforge.resumed"] == 0
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.events[-1].timestamp <= span.end_time
    assert span.parent is None


def test_a_failure_marks_its_span(
    ask: Ask, engine: FakeEngine, exporter: InMemorySpanExporter
) -> None:
    engine.script = say([262], finish=FinishReason.DIED)
    tracer = Tracer("http://127.0.0.1:9/v1/traces", exporter)
    ask(RequestLog(trace=tracer))
    (span,) = spans(exporter, tracer)
    assert not span.status.is_ok


def test_a_span_belongs_to_the_clients_trace(
    engine: FakeEngine, exporter: InMemorySpanExporter
) -> None:
    tracer = Tracer("http://127.0.0.1:9/v1/traces", exporter)
    log = RequestLog(trace=tracer)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    client: Client
    with TestClient(build_app(make_model(engine), ApiSettings(), request_log=log)) as client:
        client.post("/v1/completions", json=BODY, headers={"traceparent": parent})
    (span,) = spans(exporter, tracer)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == parent.split("-")[1]


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "line"),
    [
        ("GET", "/nowhere", HEADERS, None, {"status": 404, "code": "unknown_url"}),
        ("GET", "/v1/completions", HEADERS, None, {"status": 405, "code": "method_not_allowed"}),
        ("POST", "/v1/completions", {}, BODY, {"status": 401, "code": "invalid_api_key"}),
        (
            *("POST", "/v1/completions", HEADERS, BODY | {"n": 0}),
            {"status": 400, "code": "invalid_value", "param": "n", "key": "api-key-1"},
        ),
        (
            *("POST", "/v1/messages", HEADERS, BODY),
            {"status": 400, "param": "messages", "key": "api-key-1"},
        ),
    ],
    ids=["path", "method", "key", "value", "Anthropic"],
)
def test_a_refused_request_is_one_line_without_what_it_says(
    lines: Any, engine: FakeEngine, method: str, path: str, headers: Any, body: Any, line: Any
) -> None:
    app = build_app(make_model(engine), ApiSettings(), Keyring(given_keys([SECRET])))
    with TestClient(app) as client:
        client.request(method, path, json=body, headers=headers)
    (logged,) = lines()
    assert (logged["method"], logged["path"]) == (method, path)
    assert logged | line == logged
    assert "private words" not in str(logged)


def test_the_time_before_a_request_reaches_the_engine_is_no_time_in_its_queue(
    ask: Ask, lines: Any, engine: FakeEngine
) -> None:
    def script(request: GenerateRequest) -> list[tuple[TokenEvent, ...]]:
        submitted_ns = time.monotonic_ns()
        timing = RequestTiming(
            arrival_ns=submitted_ns,
            scheduled_ns=submitted_ns + 250_000_000,
            first_token_ns=submitted_ns + 250_000_001,
            finished_ns=submitted_ns + 250_000_002,
        )
        last = TokenEvent(request_id=0, finish_reason=FinishReason.LENGTH, timing=timing)
        return [(last,)]

    engine.script = script
    ask()
    (line,) = lines()
    assert line["queue_s"] == 0.25
    assert line["scheduled_s"] > 0.25
