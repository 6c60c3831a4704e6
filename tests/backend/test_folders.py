"""Hugging Face folders against Transformers and PEFT, with no converter between, and against GGUF.

The goldens are those of the same weights in GGUF files: both readers must lead to them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import Runner
from rocmforge.engine.ipc.params import Pooling
from rocmforge.errors import BadAdapter
from rocmforge.models.lora import AdapterSpec
from tests.backend.conftest import Load
from tests.backend.driving import Chunk
from tests.data.models.text import tiny_adapters, tiny_encoders
from tests.data.models.text.tiny_adapters import MODELS_WITH_GOLDENS, TinyAdapter, write_adapter
from tests.data.models.text.tiny_encoders import ENCODERS
from tests.data.models.text.tiny_folders import write_adapter_folder, write_folder
from tests.data.models.text.tiny_models import FOLDER_MODELS, GOLDEN_ROWS, PROMPT, by_name, goldens
from tests.support.models.encoder_steps import encoder_step, run, states

TOLERANCE = 3e-5
"""Of a log-probability, relative to the spread of the logits (a few units)."""
ENCODER_TOLERANCE = 2e-5
CHUNK = Chunk(tokens=PROMPT, blocks=[3, 1, 2])
EVERY_ROW = range(len(PROMPT))
ONE_OF_EACH = (
    "llama",
    "llama3-rope",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "glm4",
    "qwen3moe",
    "mixtral",
    "ernie4_5-moe",
    "minimax-m2",
    "deepseek-v3",
    "gpt-oss",
    "gpt-oss-mxfp4",
)
OF_TRANSFORMERS = [
    model.name for model in ENCODERS if not (model.ranks or model.is_jina or model.is_gemma)
]


def log_softmax(logits: Any) -> Float32Array:
    values: Float32Array = np.array(logits, np.float32)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    return values


@pytest.mark.parametrize("name", [model.name for model in FOLDER_MODELS])
def test_decoders_say_what_they_say_in_transformers(name: str, load: Load, tmp_path: Path) -> None:
    folder = write_folder(by_name(name), tmp_path / name)
    expected = goldens(name)["logits"]
    got = load(folder).logprobs(CHUNK, GOLDEN_ROWS)
    assert np.abs(got - log_softmax(expected)).max() / np.std(expected) < TOLERANCE


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_model_says_the_same_as_a_folder_and_as_a_gguf_file(
    name: str, load: Load, tmp_path: Path
) -> None:
    folder = write_folder(by_name(name), tmp_path / "folder", shards=3)
    found = load(folder).logprobs(CHUNK, EVERY_ROW)
    expected = load(name).logprobs(CHUNK, EVERY_ROW)
    np.testing.assert_array_equal(found.argmax(axis=1), expected.argmax(axis=1))
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_two_bytes_are_read_as_they_are(dtype: str, load: Load, tmp_path: Path) -> None:
    model = by_name("gemma3")
    found = load(write_folder(model, tmp_path / dtype, dtype=dtype)).logprobs(CHUNK, GOLDEN_ROWS)
    rounded = write_folder(model, tmp_path / "rounded", dtype=dtype, widen=True)
    expected = load(rounded).logprobs(CHUNK, GOLDEN_ROWS)
    np.testing.assert_array_equal(found, expected)
    exact = load("gemma3").logprobs(CHUNK, GOLDEN_ROWS)
    assert 0 < np.abs(found - exact).max() < 0.5


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_encoders_have_the_states_of_transformers(name: str, load: Load, tmp_path: Path) -> None:
    folder = write_folder(tiny_encoders.by_name(name), tmp_path / name)
    runner = load(folder).runner
    expected = np.array(tiny_encoders.goldens(name)["states"])
    got = states(runner, tiny_encoders.PROMPT, tiny_encoders.GOLDEN_ROWS)
    assert np.abs(got - expected).max() < ENCODER_TOLERANCE


def test_rankers_have_the_scores_of_transformers(load: Load, tmp_path: Path) -> None:
    runner = load(write_folder(tiny_encoders.by_name("ranker"), tmp_path / "ranker")).runner
    assert runner.info.hidden_size == 1
    expected = tiny_encoders.goldens("ranker")["scores"]
    assert np.abs(pooled(runner) - expected).max() < ENCODER_TOLERANCE


@pytest.mark.parametrize("name", ["jina-bert-v2", "jina-bert-v2-code"])
def test_encoders_of_jina_say_the_same_as_gguf_files(name: str, load: Load, tmp_path: Path) -> None:
    model = tiny_encoders.by_name(name)
    found = pooled(load(write_folder(model, tmp_path / name)).runner)
    expected = pooled(load(tiny_encoders.write_encoder(model, tmp_path)).runner)
    assert np.abs(found - expected).max() < 1e-5


def pooled(runner: Runner) -> Float32Array:
    """The prompt's first state, or its scores."""
    found: Float32Array = run(runner, encoder_step(0, [tiny_encoders.PROMPT], Pooling.CLS))[0]
    return found


