"""A Ray cluster serves a model with two replicas, one of which is killed, then all are replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rocmforge.ray.serve_args import read_settings
from tests.support.models.speaking import write_speaking
from tests.support.processes.ray_cluster import RayCluster, ray_cluster
from tests.support.processes.server import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEQUENCES = 8  # of a replica at once
STREAMS = 32
NAME = "tiny"
REPLICA = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5, "num_gpus": 0}}
PATIENCE_S = 60.0
ATTEMPTS = 5


class Collector(ThreadingHTTPServer):
    """Takes the traces of all replicas."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Export)
        self.bodies: Queue[bytes] = Queue()
        self.url = f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Export(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def args(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> dict[str, Any]:
    path = write_speaking(tmp_path_factory.mktemp("model"), "llama")
    return {
        "model": [f"{NAME}={path}"],
        "backend": "tests.support.fakes.fake_backend:create_slow",
        "max_sequences": SEQUENCES,
        "otlp_endpoint": collector.url,
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, args: dict[str, Any]) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("ray")) as running:
        running.deploy(args, REPLICA)
        yield running


@dataclass
class Stream:
    """What a client saw of one stream."""

    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of each
    error: dict[str, Any] | None = None
    is_done: bool = False
    headers: httpx.Headers = field(default_factory=httpx.Headers)


def body(prompt: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}


def follow(url: str, request: dict[str, Any], begun: Queue[int] | None = None) -> Stream:
    """Reads one stream to its end."""
    seen = Stream()
    wanted = {**request, "stream": True}
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=wanted, timeout=PATIENCE_S, verify=False
    ) as response:
        assert response.status_code == 200, response.read()
        seen.headers = response.headers
        for line in response.iter_lines():
            if line == "data: [DONE]":
                seen.is_done = True
            elif line.startswith("data: "):
                _note(seen, json.loads(line.removeprefix("data: ")), begun)
    return seen


def _note(seen: Stream, event: dict[str, Any], begun: Queue[int] | None) -> None:
    if "error" in event:
        seen.error = event["error"]
        return
    if not seen.texts and begun is not None:
        begun.put(1)
    seen.texts.append(event["choices"][0]["text"])
    seen.times.append(time.monotonic())


def post(cluster: RayCluster, path: str, **kind: Any) -> httpx.Response:
    return httpx.post(cluster.url + path, timeout=PATIENCE_S, verify=False, **kind)


