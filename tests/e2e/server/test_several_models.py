"""Two models in one server: side by side, unloaded under load, killed, idle, and gone.

A real model and its first layers on the reference backend, and tiny ones that share a device of
the HIP backend.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.api import tiny
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf
from tests.support.models.hip import fitting
from tests.support.models.shallow import write_shallow
from tests.support.processes.children import ENGINE, children
from tests.support.processes.server import LiveServer

PATIENCE_S = 240.0
COMPARED = 200
"""Characters of an answer: some thirty tokens."""
PROMPT = "Once upon a time,"
ADDING = ("attn_output.weight", "ffn_down.weight")
SHY = np.float32(0.01)
CONFIG = """
backend = "{backend}"
max_context = {context}
max_sequences = 4
drain_timeout = 120
{graphs}

[models.chat]
path = "{chat}"
aliases = ["gpt-4o"]

[models.lazy]
path = "{lazy}"
load = "request"
idle_unload = 3
"""


@dataclass(frozen=True)
class Pair:
    """Two models, and how long answers must be for something to happen meanwhile."""

    backend: str
    chat: Path
    lazy: Path
    tokens: Mapping[str, int]  # by model


@pytest.fixture(
    scope="module",
    params=[pytest.param("reference", marks=[pytest.mark.model, pytest.mark.slow]), "hip"],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("models")
    if request.param == "reference":
        smollm2 = request.getfixturevalue("smollm2_path")
        # Loaded again and again, so it has a fifth of the layers; and it says more, as it is fast.
        lazy = write_shallow(smollm2, 6, folder / "shallow.gguf")
        return Pair("reference", chat=smollm2, lazy=lazy, tokens={"chat": 16, "lazy": 40})
    is_host = request.getfixturevalue("host") is not None
    return Pair(
        "hip",
        chat=write_speaking(folder, "llama"),
        lazy=write_speaking(folder, "qwen3"),
        tokens=dict.fromkeys(("chat", "lazy"), 32 if is_host else 2000),
    )


def write_speaking(folder: Path, name: str) -> Path:
    """A tiny model with a tokenizer and a long context.

    What it says depends on the last token most of all: rounding, which is another in another batch,
    does not decide for it.
    """
    model = fitting(by_name(name))
    sizes = {"vocab_size": tiny.VOCAB_SIZE, "max_position_embeddings": 4096}
    model = replace(model, config=model.config | sizes)
    text: dict[str, Any] = tiny.metadata()
    text["tokenizer.ggml.token_type"] = np.array(text["tokenizer.ggml.token_type"], np.int32)
    tensors = {
        name: values * SHY if name.endswith(ADDING) else values
        for name, values in gguf_tensors(model).items()
    }
    return write_gguf(folder / f"{name}.gguf", gguf_metadata(model) | text, tensors)


@pytest.fixture(scope="module")
def server(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "rocmforge.toml"
    context = max(256, 2 * max(pair.tokens.values()))
    # Graphs are checked in other tests; here, each of many loads would wait for that.
    graphs = 'graphs = "on"' if pair.backend == "hip" else ""
    config.write_text(
        CONFIG.format(
            backend=pair.backend, context=context, graphs=graphs, chat=pair.chat, lazy=pair.lazy
        )
    )
    command = ("-m", "rocmforge", "serve", "--config", str(config), "--port", "{port}")
    shared = set(os.listdir("/dev/shm"))
    with LiveServer(command, folder / "log") as server:
        yield server
        pids = engines(server)
        assert server.stop(PATIENCE_S) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(os.listdir("/dev/shm")) <= shared
    assert "host platform:" not in server.log  # what it finds wrong


class Asker:
    """Asks each model for streams of one length."""

    def __init__(self, sdk: openai.OpenAI, tokens: Mapping[str, int]) -> None:
        self._sdk = sdk
        self._tokens = tokens

    def stream(self, model: str, begun: Future[None] | None = None) -> tuple[str, str | None]:
        """The text of a stream, and the code of the error that ended it."""
        text = ""
        chunks = self._sdk.completions.create(
            model=model,
            prompt=PROMPT,
            max_tokens=self._tokens[model],
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


@pytest.fixture(scope="module")
def asker(server: LiveServer, pair: Pair) -> Iterator[Asker]:
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=PATIENCE_S) as sdk:
        yield Asker(sdk, pair.tokens)


@pytest.fixture(scope="module")
def alone(asker: Asker) -> dict[str, str]:
    """What each model says when nobody else asks."""
    said = {model: asker.stream(model)[0] for model in ("chat", "lazy")}
    assert said["chat"] != said["lazy"]
    return said


def state(server: LiveServer, model: str) -> str:
    state: str = server.get(f"/v1/models/{model}").json()["state"]
    return state


def until(server: LiveServer, model: str, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while state(server, model) != wanted:
        assert time.monotonic() < deadline, f"{model} is {state(server, model)}"
        time.sleep(0.05)


def unload(server: LiveServer, model: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/models/{model}/unload", timeout=PATIENCE_S, verify=False)


def engines(server: LiveServer) -> list[int]:
    """The processes that run engines."""
    return children(server.process.pid, ENGINE)


def test_both_speak_at_once_as_they_do_alone(asker: Asker, alone: dict[str, str]) -> None:
    models = ["chat", "lazy"] * 3
    with ThreadPoolExecutor(len(models)) as pool:
        told = list(pool.map(asker.stream, models))
    assert [problem for _, problem in told] == [None] * len(models)
    # Far on, a near tie may fall otherwise in another batch.
    begin = [text[:COMPARED] for text, _ in told]
    assert begin == [alone[model][:COMPARED] for model in models]


def test_requests_that_come_together_wait_for_one_load(
    server: LiveServer, asker: Asker, alone: dict[str, str]
) -> None:
    unload(server, "lazy")
    before = server.log.count("lazy was loaded")
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(asker.stream, ["lazy"] * 4))
    assert told == [(alone["lazy"], None)] * 4
    assert server.log.count("lazy was loaded") == before + 1


def test_unloading_lets_streams_end_and_disturbs_nobody_else(
    server: LiveServer, asker: Asker, alone: dict[str, str]
) -> None:
    begun: dict[str, Future[None]] = {"chat": Future(), "lazy": Future()}
    with ThreadPoolExecutor(2) as pool:
        running = {model: pool.submit(asker.stream, model, begun[model]) for model in begun}
        for speaks in begun.values():
            speaks.result(PATIENCE_S)
        answer = unload(server, "lazy")
        assert (answer.status_code, answer.json()["state"]) == (200, "unloaded")
        for model, each in running.items():
            assert each.result() == (alone[model], None)


def test_a_killed_engine_takes_only_its_own_streams_along(
    server: LiveServer, asker: Asker, alone: dict[str, str]
) -> None:
    unload(server, "lazy")
    (chat_pid,) = engines(server)
    begun: dict[str, Future[None]] = {"chat": Future(), "lazy": Future()}
    with ThreadPoolExecutor(2) as pool:
        lazy = pool.submit(asker.stream, "lazy", begun["lazy"])
        begun["lazy"].result(PATIENCE_S)
        chat = pool.submit(asker.stream, "chat", begun["chat"])
        begun["chat"].result(PATIENCE_S)
        os.kill(chat_pid, signal.SIGKILL)
        text, code = chat.result()
        assert code == "engine_died"
        assert alone["chat"].startswith(text)
        assert lazy.result() == (alone["lazy"], None)
    until(server, "chat", "ready")
    assert asker.stream("chat") == (alone["chat"], None)


def test_an_idle_model_goes_and_comes_back_when_asked_for(
    server: LiveServer, asker: Asker, alone: dict[str, str]
) -> None:
    asker.stream("lazy")
    until(server, "lazy", "unloaded")
    assert len(engines(server)) == 1
    assert asker.stream("lazy") == (alone["lazy"], None)


def test_no_file_stays_open_when_a_model_has_gone(server: LiveServer, asker: Asker) -> None:
    def held() -> int:
        unload(server, "lazy")
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    asker.stream("lazy")
    files = held()
    for _ in range(2):
        asker.stream("lazy")
    deadline = time.monotonic() + PATIENCE_S
    while held() > files:  # connections of clients that have just left
        assert time.monotonic() < deadline, f"{held() - files} files more than before"
        time.sleep(0.05)
