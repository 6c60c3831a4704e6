"""`rocmforge serve DIR`: a decoder with an adapter, and an encoder, as clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rocmforge.cli import main
from tests.data.models.text import tiny_adapters, tiny_encoders, tiny_models
from tests.data.models.text.tiny_adapters import TinyAdapter
from tests.data.models.text.tiny_encoders import VOCABULARY
from tests.data.models.text.tiny_folders import write_adapter_folder, write_folder
from tests.data.models.text.tiny_models import GOLDEN_ROWS, by_name
from tests.support.files.tokenizer_files import pieces, write_tokenizer
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}[CLS] {{ m.role }} {{ m.content }} [SEP]{% endfor %}"
GENERATION = {"temperature": 0.0, "top_k": 20, "eos_token_id": [2, 7]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder in shards, an adapter of it and an encoder."""
    path = tmp_path_factory.mktemp("folders")
    decoder = write_folder(by_name("llama"), path / "tiny.llama", shards=2)
    write_tokenizer(decoder, pieces(VOCABULARY), eos_token="[SEP]")
    (decoder / "chat_template.jinja").write_text(TEMPLATE)
    (decoder / "generation_config.json").write_text(json.dumps(GENERATION))
    write_adapter_folder(path / "adapter", by_name("llama"), TinyAdapter())
    encoder = write_folder(tiny_encoders.by_name("xlm-roberta"), path / "encoder")
    write_tokenizer(encoder, pieces(VOCABULARY))
    return path


@pytest.fixture(scope="module")
def server(folders: Path) -> Iterator[httpx.Client]:
    # An adapter is of one model: the encoder has a table of its own in the file of --config.
    settings = folders / "rocmforge.toml"
    settings.write_text(
        f'[models."tiny.llama"]\npath = "{folders / "tiny.llama"}"\n'
        f'lora = ["a={folders / "adapter"}"]\n[models.embed]\npath = "{folders / "encoder"}"\n'
    )
    command = (
        *("-m", "rocmforge", "serve", "--config", str(settings), "--port", "{port}"),
        *("--backend", "reference", "--max-sequences", "4", "--max-batched-tokens", "64"),
    )
    with (
        LiveServer(command, folders / "server.log") as live,
        httpx.Client(base_url=f"{live.url}/v1", timeout=30) as client,
    ):
        yield client


def last_logprobs(logits: list[list[float]]) -> Any:
    """Log-probabilities after the last token of the prompt."""
    row = np.array(logits[GOLDEN_ROWS.index(len(tiny_models.PROMPT) - 1)])
    return row - np.log(np.exp(row).sum())


@pytest.mark.parametrize("model", ["tiny.llama", "a"])
def test_completions_are_those_of_transformers_and_peft(server: httpx.Client, model: str) -> None:
    body = {
        "model": model,
        "prompt": list(tiny_models.PROMPT),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 5,
    }
    answer = server.post("/completions", json=body).raise_for_status().json()
    logits = tiny_models.goldens("llama")["logits"]
    if model == "a":
        path = Path(tiny_adapters.__file__).parents[1] / "goldens/lora_goldens.json"
        logits = json.loads(path.read_text())["llama"]
    expected = np.sort(last_logprobs(logits))[::-1][:5]
    (found,) = answer["choices"][0]["logprobs"]["top_logprobs"]
    np.testing.assert_allclose(sorted(found.values(), reverse=True), expected, atol=1e-4)


def test_a_chat_follows_the_template_and_the_recommended_sampling(server: httpx.Client) -> None:
    body = {
        "model": "tiny.llama",
        "messages": [{"role": "user", "content": "the cat"}],
        "max_tokens": 8,
    }
    one, other = (
        server.post("/chat/completions", json={**body, "seed": seed}).raise_for_status().json()
        for seed in (1, 2)
    )
    assert one["usage"]["prompt_tokens"] == len(["u", "s", "e", "r"]) + 4
    assert one["choices"] == other["choices"], "temperature is 0 unless a request says otherwise"
    hot = server.post("/chat/completions", json={**body, "seed": 1, "temperature": 2.0}).json()
    assert hot["choices"] != one["choices"]
    said = server.post("/responses", json={"model": "tiny.llama", "input": "the cat"}).json()
    assert (said["temperature"], said["top_p"]) == (0.0, 1.0)


def test_embeddings_are_those_of_transformers(server: httpx.Client) -> None:
    body = {"model": "embed", "input": list(tiny_encoders.PROMPT), "encoding_format": "float"}
    answer = server.post("/embeddings", json=body).raise_for_status().json()
    mean = np.array(tiny_encoders.goldens("xlm-roberta")["mean"])
    found = answer["data"][0]["embedding"]
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=2e-6)


def test_models_are_listed_by_the_names_of_their_folders(server: httpx.Client) -> None:
    listed = [model["id"] for model in server.get("/models").json()["data"]]
    assert listed == ["tiny.llama", "a", "embed"]


@pytest.mark.parametrize("name", ["tiny.llama", "encoder"])
def test_inspect_says_what_is_in_a_folder(
    name: str, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(folders / name), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["not_supported"] is None
    assert report["gguf_version"] is None
    assert report["name"] == name
    assert [share["type"] for share in report["quantisation"]] == ["F32"]
    assert report["tokenizer"] == "WordPiece/tokenizer.json"
    assert main(["inspect", str(folders / name), "--tensors"]) == 0
    shown = capsys.readouterr().out
    assert "safetensors" in shown
    assert "self" in shown


def test_inspect_shows_a_folder_that_cannot_be_served_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m", config={"model_type": "mamba"})
    assert main(["inspect", str(folder)]) == 0
    assert "Architecture 'mamba' is not supported" in " ".join(capsys.readouterr().out.split())
