"""Long texts are worked on in threads, which API keys share fairly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient

from rocmforge.api.acquire import OFFLOAD_BYTES
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.messages import handlers as messages
from rocmforge.api.responses import handlers as responses
from rocmforge.api.text_workers import TextWorkers
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model
from tests.api.live import live_server

PATIENCE_S = 60.0
ALICE, BOB = 1, 2


class Work:
    """Pieces of work that last until they are released, and note the order in which they began."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.release = threading.Event()

    def piece(self, name: str) -> Callable[[], str]:
        def run() -> str:
            self.begun.append(name)
            assert self.release.wait(PATIENCE_S)
            return name

        return run

    async def wait_for(self, count: int) -> None:
        """Until that many have begun, and then a moment for one too many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.begun) < count:  # noqa: ASYNC110 - threads fill a list
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert len(self.begun) == count


def test_a_key_that_fills_its_threads_leaves_one_to_others() -> None:
    async def scenario() -> None:
        work, workers = Work(), TextWorkers(threads=3, threads_of_a_key=2)
        flood = [asyncio.create_task(workers.run(ALICE, work.piece(f"a{i}"))) for i in range(8)]
        await work.wait_for(2)
        other = asyncio.create_task(workers.run(BOB, work.piece("b")))
        await work.wait_for(3)
        assert work.begun[-1] == "b"
        work.release.set()
        assert await other == "b"
        assert await asyncio.gather(*flood) == [f"a{i}" for i in range(8)]

    asyncio.run(scenario())


def test_keys_that_wait_take_turns() -> None:
    async def scenario() -> None:
        work, workers = Work(), TextWorkers(threads=1, threads_of_a_key=1)
        order = [(ALICE, "a0"), (ALICE, "a1"), (ALICE, "a2"), (BOB, "b0"), (BOB, "b1")]
        tasks = [asyncio.create_task(workers.run(key, work.piece(name))) for key, name in order]
        await work.wait_for(1)
        work.release.set()
        await asyncio.gather(*tasks)
        assert work.begun == ["a0", "a1", "b0", "a2", "b1"]

    asyncio.run(scenario())


def test_work_that_nobody_waits_for_any_more_keeps_its_thread_until_it_ends() -> None:
    async def scenario() -> None:
        work, workers = Work(), TextWorkers(threads=1, threads_of_a_key=1)
        running, waiting, last = (
            asyncio.create_task(workers.run(ALICE, work.piece(name))) for name in ("a", "b", "c")
        )
        await work.wait_for(1)
        running.cancel()
        waiting.cancel()
        await work.wait_for(1)
        work.release.set()
        assert await last == "c"
        assert work.begun == ["a", "c"]

    asyncio.run(scenario())


def test_what_work_raises_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def scenario() -> None:
        workers = TextWorkers(threads=1, threads_of_a_key=1)
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                await workers.run(ALICE, fail)

    asyncio.run(scenario())


# --- over HTTP ---


class Noting:
    """A tokenizer that notes in which threads it works."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.threads: dict[str, set[str]] = {}

    def __getattr__(self, name: str) -> Any:
        self.threads.setdefault(name, set()).add(threading.current_thread().name)
        return getattr(self._tokenizer, name)


@pytest.fixture
def noting(engine: FakeEngine) -> Noting:
    return Noting(make_model(engine).tokenizer)


@pytest.fixture
def noted(engine: FakeEngine, noting: Noting) -> Iterator[Client]:
    service = replace(make_model(engine), tokenizer=noting)  # type: ignore[arg-type]
    with TestClient(build_app(service, ApiSettings())) as client:
        yield client


def test_long_lists_of_tokens_are_spelled_out_in_a_thread(noted: Client, noting: Noting) -> None:
    text, ids = "hello " * OFFLOAD_BYTES, [100] * OFFLOAD_BYTES
    noted.post("/tokenize", json={"prompt": text, "return_token_strs": True}).raise_for_status()
    noted.post("/detokenize", json={"tokens": ids}).raise_for_status()
    for name in ("encode", "token", "decode", "vocab_size"):
        assert all(thread.startswith("text") for thread in noting.threads[name]), name


@pytest.mark.parametrize(
    ("path", "field", "handlers"),
    [
        ("/v1/responses", "input", responses),
        ("/v1/messages", "messages", messages),
        ("/v1/messages/count_tokens", "messages", messages),
    ],
)
def test_long_conversations_are_converted_in_a_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, field: str, handlers: ModuleType
) -> None:
    convert, threads = handlers.chat_request, []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return convert(*arguments)

    monkeypatch.setattr(handlers, "chat_request", noted)
    conversation = [{"role": "user", "content": "hello"}] * (OFFLOAD_BYTES // 8)
    client.post(path, json={"model": "tiny", "max_tokens": 1, field: conversation})
    assert [thread.startswith("text") for thread in threads] == [True]


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        *(("/tokenize", 4 << 20), ("/detokenize", 4 << 20)),
        *(("/models/load", 64 << 10), ("/models/unload", 64 << 10)),
    ],
)
def test_what_may_be_large_depends_on_the_endpoint(
    client: Client, engine: FakeEngine, path: str, limit: int
) -> None:
    with TestClient(build_app(make_model(engine), ApiSettings())) as client:
        headers = {"content-type": "application/json"}
        declared = client.post(path, content=b" " * (limit + 1), headers=headers)
        pieces = iter([b" " * (limit // 2)] * 3)
        chunked = client.post(path, content=pieces, headers=headers)
        fits = client.post(path, content=b" " * limit, headers=headers)
    for answer in (declared, chunked):
        assert answer.status_code == 413
        assert str(limit) in answer.json()["error"]["message"]
    assert fits.status_code == 400, "it is no JSON"


@pytest.mark.slow
def test_long_texts_of_one_key_keep_no_other_waiting(tmp_path: Any) -> None:
    keys = ("--api-key", "flooding", "--api-key", "modest-one")
    with live_server(tmp_path / "log", *keys) as server:
        asyncio.run(_flood_with_texts(server.url))


async def _flood_with_texts(url: str) -> None:
    ended: list[str] = []

    async def tokenize(http: httpx.AsyncClient, key: str, size: int) -> None:
        body = {"prompt": "hello" * (size // 5)}
        headers = {"authorization": f"Bearer {key}"}
        answer = await http.post(f"{url}/tokenize", json=body, headers=headers)
        assert answer.status_code == 200
        ended.append(key)

    # Eight texts of 4 MB take a busy machine minutes.
    async with httpx.AsyncClient(timeout=None) as http:
        flood = [asyncio.create_task(tokenize(http, "flooding", 4_000_000)) for _ in range(8)]
        while not ended:  # noqa: ASYNC110 - by then the others wait
            await asyncio.sleep(0.001)
        await tokenize(http, "modest-one", 9_000)
        before = ended.index("modest-one")
        await asyncio.gather(*flood)
    assert before <= 4, f"{before} of the long texts went first"
