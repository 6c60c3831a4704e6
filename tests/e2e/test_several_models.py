"""Two real models in one server: side by side, unloaded under load, killed, idle, and gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.server import LiveServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

PATIENCE_S = 240.0
TOKENS = 16
PROMPT = "1, 2, 3, 4,"
CONFIG = """
backend = "reference"
max_context = 256
max_sequences = 4
drain_timeout = 120

[models.chat]
path = "{smollm2}"
aliases = ["gpt-4o"]

[models.lazy]
path = "{gemma3}"
load = "request"
idle_unload = 3
"""


@pytest.fixture(scope="module")
def server(
    smollm2_path: Path, gemma3_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "rocmforge.toml"
    config.write_text(CONFIG.format(smollm2=smollm2_path, gemma3=gemma3_path))
    command = ("-m", "rocmforge", "serve", "--config", str(config), "--port", "{port}")
    shared = set(os.listdir("/dev/shm"))
    with LiveServer(command, folder / "log") as server:
        yield server
        pids = engines(server)
        assert server.stop(PATIENCE_S) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(os.listdir("/dev/shm")) <= shared


@pytest.fixture(scope="module")
def sdk(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE_S
    )


@pytest.fixture(scope="module")
def alone(sdk: openai.OpenAI) -> dict[str, str]:
    """What each model says when nobody else asks."""
    return {model: stream(sdk, model)[0] for model in ("chat", "lazy")}


def stream(
    sdk: openai.OpenAI, model: str, begun: Future[None] | None = None
) -> tuple[str, str | None]:
    """The text of a stream, and the code of the error that ended it."""
    text = ""
    chunks = sdk.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    try:
        for chunk in chunks:
            text += chunk.choices[0].text
            if begun is not None and not begun.done():
                begun.set_result(None)
    except openai.APIError as error:
        return text, error.code
    return text, None


def state(server: LiveServer, model: str) -> str:
    state: str = httpx.get(f"{server.url}/v1/models/{model}").json()["state"]
    return state


def until(server: LiveServer, model: str, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while state(server, model) != wanted:
        assert time.monotonic() < deadline, f"{model} is {state(server, model)}"
        time.sleep(0.05)


def unload(server: LiveServer, model: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/models/{model}/unload", timeout=PATIENCE_S)


def engines(server: LiveServer) -> list[int]:
    """The processes that run engines."""
    folder = Path(f"/proc/{server.process.pid}/task")
    children = [pid for file in folder.glob("*/children") for pid in file.read_text().split()]
    return [
        int(pid)
        for pid in children
        if b"rocmforge.engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_both_speak_at_once_as_they_do_alone(sdk: openai.OpenAI, alone: dict[str, str]) -> None:
    models = ["chat", "lazy"] * 3
    with ThreadPoolExecutor(len(models)) as pool:
        told = list(pool.map(lambda model: stream(sdk, model), models))
    assert told == [(alone[model], None) for model in models]


def test_requests_that_come_together_wait_for_one_load(
    server: LiveServer, sdk: openai.OpenAI, alone: dict[str, str]
) -> None:
    unload(server, "lazy")
    before = server.log.count("lazy was loaded")
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda model: stream(sdk, model), ["lazy"] * 4))
    assert told == [(alone["lazy"], None)] * 4
    assert server.log.count("lazy was loaded") == before + 1


def test_unloading_lets_streams_end_and_disturbs_nobody_else(
    server: LiveServer, sdk: openai.OpenAI, alone: dict[str, str]
) -> None:
    begun: dict[str, Future[None]] = {"chat": Future(), "lazy": Future()}
    with ThreadPoolExecutor(2) as pool:
        running = {model: pool.submit(stream, sdk, model, begun[model]) for model in begun}
        for speaks in begun.values():
            speaks.result(PATIENCE_S)
        answer = unload(server, "lazy")
        assert (answer.status_code, answer.json()["state"]) == (200, "unloaded")
        for model, each in running.items():
            assert each.result() == (alone[model], None)


def test_a_killed_engine_takes_only_its_own_streams_along(
    server: LiveServer, sdk: openai.OpenAI, alone: dict[str, str]
) -> None:
    unload(server, "lazy")
    (chat_pid,) = engines(server)
    begun: dict[str, Future[None]] = {"chat": Future(), "lazy": Future()}
    with ThreadPoolExecutor(2) as pool:
        lazy = pool.submit(stream, sdk, "lazy", begun["lazy"])
        begun["lazy"].result(PATIENCE_S)
        chat = pool.submit(stream, sdk, "chat", begun["chat"])
        begun["chat"].result(PATIENCE_S)
        os.kill(chat_pid, signal.SIGKILL)
        text, code = chat.result()
        assert code == "engine_died"
        assert alone["chat"].startswith(text)
        assert lazy.result() == (alone["lazy"], None)
    until(server, "chat", "ready")
    assert stream(sdk, "chat") == (alone["chat"], None)


def test_an_idle_model_goes_and_comes_back_when_asked_for(
    server: LiveServer, sdk: openai.OpenAI, alone: dict[str, str]
) -> None:
    stream(sdk, "lazy")
    until(server, "lazy", "unloaded")
    assert len(engines(server)) == 1
    assert stream(sdk, "lazy") == (alone["lazy"], None)


def test_no_file_stays_open_when_a_model_has_gone(server: LiveServer, sdk: openai.OpenAI) -> None:
    def held() -> int:
        unload(server, "lazy")
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    stream(sdk, "lazy")
    files = held()
    for _ in range(2):
        stream(sdk, "lazy")
    deadline = time.monotonic() + PATIENCE_S
    while held() > files:  # connections of clients that have just left
        assert time.monotonic() < deadline, f"{held() - files} files more than before"
        time.sleep(0.05)
