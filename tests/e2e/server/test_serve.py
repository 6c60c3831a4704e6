"""`rocmforge serve` as an operator sees it: start, refusals, signals."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from openai import OpenAI, Stream
from openai.types import Completion

from tests.e2e.conftest import SMOLLM2_NAME, serve_command
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.model


def rocmforge(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "rocmforge", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def client(smollm2_server: LiveServer) -> Iterator[OpenAI]:
    """Of a server that all tests share."""
    with openai_client(smollm2_server) as client:
        yield client


def openai_client(server: LiveServer) -> OpenAI:
    """A client of the official SDK; use it as a context manager."""
    return OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


@contextmanager
def asked_to_end(
    command: Sequence[str], log: Path, max_tokens: int
) -> Iterator[tuple[LiveServer, Stream[Completion]]]:
    """A server that has had SIGTERM, and an answer of which it has sent a part."""
    with LiveServer(command, log) as server, openai_client(server) as client:
        stream = client.completions.create(
            model=SMOLLM2_NAME,
            prompt="1, 2, 3, 4, 5,",
            temperature=0,
            max_tokens=max_tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        yield server, stream


def test_a_chat_answer_comes_from_the_model(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=SMOLLM2_NAME,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=24,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_the_backend_is_named_in_the_fingerprint(client: OpenAI) -> None:
    answer = client.completions.create(model=SMOLLM2_NAME, prompt="The", max_tokens=1)
    assert answer.system_fingerprint is not None
    assert "reference" in answer.system_fingerprint


def test_steps_with_prompts_are_predicted(smollm2_server: LiveServer, client: OpenAI) -> None:
    """The default of `--max-stall` has reached the scheduler."""
    for prompt in ("One, two, three, four", "Red, green, blue, yellow"):
        client.completions.create(model=SMOLLM2_NAME, prompt=prompt, max_tokens=1)
    metrics = smollm2_server.get("/metrics").text
    found = re.search(r"^rocmforge_engine_prompt_step_seconds_total\{.*\} (\S+)$", metrics, re.M)
    assert found is not None
    assert float(found[1]) > 0


def test_sigterm_lets_a_running_stream_finish_and_exits_with_0(
    smollm2_path: Path, tmp_path: Path
) -> None:
    with asked_to_end(serve_command(smollm2_path), tmp_path / "log", 24) as (server, stream):
        rest = list(stream)
        assert rest[-1].choices[0].finish_reason == "length"
        assert server.process.wait(120) == 0


def test_a_draining_server_takes_nothing_new(smollm2_path: Path, tmp_path: Path) -> None:
    with asked_to_end(serve_command(smollm2_path), tmp_path / "log", 200) as (server, stream):
        while server.get("/ready").status_code == 200:
            pass
        body = {"model": SMOLLM2_NAME, "prompt": "x"}
        refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        stream.close()
        assert server.process.wait(120) == 0


def test_a_second_signal_ends_it_at_once(smollm2_path: Path, tmp_path: Path) -> None:
    command = serve_command(smollm2_path, "--drain-timeout", "600")
    with asked_to_end(command, tmp_path / "log", 2000) as (server, _):
        while server.get("/ready").status_code == 200:
            pass
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


def test_a_public_address_without_a_key_is_refused(smollm2_path: Path) -> None:
    result = rocmforge("serve", str(smollm2_path), "--host", "0.0.0.0")
    assert result.returncode == 2
    assert "--api-key" in result.stderr


def test_a_taken_port_is_refused_before_anything_is_loaded(smollm2_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = rocmforge("serve", str(smollm2_path), "--port", str(port))
    assert result.returncode == 2
    assert f"port {port}" in result.stderr


def test_a_file_that_is_no_model_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "notes.gguf"
    file.write_text("not a model")
    result = rocmforge("serve", str(file), "--port", "0")
    assert result.returncode == 1
    assert "notes.gguf" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_backend_without_a_device_is_refused_when_asked_for_by_name(
    smollm2_path: Path,
) -> None:
    result = rocmforge("serve", str(smollm2_path), "--port", "0", "--backend", "no-such-backend")
    assert result.returncode == 2
    assert "no-such-backend" in result.stderr


def test_a_cache_that_does_not_fit_is_refused_with_sizes(smollm2_path: Path) -> None:
    result = rocmforge(
        *("serve", str(smollm2_path), "--port", "0"),
        *("--backend", "reference", "--kv-blocks", "100000000"),
    )
    assert result.returncode == 1
    assert "MiB may be used" in result.stderr


def test_run_answers_one_prompt_on_standard_output(smollm2_path: Path) -> None:
    result = rocmforge(
        *("run", str(smollm2_path), "What is the capital of France?"),
        *("--backend", "reference", "--max-context", "2048", "--max-sequences", "1"),
        *("--temperature", "0", "--max-tokens", "24"),
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout


def test_bench_reports_rates_for_each_number_of_streams(smollm2_path: Path) -> None:
    result = rocmforge(
        *("bench", str(smollm2_path), "--backend", "reference", "--max-context", "256"),
        *("--prompt-tokens", "8", "--output-tokens", "4", "--streams", "1", "2"),
        *("--repeat", "1"),
    )
    assert result.returncode == 0, result.stderr
    assert "decode tok/s" in result.stdout
