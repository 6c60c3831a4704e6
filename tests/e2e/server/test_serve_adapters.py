"""`rocmforge serve --lora` as a client with OpenAI's SDK sees it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from tests.data.models.text.tiny_adapters import write_random_adapter
from tests.e2e.conftest import SMOLLM2_NAME, serve_command
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.model

NAMES = (SMOLLM2_NAME, "first", f"{SMOLLM2_NAME}:second", "double")


@pytest.fixture(scope="module")
def client(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """Of a server with three adapters, one of which is another with twice its scale."""
    folder = tmp_path_factory.mktemp("adapters")
    first = write_random_adapter(folder / "first.gguf", smollm2_path, seed=1)
    second = write_random_adapter(folder / "second.gguf", smollm2_path, seed=2)
    flags = (f"first={first}", f"second={second}", f"double={first}:2")
    command = serve_command(smollm2_path, *(part for flag in flags for part in ("--lora", flag)))
    with (
        LiveServer(command, folder / "log") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


def ask(client: OpenAI, name: str) -> tuple[str, str]:
    """The model that an answer names, and what it says."""
    answer = client.completions.create(
        model=name, prompt="The capital of France is", temperature=0, max_tokens=12
    )
    return answer.model, answer.choices[0].text


def test_requests_at_once_get_what_each_gets_alone(client: OpenAI) -> None:
    alone = [ask(client, name) for name in NAMES]
    with ThreadPoolExecutor(len(NAMES)) as pool:
        together = list(pool.map(lambda name: ask(client, name), NAMES))
    assert together == alone
    assert [model for model, _ in alone] == [SMOLLM2_NAME, "first", "second", "double"]
    assert "Paris" in alone[0][1]
    assert len({text for _, text in alone}) == len(NAMES)


def test_adapters_are_listed(client: OpenAI) -> None:
    parents = {model.id: (model.model_extra or {})["parent"] for model in client.models.list()}
    assert parents == {
        SMOLLM2_NAME: None,
        **dict.fromkeys(("first", "second", "double"), SMOLLM2_NAME),
    }


def test_an_unknown_adapter_is_a_missing_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        ask(client, f"{SMOLLM2_NAME}:third")


def test_an_adapter_of_another_model_is_refused_before_anything_is_loaded(
    gemma3_path: Path, smollm2_path: Path, tmp_path: Path
) -> None:
    adapter = write_random_adapter(tmp_path / "gemma.gguf", gemma3_path, seed=1)
    command = [sys.executable, "-m", "rocmforge", "serve", str(smollm2_path)]
    done = subprocess.run(
        [*command, "--lora", f"gemma={adapter}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert f"The LoRA adapter {adapter} cannot be used" in " ".join(done.stderr.split())
    assert "it is for gemma3 models, and this is a llama model" in " ".join(done.stderr.split())