def wait_for(cluster: RayCluster, pattern: str) -> re.Match[str]:
    """Waits for something in the log of the cluster; Ray brings lines of other processes late."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := re.search(pattern, cluster.log)):
        assert time.monotonic() < deadline, f"no {pattern} in\n{cluster.log[-5000:]}"
        time.sleep(0.1)
    return found


# --- what does no harm ---


def test_a_stream_arrives_while_it_is_made(cluster: RayCluster) -> None:
    gap_s = 0.02  # of a step
    for _ in range(ATTEMPTS):  # a client that a busy machine keeps waiting finds more at once
        seen = follow(cluster.url, body("Tell me", 50))
        assert seen.is_done
        takes_its_time = seen.times[-1] - seen.times[0] > 25 * gap_s
        if takes_its_time and len({round(at, 2) for at in seen.times}) > 10:
            return
    raise AssertionError(f"texts came at {seen.times}")


def test_a_request_has_one_id_for_client_and_logs(cluster: RayCluster) -> None:
    answer = post(cluster, "/v1/completions", json=body("x", 2), headers={"x-request-id": "mine-1"})
    assert answer.headers.get_list("x-request-id") == ["mine-1"]
    made = answer.json()["id"]
    assert answer.headers["request-id"] == made
    wait_for(cluster, rf'request {made} .*given_id="mine-1"')


def test_a_request_is_part_of_the_clients_trace(cluster: RayCluster, collector: Collector) -> None:
    trace, parent = os.urandom(16), os.urandom(8)
    headers = {"traceparent": f"00-{trace.hex()}-{parent.hex()}-01"}
    made = post(cluster, "/v1/completions", json=body("x", 2), headers=headers).json()["id"]
    found = None
    while found is None:
        request = ExportTraceServiceRequest.FromString(collector.bodies.get(timeout=PATIENCE_S))
        spans = (s for r in request.resource_spans for i in r.scope_spans for s in i.spans)
        found = next((span for span in spans if span.trace_id == trace), None)
    assert found.parent_span_id == parent
    assert made in str(found.attributes)


def test_errors_are_those_of_the_api(cluster: RayCluster) -> None:
    answer = post(cluster, "/v1/completions", json={"model": "other", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    large = post(cluster, "/v1/messages", content=b" " * (17 << 20))
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")


def test_prompts_that_begin_alike_go_to_the_replica_that_has_the_beginning(
    cluster: RayCluster,
) -> None:
    beginnings = [f"{number}: " + "once upon a time " * 40 for number in range(4)]
    hits = 0
    for round_ in range(4):
        for beginning in beginnings:
            answer = post(cluster, "/v1/completions", json=body(f"{beginning}{round_}", 1))
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            hits += cached > 500
    assert hits == 3 * len(beginnings)  # all but the first of each


def test_a_stored_response_is_found_wherever_it_is(cluster: RayCluster) -> None:
    request = {"model": NAME, "input": "Hello", "max_output_tokens": 16}
    first = post(cluster, "/v1/responses", json=request).json()
    assert first["id"].startswith("resp_")
    url = f"{cluster.url}/v1/responses/{first['id']}"
    for _ in range(6):
        again = httpx.get(url, verify=False, timeout=PATIENCE_S)
        assert again.status_code == 200
    next_ = post(cluster, "/v1/responses", json={**request, "previous_response_id": first["id"]})
    assert next_.status_code == 200, next_.text


def test_who_leaves_ends_the_generation(cluster: RayCluster) -> None:
    request = {**body("Go on", 2000), "stream": True}
    headers, url = {"x-request-id": "gone-1"}, f"{cluster.url}/v1/completions"
    with httpx.stream("POST", url, json=request, headers=headers, timeout=PATIENCE_S) as response:
        next(response.iter_lines())
    ended = wait_for(cluster, r'.*completions .*: (\S+), .* \+ (\d+) tokens.*given_id="gone-1"')
    assert int(ended[2]) < 1000


# --- what ends replicas ---


def test_a_killed_replica_loses_nothing_that_had_not_begun(cluster: RayCluster) -> None:
    """Half of the streams wait for a place in an engine when one replica is killed."""
    begun: Queue[int] = Queue()
    victim = min(cluster.replicas().values())
    with ThreadPoolExecutor(STREAMS) as threads:
        streams = [
            threads.submit(follow, cluster.url, body(f"{number} is", 100), begun)
            for number in range(STREAMS)
        ]
        for _ in range(SEQUENCES + 2):  # some of each replica speak
            begun.get(timeout=PATIENCE_S)
        os.kill(victim, signal.SIGKILL)
        seen = [each.result() for each in streams]
    check_ends(seen)
    broken = [each for each in seen if each.error]
    assert 1 <= len(broken) <= SEQUENCES, "as many as one engine computes at once"
    assert {each.error["code"] for each in broken if each.error} == {"engine_died"}
    assert all(each.texts for each in broken), "none of them had not begun"
    assert "engine_died" not in {each.error and each.error["code"] for each in seen if each.is_done}
    cluster.wait_for_replicas(2)


def check_ends(streams: Sequence[Stream]) -> None:
    for each in streams:
        assert each.is_done != (each.error is not None), "a stream ends in exactly one way"


def test_an_update_replaces_all_replicas_and_fails_no_request(
    cluster: RayCluster, args: dict[str, Any]
) -> None:
    before = cluster.wait_for_replicas(2)
    over = threading.Event()

    def ask_on(number: int) -> int:
        count = 0
        while not over.is_set():
            seen = follow(cluster.url, body(f"{number} {count}", 40))
            assert seen.is_done
            assert seen.error is None
            count += 1
        return count

    with ThreadPoolExecutor(4) as threads:
        asking: list[Future[int]] = [threads.submit(ask_on, number) for number in range(4)]
        try:
            cluster.deploy({**args, "max_waiting": 100}, REPLICA)
        finally:
            over.set()
        counts = [each.result() for each in asking]
    assert min(counts) > 3
    assert not before.keys() & cluster.wait_for_replicas(2).keys()


# --- what the documentation shows ---


def test_the_configuration_of_the_page_is_one(cluster: RayCluster) -> None:
    page = (ROOT / "docs/ray.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    config = yaml.safe_load(shown)
    cluster.ask(do="check", config=config)
    (application,) = config["applications"]
    settings = read_settings(application["args"])
    assert settings.models