def lora_goldens(name: str) -> list[list[float]]:
    """What PEFT computed; see make_lora_goldens.py."""
    path = Path(tiny_adapters.__file__).parents[1] / "goldens/lora_goldens.json"
    found: list[list[float]] = json.loads(path.read_text())[name]
    return found


def spec(path: Path) -> AdapterSpec:
    return AdapterSpec(name="a", path=str(path))


@pytest.mark.parametrize("name", MODELS_WITH_GOLDENS)
@pytest.mark.parametrize("base", ["folder", "gguf"])
def test_adapters_of_peft_say_what_they_say_in_peft(
    name: str, base: str, load: Load, tmp_path: Path
) -> None:
    model = by_name(name)
    adapter = write_adapter_folder(tmp_path / "adapter", model, TinyAdapter())
    path = write_folder(model, tmp_path / "base") if base == "folder" else name
    driver = load(path, adapters=(spec(adapter),))
    got = driver.logprobs(Chunk(tokens=PROMPT, blocks=[3, 1, 2], adapter=0), GOLDEN_ROWS)
    expected = lora_goldens(name)
    assert np.abs(got - log_softmax(expected)).max() / np.std(expected) < TOLERANCE


def test_the_scale_of_rslora_goes_by_the_root_of_the_rank(load: Load, tmp_path: Path) -> None:
    model, base = by_name("qwen2"), "qwen2"
    recipe = TinyAdapter(alpha=6.0, rank=4)
    by_root = write_adapter_folder(tmp_path / "root", model, recipe, use_rslora=True)
    doubled = write_adapter_folder(tmp_path / "doubled", model, recipe, lora_alpha=12.0)
    chunk = Chunk(tokens=PROMPT, blocks=[3, 1, 2], adapter=0)
    one, other = (
        load(base, adapters=(spec(path),)).logprobs(chunk, GOLDEN_ROWS)
        for path in (by_root, doubled)
    )
    np.testing.assert_array_equal(one, other)


def test_an_adapter_for_llamas_gguf_file_is_refused_for_its_folder(
    load: Load, tmp_path: Path
) -> None:
    model = by_name("llama")
    adapter = write_adapter(tmp_path / "a.gguf", model, TinyAdapter())
    folder = write_folder(model, tmp_path / "llama")
    with pytest.raises(BadAdapter, match="in another order"):
        load(folder, adapters=(spec(adapter),))


def test_an_adapter_for_a_gguf_file_fits_a_folder_with_the_same_order(
    load: Load, tmp_path: Path
) -> None:
    model = by_name("qwen2")
    adapter = write_adapter(tmp_path / "a.gguf", model, TinyAdapter())
    driver = load(write_folder(model, tmp_path / "qwen2"), adapters=(spec(adapter),))
    got = driver.logprobs(Chunk(tokens=PROMPT, blocks=[3, 1, 2], adapter=0), GOLDEN_ROWS)
    expected = lora_goldens("qwen2")
    assert np.abs(got - log_softmax(expected)).max() / np.std(expected) < TOLERANCE
