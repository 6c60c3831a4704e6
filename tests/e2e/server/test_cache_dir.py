"""Prompts are found again by a server that was restarted, killed, or had another model loaded."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.data.models.text.tiny_encoders import VOCABULARY
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import by_name
from tests.data.models.towers.tiny_predicting_tower import write_predicting_tower
from tests.support.files.tokenizer_files import pieces, write_tokenizer
from tests.support.processes.children import ENGINE, children
from tests.support.processes.server import LiveServer

LONG = "a b c d e f g h i j k l m " * 8  # some 100 tokens
KEYS = ("alice's key", "bob's key")
FULL = 16  # tokens of a block


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of tiny models: with windows, with states, and also a predictor, which drafts."""
    folder = tmp_path_factory.mktemp("models")
    longer = {"max_position_embeddings": 512}  # so that windows release blocks
    for name in ("llama", "gpt-oss", "qwen35"):
        written = write_folder(by_name(name), folder / name, config=longer)
        write_tokenizer(written, pieces(VOCABULARY))
    write_tokenizer(write_predicting_tower(folder / "predicting"), pieces(VOCABULARY))
    return folder


Serve = Callable[..., Any]


@pytest.fixture
def serve(models: Path, tmp_path: Path) -> Serve:
    """Starts a server of one model or more, with a folder of files."""

    @contextmanager
    def start(names: Sequence[str] = ("llama",), *flags: str) -> Iterator[LiveServer]:
        given = [f"--model={name}={models / name}" for name in names]
        command = ("-m", "rocmforge", "serve", *given, "--port", "{port}")
        limits = ("--backend", "reference", "--max-batched-tokens", "64", "--host-cache", "8MiB")
        folder = ("--cache-dir", str(tmp_path / "cache"))
        with LiveServer([*command, *limits, *folder, *flags], tmp_path / "log") as server:
            yield server

    return start


def ask(
    server: LiveServer, prompt: str = LONG, model: str = "llama", key: str = ""
) -> tuple[str, int, int]:
    """The answer to a prompt, its tokens, and how many of them were found."""
    response = httpx.post(
        f"{server.url}/v1/completions",
        json={"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0},
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=60,
    )
    assert response.status_code == 200, response.text
    body = response.json()
    usage = body["usage"]
    return (
        body["choices"][0]["text"],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("*.kv"))


def test_a_restarted_server_computes_no_old_part(serve: Serve, tmp_path: Path) -> None:
    names = ("llama", "gpt-oss", "qwen35", "predicting")
    with serve(names) as server:
        answers = {name: ask(server, model=name) for name in names}
        assert server.stop() == 0
    assert len(files(tmp_path)) >= sum(tokens // FULL for _, tokens, _ in answers.values()) - 2
    with serve(names) as server:
        for name, (answer, tokens, cached) in answers.items():
            assert cached == 0
            assert ask(server, model=name) == (answer, tokens, (tokens - 1) // FULL * FULL)
        metrics = server.get("/metrics").text
    assert 'rocmforge_cache_dir_read_blocks_total{engine="0",model_name="llama"}' in metrics
    assert 'rocmforge_cache_dir_read_snapshots_total{engine="0",model_name="qwen35"} 1.0' in metrics


def test_a_model_that_was_unloaded_for_another_finds_its_prompts(serve: Serve) -> None:
    with serve(("llama", "qwen35"), "--load", "request", "--max-loaded-models", "1") as server:
        answer, tokens, _ = ask(server)
        other, _, cached = ask(server, model="qwen35")
        assert cached == 0, "what another model computed"
        assert ask(server) == (answer, tokens, (tokens - 1) // FULL * FULL)
        assert ask(server, model="qwen35")[0] == other


def test_keys_find_their_own_prompts_whatever_their_order(serve: Serve) -> None:
    alice, bob = (("--api-key", key) for key in KEYS)
    with serve(("llama",), *alice, *bob) as server:
        answer, tokens, _ = ask(server, key=KEYS[0])
    with serve(("llama",), *bob, *alice) as server:
        assert ask(server, key=KEYS[1]) == (answer, tokens, 0)
        assert ask(server, key=KEYS[0]) == (answer, tokens, (tokens - 1) // FULL * FULL)


def test_an_engine_killed_while_it_writes_leaves_nothing_wrong(
    serve: Serve, tmp_path: Path
) -> None:
    prompts = [f"{letter} {LONG}" for letter in "abcdefgh"]
    with serve() as server:
        answers = [ask(server, prompt)[0] for prompt in prompts[:4]]
        end = time.monotonic() + 60
        while not files(tmp_path) and time.monotonic() < end:
            time.sleep(0.001)
        (engine,) = children(server.process.pid, ENGINE)
        os.kill(engine, signal.SIGKILL)
        server.kill()
    left = files(tmp_path)
    assert left
    # What a power failure could leave: the name is there, the end of the file is not.
    left[0].write_bytes(left[0].read_bytes()[:-100])
    with serve() as server:
        assert [ask(server, prompt)[0] for prompt in prompts[:4]] == answers
