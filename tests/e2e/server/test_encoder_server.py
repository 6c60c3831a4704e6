"""`rocmforge serve` with tiny encoders, as clients see it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from rocmforge.engine.ipc.params import Pooling
from rocmforge.gguf.reader import open_gguf
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge_reference.backend import create
from tests.data.models.text.tiny_encoders import PROMPT, by_name, goldens, write_encoder
from tests.support.models.encoder_steps import encoder_step, run
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL
from tests.support.processes.server import LiveServer


def serve(path: Path, log: Path) -> LiveServer:
    # A step has room for the longest prompt, whatever this says.
    limits = ("--max-batched-tokens", "16", "--max-sequences", "8", "--max-waiting", "4")
    command = ("-m", "rocmforge", "serve", str(path), "--port", "{port}", "--backend", "reference")
    return LiveServer([*command, *limits], log)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[LiveServer]:
    with serve(write_encoder(by_name("xlm-roberta"), folder), folder / "embedder.log") as server:
        yield server


@pytest.fixture(scope="module")
def ranker(folder: Path) -> Iterator[LiveServer]:
    with serve(write_encoder(by_name("ranker"), folder), folder / "ranker.log") as server:
        yield server


@pytest.fixture
def sdk(embedder: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def unit(vector: Any) -> Any:
    return np.array(vector) / np.linalg.norm(vector)


def test_embeddings_are_those_of_transformers(sdk: OpenAI) -> None:
    expected = unit(goldens("xlm-roberta")["mean"])
    packed = sdk.embeddings.create(model="xlm-roberta", input=list(PROMPT))
    np.testing.assert_allclose(packed.data[0].embedding, expected, atol=2e-6)
    cut = sdk.embeddings.create(
        model="xlm-roberta", input=[list(PROMPT)], encoding_format="float", dimensions=16
    )
    np.testing.assert_allclose(cut.data[0].embedding, unit(expected[:16]), atol=2e-6)


def test_texts_get_the_tokens_around_them(sdk: OpenAI) -> None:
    answer = sdk.embeddings.create(model="xlm-roberta", input=["The cat sat", "the CAT  sat"])
    one, other = (item.embedding for item in answer.data)
    assert one == other
    ids = sdk.embeddings.create(model="xlm-roberta", input=[[1, 87, 88, 90, 2]])
    assert answer.usage.prompt_tokens == 10
    assert ids.data[0].embedding == one


def test_a_batch_may_be_larger_than_steps_and_queue_together(sdk: OpenAI) -> None:
    inputs = [[1, *range(5, 5 + length), 2] for length in range(1, 40)]
    answer = sdk.embeddings.create(model="xlm-roberta", input=inputs)
    alone = sdk.embeddings.create(model="xlm-roberta", input=inputs[20])
    assert answer.data[20].embedding == alone.data[0].embedding
    assert len({tuple(item.embedding) for item in answer.data}) == len(inputs)


def test_a_prompt_that_is_longer_than_the_context_is_refused(sdk: OpenAI) -> None:
    sdk.embeddings.create(model="xlm-roberta", input=[5] * 64)
    with pytest.raises(BadRequestError) as caught:
        sdk.embeddings.create(model="xlm-roberta", input=[5] * 65)
    assert caught.value.code == "context_length_exceeded"


def test_an_encoder_does_not_chat(sdk: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="/v1/embeddings"):
        sdk.chat.completions.create(
            model="xlm-roberta", messages=[{"role": "user", "content": "hi"}]
        )


def test_relevance_is_the_sigmoid_of_the_heads_score(ranker: LiveServer, folder: Path) -> None:
    query, documents = "the cat", ["rainfall", "the cat sat", "a dog on the mat", "the cat"]
    body = {"model": "ranker", "query": query, "documents": documents, "top_n": 3}
    answer = httpx.post(f"{ranker.url}/v1/rerank", json=body, timeout=60).json()
    expected = dict(enumerate(scores(folder / "ranker.gguf", query, documents)))
    order = sorted(expected, key=lambda index: -expected[index])
    assert [result["index"] for result in answer["results"]] == order[:3]
    for result in answer["results"]:
        score = 1 / (1 + math.exp(-expected[result["index"]]))
        assert result["relevance_score"] == pytest.approx(score, rel=1e-5)


def scores(path: Path, query: str, documents: list[str]) -> list[float]:
    """What the head says of each pair, without engine and server."""
    with open_gguf(path) as file:
        tokenizer = Tokenizer(read_tokenizer(file.metadata))
    options = replace(SMALL, max_context=64, max_batched_tokens=64)
    with closing(load_file(create(), path, options)) as runner:
        pairs = [tokenizer.encode_pair(query, document) for document in documents]
        return [float(run(runner, encoder_step(0, [pair], Pooling.CLS))[0, 0]) for pair in pairs]


def test_a_ranker_gives_no_embeddings(ranker: LiveServer) -> None:
    response = httpx.post(
        f"{ranker.url}/v1/embeddings", json={"model": "ranker", "input": "cat"}, timeout=60
    )
    assert response.status_code == 400
    assert "/v1/rerank" in response.json()["error"]["message"]


def test_the_list_of_models_says_what_each_can_do(embedder: LiveServer, ranker: LiveServer) -> None:
    found = [
        server.get("/v1/models").json()["data"][0]["capabilities"] for server in (embedder, ranker)
    ]
    assert found == [["embeddings", "rerank"], ["rerank"]]


@pytest.mark.parametrize(("flag", "value"), [("--lora", "a=b.gguf"), ("--draft-model", "{path}")])
def test_what_only_decoders_have_is_refused(flag: str, value: str, folder: Path) -> None:
    path = write_encoder(by_name("bert"), folder)
    command = [sys.executable, "-m", "rocmforge", "serve", str(path), "--backend", "reference"]
    flags = [flag, value.format(path=path)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"The model is an encoder: leave {flag} out." in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("command", [("run", "hi"), ("bench",)])
def test_commands_that_generate_refuse_encoders(command: tuple[str, ...], folder: Path) -> None:
    path = write_encoder(by_name("bert"), folder)
    name, *flags = command
    arguments = [sys.executable, "-m", "rocmforge", name, str(path), *flags]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "it generates no text" in done.stderr.replace("\n", " ")


def test_inspect_says_what_an_encoder_gives(folder: Path) -> None:
    path = write_encoder(by_name("bert"), folder)
    command = [sys.executable, "-m", "rocmforge", "inspect", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "embeddings of 48 numbers (pooling: cls)" in shown
    assert "KV cache" not in shown
