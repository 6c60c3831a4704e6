"""A user's own logits processor, from an installed distribution, through a live server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_models import by_name
from tests.support.files.distribution import WALK, install
from tests.support.files.gguf_writer import write_gguf
from tests.support.processes.server import LiveServer

PROMPT = [300, 400, 500]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A tiny model on the reference backend, beside a distribution with the processor `walk`."""
    folder = tmp_path_factory.mktemp("walk")
    install(folder, "walk", WALK)
    model = by_name("llama")
    model = replace(model, config=model.config | {"vocab_size": tiny.VOCAB_SIZE})
    text = tiny.metadata()
    text["tokenizer.ggml.token_type"] = np.array(text["tokenizer.ggml.token_type"], np.int32)
    file = write_gguf(folder / "tiny.gguf", gguf_metadata(model) | text, gguf_tensors(model))
    command = ("-m", "rocmforge", "serve", str(file), "--port", "{port}", "--backend", "reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))))
        with LiveServer((*command, "--served-model-name", "tiny"), folder / "log") as server:
            yield server


def complete(server: LiveServer, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "ignore_eos": True, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def text_of(tokens: list[int]) -> str:
    return Tokenizer(read_tokenizer(tiny.metadata())).decode(tokens, skip_special=True)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_it_decides_what_is_drawn(temperature: float, server: LiveServer) -> None:
    answer = complete(server, temperature=temperature, logits_processors={"walk": {"step": 7}})
    expected = [507, 514, 521, 528, 535, 542]
    assert answer.json()["choices"][0]["text"] == text_of(expected)


def test_its_parameters_are_checked_as_declared(server: LiveServer) -> None:
    answer = complete(server, logits_processors={"walk": {"step": -1}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "logits_processors.walk.step"
    assert "at least 0" in answer.json()["error"]["message"]


def test_one_that_is_not_installed_is_refused_with_those_that_are(server: LiveServer) -> None:
    answer = complete(server, logits_processors={"wlak": {}})
    assert answer.status_code == 400
    assert "dry, typical_p, walk, xtc" in answer.json()["error"]["message"]


def test_log_probabilities_stay_those_of_the_model(server: LiveServer) -> None:
    def first(**fields: Any) -> Any:
        answer = complete(server, temperature=0, logprobs=5, max_tokens=1, **fields).json()
        return answer["choices"][0]["logprobs"]["top_logprobs"][0]

    free, walked = first(), first(logits_processors={"walk": {"step": 7}})
    chosen = text_of([507])
    assert {text: value for text, value in walked.items() if text != chosen} == free
    assert walked[chosen] < min(free.values())


def test_the_built_in_ones_are_there_too(server: LiveServer) -> None:
    fields = {"typical_p": 0.5, "xtc_probability": 0.5, "dry_multiplier": 0.8, "seed": 3}
    first, second = (complete(server, temperature=1, **fields).json() for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
