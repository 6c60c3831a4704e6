"""What is scraped, alarmed on and shown: every query must find data on a live server."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rocmforge.api.metrics.engine import PREFIX
from rocmforge.api.metrics.proof import FAMILIES
from tests.api.live import live_server
from tests.docker.files import DOCKER, load
from tests.docker.queries import Variable, filled, metrics_in, panel_queries, rules, variables
from tests.support.fakes.fake_backend import BUS_ID
from tests.support.files.device_tree import DeviceTree
from tests.support.processes.server import PATIENCE_S, LiveServer, port_of, reserved_port

KEY = "a key for metrics"


def installed(name: str) -> str:
    """The path of one of Prometheus's programs."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: see .ci/fetch-prometheus")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    command = [installed("promtool"), *arguments]
    done = subprocess.run(
        command, cwd=DOCKER / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A running Prometheus that scrapes one server each second."""

    def __init__(self, target: LiveServer, folder: Path) -> None:
        program = installed("prometheus")
        self._reserved = reserved_port()
        self._url = f"http://127.0.0.1:{port_of(self._reserved)}"
        config = load("prometheus/prometheus.yml")
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(DOCKER / "prometheus/rules.yml")]
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{target.port}"]}]
        job["authorization"]["credentials_file"] = str(folder / "key")
        (folder / "key").write_text(KEY)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._url.removeprefix('http://')}",
            "--log.level=warn",
        ]

    def __enter__(self) -> Prometheus:
        self._process = subprocess.Popen(self._command)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reserved.close()

    def get(self, path: str, **parameters: str) -> httpx.Response:
        """What its API says."""
        url = f"{self._url}/api/v1/{path}"
        return httpx.get(url, params=parameters, timeout=PATIENCE_S, verify=False)

    def query(self, expression: str) -> list[Any]:
        """The samples an expression has now; none while Prometheus is starting."""
        try:
            answer = self.get("query", query=expression)
        except httpx.TransportError:
            return []
        if answer.status_code == 503:
            return []
        body = answer.json()
        assert body["status"] == "success", body
        result: list[Any] = body["data"]["result"]
        return result

    def wait_for(self, expression: str) -> None:
        """Until it has a sample."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.query(expression):
            assert time.monotonic() < deadline, f"no data for {expression}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen answers, errors, a reused prompt and a device with sensors."""
    folder = tmp_path_factory.mktemp("prometheus")
    DeviceTree(folder / "machine", BUS_ID)
    device = ("--backend", "create_measured", "--root", str(folder / "machine"))
    with live_server(folder / "log", "--api-key", KEY, *device) as server:
        headers = {"authorization": f"Bearer {KEY}"}
        with Prometheus(server, folder) as running:
            running.wait_for('up{job="rocmforge"} == 1')
            for unusual in ({}, {}, {"suffix": "."}):  # the last is refused
                body = {"model": "tiny", "prompt": "hello " * 40, "max_tokens": 8} | unusual
                url = f"{server.url}/v1/completions"
                httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S, verify=False)
            # Rates need two samples of a series, and rules one evaluation more.
            running.wait_for("rate(rocmforge_request_errors_total[20s])")
            running.wait_for("rocmforge:error_ratio or rocmforge:inter_token_latency_seconds:p95")
            yield running


@pytest.mark.slow
@pytest.mark.parametrize("query", panel_queries())
def test_a_panel_shows_something(prometheus: Prometheus, query: str) -> None:
    prometheus.wait_for(filled(query))


@pytest.mark.slow
@pytest.mark.parametrize("variable", variables(), ids=lambda variable: variable.name)
def test_a_choice_offers_what_is_served(prometheus: Prometheus, variable: Variable) -> None:
    answer = prometheus.get(f"label/{variable.label}/values", **{"match[]": filled(variable.of)})
    assert len(answer.json()["data"]) == 1
    if variable.name == "model":
        assert answer.json()["data"] == ["tiny"]


@pytest.mark.slow
@pytest.mark.parametrize("query", [q for q in rules("record").values() if "error" not in q])
def test_a_recorded_rule_has_a_value(prometheus: Prometheus, query: str) -> None:
    prometheus.wait_for(query)


@pytest.mark.slow
def test_alerts_watch_metrics_that_exist(prometheus: Prometheus) -> None:
    known = set(prometheus.get("label/__name__/values").json()["data"])
    known |= {PREFIX + name for name in FAMILIES}  # which this server has none of
    watched = {name for rule in rules("alert").values() for name in metrics_in(rule)}
    assert len(watched - rules("record").keys()) >= 6
    assert watched - rules("record").keys() - known == set()


@pytest.mark.slow
def test_a_healthy_server_raises_no_alarm(prometheus: Prometheus) -> None:
    def states() -> dict[str, str]:
        groups = prometheus.get("rules").json()["data"]["groups"]
        return {r["name"]: r["state"] for each in groups for r in each["rules"] if "state" in r}

    assert "RocmForgeDown" in states()
    deadline = time.monotonic() + PATIENCE_S
    # A server that a busy machine kept from answering a scrape in its second is suspected of being
    # down until the next.
    while set(states().values()) != {"inactive"}:
        assert time.monotonic() < deadline, states()
        time.sleep(0.2)
