"""OpenAI's own Node library against a live server; `node/sdk.cjs` does the talking."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.fake_model import HIDDEN_SIZE
from tests.support.processes.server import LiveServer

PACKAGE = "openai@7.55.0"
SCRIPT = Path(__file__).parent / "node" / "sdk.cjs"


def node_modules(*packages: str) -> Path:
    """A folder with these packages, installed once into the user's cache."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    prefix = cache / "rocmforge-tests" / "-".join(["node", *packages]).replace("/", "-")
    modules = prefix / "node_modules"
    if not modules.is_dir():
        prefix.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--prefix", prefix, *packages],
            check=True,
            capture_output=True,
            timeout=240,
        )
    return modules


@pytest.fixture(scope="session")
def node_path() -> Path:
    """The folder with the library."""
    return node_modules(PACKAGE)


@pytest.fixture(scope="session")
def seen(node_path: Path, live: LiveServer) -> Any:
    """What the script saw."""
    done = subprocess.run(
        ["node", SCRIPT, f"{live.url}/v1"],
        env={**os.environ, "NODE_PATH": str(node_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_chat(seen: Any) -> None:
    assert seen["plain"]["indices"] == [0, 1]
    assert seen["plain"]["reasons"] == ["length", "length"]
    assert seen["plain"]["completionTokens"] == 12
    assert seen["plain"]["requestIdIsId"] is True


def test_chat_stream(seen: Any) -> None:
    assert seen["streamed"]["text"] == seen["plain"]["text"]
    assert seen["streamed"]["ids"] == 1
    assert seen["streamed"]["reason"] == "length"
    assert seen["streamed"]["usage"]["completion_tokens"] == 6


def test_the_streaming_helper_accumulates_what_we_send(seen: Any) -> None:
    assert seen["helper"]["text"] == seen["helper"]["final"] == seen["plain"]["text"]
    assert seen["helper"]["tokens"] == 6


def test_legacy_completions(seen: Any) -> None:
    assert seen["legacy"]["text"] == seen["legacy"]["plain"]
    assert seen["legacy"]["text"].startswith("hello")
    assert seen["legacy"]["offsets"][:2] == [0, 5]


def test_responses(seen: Any) -> None:
    found = seen["responses"]
    assert found["text"]
    assert found["status"] == "incomplete"
    assert found["tokens"][1] > found["tokens"][0]
    assert found["retrieved"] is True
    assert found["kinds"][:3] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert found["kinds"][-1] == "response.completed"
    assert set(found["calls"]) == {"weather"}
    assert found["areWhole"] is True


def test_embeddings(seen: Any) -> None:
    assert seen["embeddings"] == [HIDDEN_SIZE, HIDDEN_SIZE]


def test_a_stream_may_be_abandoned(seen: Any) -> None:
    assert seen["abandoned"] == "chat.completion.chunk"


def test_models(seen: Any) -> None:
    assert seen["models"] == {"listed": ["tiny"], "one": "tiny"}


def test_errors_are_the_librarys_own(seen: Any) -> None:
    bad = {"name": "BadRequestError", "status": 400, "code": "invalid_value"}
    assert seen["badRequest"] == seen["badStream"] == bad | {"param": "temperature"}
    assert seen["notFound"]["name"] == "NotFoundError"
    assert seen["notFound"]["code"] == "model_not_found"
