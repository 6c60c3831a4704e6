"""/metrics, read with Prometheus' own parsers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from litestar.testing import TestClient
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import FinishReason
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model, say

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def scrape(client: Client) -> list[Sample]:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return [sample for family in parse_text(response.text) for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    found = [s for s in samples if s.name == name and labels.items() <= s.labels.items()]
    assert len(found) == 1, (name, labels, found)
    return found[0].value


@pytest.fixture
def vllm_client(engine: FakeEngine) -> Any:
    app = build_app(make_model(engine), ApiSettings(vllm_metrics=True))
    with TestClient(app) as client:
        yield client


def test_a_finished_request_is_counted_everywhere(client: Client, chat: Any) -> None:
    chat(n=2, max_tokens=50)
    samples = scrape(client)
    ours = {"model_name": "tiny", "engine": "0"}
    assert value(samples, "rocmforge_prompt_tokens_total", **ours) == 32
    assert value(samples, "rocmforge_generation_tokens_total", **ours) == 6
    assert value(samples, "rocmforge_request_success_total", finished_reason="stop") == 2
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_max_tokens",
    ):
        assert value(samples, f"rocmforge_{name}_count", **ours) == 2, name
    assert value(samples, "rocmforge_inter_token_latency_seconds_count", **ours) == 4
    assert value(samples, "rocmforge_request_params_n_sum", **ours) == 2
    assert value(samples, "rocmforge_request_generation_tokens_sum", **ours) == 6


def test_how_a_sequence_ended_is_told_apart(client: Client, engine: FakeEngine, chat: Any) -> None:
    engine.script = say([262], finish=FinishReason.LENGTH)
    chat()
    engine.script = say([262], finish=FinishReason.ERROR)
    chat()
    engine.script = say([262], [267], [262])
    chat(stop="world")
    samples = scrape(client)
    for reason in ("length", "error", "stop"):
        name = "rocmforge_request_success_total"
        assert value(samples, name, finished_reason=reason) == 1, reason


def test_no_less_is_known_of_a_sequence_that_a_stop_string_ends(
    client: Client, engine: FakeEngine, chat: Any
) -> None:
    engine.script = say([262], [267], [262])
    usage = chat(stop="world").json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3
    samples = scrape(client)
    for part in ("queue", "prefill", "decode", "inference"):
        assert value(samples, f"rocmforge_request_{part}_time_seconds_count") == 1, part


def test_the_engines_own_numbers_are_read_at_scrape_time(
    client: Client, engine: FakeEngine
) -> None:
    engine.restarts = 3
    samples = scrape(client)
    assert value(samples, "rocmforge_num_requests_running") == 0
    assert value(samples, "rocmforge_kv_cache_usage_perc") == 0
    assert value(samples, "rocmforge_engine_restarts_total") == 3
    assert value(samples, "rocmforge_engine_ready") == 1
    assert value(samples, "rocmforge_build_info", backend="fake", fallback="false") == 1
    assert value(samples, "rocmforge_cache_config_info", block_size="16") == 1
    assert value(samples, "rocmforge_decode_graphs_info", state="checked") == 1


def test_metrics_are_there_while_loading(client: Client, engine: FakeEngine) -> None:
    engine.runner = None
    assert value(scrape(client), "rocmforge_build_info", backend="") == 1


def test_inter_token_buckets_begin_at_a_quarter_of_a_millisecond(client: Client) -> None:
    edges = [
        float(s.labels["le"])
        for s in scrape(client)
        if s.name == "rocmforge_inter_token_latency_seconds_bucket"
    ]
    assert edges[0] == 0.00025
    assert sum(edge < 0.01 for edge in edges) >= 8


def test_vllms_names_are_off_unless_asked_for(client: Client) -> None:
    assert not [s for s in scrape(client) if s.name.startswith("vllm:")]


def test_vllms_names_carry_the_same_values_with_vllms_buckets(vllm_client: Client) -> None:
    vllm_client.post("/v1/chat/completions", json=BODY)
    samples = scrape(vllm_client)
    labels = {"model_name": "tiny", "engine": "0"}
    for name in ("prompt_tokens_total", "generation_tokens_total", "num_requests_running"):
        ours = value(samples, f"rocmforge_{name}", **labels)
        assert value(samples, f"vllm:{name}", **labels) == ours
    assert value(samples, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(samples, "vllm:cache_config_info", block_size="16") == 1
    edges = [s.labels["le"] for s in samples if s.name == "vllm:inter_token_latency_seconds_bucket"]
    # vllm/v1/metrics/loggers.py
    assert edges == [
        *("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5", "0.75"),
        *("1.0", "2.5", "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "+Inf"),
    ]
    assert value(samples, "vllm:inter_token_latency_seconds_bucket", le="+Inf") == value(
        samples, "vllm:inter_token_latency_seconds_count"
    )


def test_what_only_we_have_is_not_given_vllms_prefix(vllm_client: Client) -> None:
    names = {s.name for s in scrape(vllm_client)}
    assert "rocmforge_engine_restarts_total" in names
    assert not {n for n in names if n.startswith(("vllm:engine", "vllm:build", "vllm:process"))}


def test_openmetrics_is_spoken_to_those_who_ask(vllm_client: Client) -> None:
    vllm_client.post("/v1/chat/completions", json=BODY)
    accept = "application/openmetrics-text; version=1.0.0"
    response = vllm_client.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    parsed = parse_openmetrics(response.text)  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    assert families["rocmforge_prompt_tokens"].type == "counter"


def test_two_servers_in_one_process_do_not_share_numbers(chat: Any) -> None:
    chat()
    other = make_model(FakeEngine())
    with TestClient(build_app(other, ApiSettings())) as client:
        assert value(scrape(client), "rocmforge_prompt_tokens_total") == 0


@pytest.fixture
def promtool() -> Callable[[bytes], subprocess.CompletedProcess[str]]:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed; it comes with Debian's package prometheus")

    def check(text: bytes) -> subprocess.CompletedProcess[str]:
        command = [path, "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        return subprocess.CompletedProcess(
            command, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return check


def test_promtool_finds_nothing_to_say(client: Client, chat: Any, promtool: Any) -> None:
    chat(n=2)
    result = promtool(client.get("/metrics").content)
    assert result.returncode == 0, result.stdout + result.stderr


def test_answers_with_an_error_status_are_counted(client: Client, complete: Any) -> None:
    complete(max_tokens=-1)
    complete(max_tokens=-2)
    client.get("/nowhere")
    samples = scrape(client)
    assert value(samples, "rocmforge_request_errors_total", status="400") == 2
    assert value(samples, "rocmforge_request_errors_total", status="404") == 1


def test_an_error_is_a_models_only_if_the_request_names_it(client: Client, complete: Any) -> None:
    complete(temperature=-1)  # refused before the model is looked for
    complete(prompt=[10**6])
    client.get("/favicon.ico")
    text = client.get("/metrics").text
    errors = {line for line in text.splitlines() if line.startswith("rocmforge_request_errors_t")}
    assert errors == {
        'rocmforge_request_errors_total{engine="",model_name="",status="400"} 1.0',
        'rocmforge_request_errors_total{engine="",model_name="",status="404"} 1.0',
        'rocmforge_request_errors_total{engine="0",model_name="tiny",status="400"} 1.0',
    }
