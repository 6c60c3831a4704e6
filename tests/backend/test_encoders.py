"""Encoders against Transformers and llama.cpp, with the same random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGMLQuantizationType

from rocmforge.backend.protocol import Runner
from rocmforge.engine.ipc.params import Pooling
from tests.backend.conftest import Load
from tests.data.models.text.tiny_encoders import (
    ENCODERS,
    GOLDEN_ROWS,
    LENGTHS,
    LONG_PROMPT,
    PROMPT,
    TinyEncoder,
    by_name,
    goldens,
    write_encoder,
)
from tests.data.models.text.tiny_folders import write_folder
from tests.support.files.gguf_writer import Stored
from tests.support.models.encoder_steps import encoder_step, run, states

NAMES = [model.name for model in ENCODERS]
EMBEDDERS = [model.name for model in ENCODERS if not model.ranks]
OF_TRANSFORMERS = [
    model.name for model in ENCODERS if not (model.ranks or model.is_jina or model.is_gemma)
]
TOLERANCE = 2e-5
"""Of a number whose like have a spread of about one: float32 sums in another order."""
LLAMA_CPP_CLOSE = 0.99999
"""llama.cpp takes the tanh form of GELU, from a table of halves."""


@pytest.fixture
def runner(load: Load, tmp_path: Path, request: pytest.FixtureRequest) -> Runner:
    return load(write_encoder(by_name(request.param), tmp_path)).runner


def write_as_folder(model: TinyEncoder, path: Path) -> Path:
    return write_folder(model, path / model.name)


def cosine(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    one, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize(("runner", "name"), [(n, n) for n in OF_TRANSFORMERS], indirect=["runner"])
def test_states_equal_those_of_transformers(runner: Runner, name: str) -> None:
    expected = np.array(goldens(name)["states"])
    assert np.abs(states(runner, PROMPT, GOLDEN_ROWS) - expected).max() < TOLERANCE
    mean = run(runner, encoder_step(1, [PROMPT], Pooling.MEAN))[0] / len(PROMPT)
    assert np.abs(mean - np.array(goldens(name)["mean"])).max() < TOLERANCE


@pytest.mark.parametrize("write", [write_encoder, write_as_folder])
def test_embeddings_of_gemma_equal_those_of_sentence_transformers_and_llama_cpp(
    write: Callable[[TinyEncoder, Path], Path], load: Load, tmp_path: Path
) -> None:
    """With windows to both sides, and two matrices behind the pooling."""
    path = write(by_name("gemma-embedding"), tmp_path)
    runner = load(path, max_context=700, max_batched_tokens=1000).runner
    prompts = [LONG_PROMPT[:length] for length in LENGTHS]
    means = run(runner, encoder_step(0, prompts, Pooling.MEAN)) / np.array(LENGTHS)[:, None]
    golden = goldens("gemma-embedding")
    assert np.abs(means - np.array(golden["embeddings"])).max() < TOLERANCE
    assert np.abs(means - np.array(golden["llama_cpp"])).max() < 5e-3, "GELU from its table"


@pytest.mark.parametrize("runner", ["ranker"], indirect=True)
def test_scores_equal_those_of_transformers_and_llama_cpp(runner: Runner) -> None:
    assert runner.info.hidden_size == 1
    score = run(runner, encoder_step(0, [PROMPT], Pooling.CLS))[0]
    assert np.abs(score - goldens("ranker")["scores"]).max() < TOLERANCE
    assert np.abs(score - goldens("ranker")["llama_cpp"]).max() < 2e-3


@pytest.mark.parametrize(
    ("runner", "name", "pooling"),
    [
        ("bert", "bert", Pooling.CLS),
        ("xlm-roberta", "xlm-roberta", Pooling.MEAN),
        ("nomic-bert", "nomic-bert", Pooling.MEAN),
        ("modern-bert", "modern-bert", Pooling.CLS),
        ("jina-bert-v2", "jina-bert-v2", Pooling.MEAN),
        ("jina-bert-v2-code", "jina-bert-v2-code", Pooling.MEAN),
    ],
    indirect=["runner"],
)
def test_embeddings_point_where_llama_cpps_do(runner: Runner, name: str, pooling: Pooling) -> None:
    found = run(runner, encoder_step(0, [PROMPT], pooling))[0]
    assert cosine(found, goldens(name)["llama_cpp"]) > LLAMA_CPP_CLOSE


@pytest.mark.parametrize("runner", NAMES, indirect=True)
def test_what_else_is_in_a_step_changes_nothing(runner: Runner) -> None:
    alone = run(runner, encoder_step(0, [PROMPT], Pooling.CLS))
    others = (PROMPT[::-1], PROMPT[:1], PROMPT, PROMPT[:7])
    together = run(runner, encoder_step(1, others, Pooling.CLS))
    np.testing.assert_array_equal(together[2], alone[0])
    assert np.abs(together[3] - alone[0]).max() > 0.01, "every token sees all of its own prompt"


@pytest.mark.parametrize("name", EMBEDDERS)
def test_quantised_weights_give_nearly_the_same(name: str, load: Load, tmp_path: Path) -> None:
    def store(tensor: str, weight: npt.NDArray[np.float32]) -> Any:
        if weight.ndim == 1 or tensor.startswith(("position_embd", "token_types")):
            return weight  # llama.cpp never quantises these
        padded = weight.shape[1] % 32 == 0
        kind = GGMLQuantizationType.Q8_0 if padded else GGMLQuantizationType.F16
        return Stored.quantized(weight, kind) if padded else weight.astype(np.float16)

    exact = load(write_encoder(by_name(name), tmp_path))
    expected = run(exact.runner, encoder_step(0, [PROMPT], Pooling.MEAN))[0]
    (tmp_path / "small").mkdir()
    small = load(write_encoder(by_name(name), tmp_path / "small", store))
    assert 0.9 < cosine(run(small.runner, encoder_step(0, [PROMPT], Pooling.MEAN))[0], expected) < 1


@pytest.mark.parametrize("runner", ["bert"], indirect=True)
def test_a_runner_says_that_it_is_an_encoder_and_has_no_cache(runner: Runner) -> None:
    info = runner.info
    assert not info.causal
    assert (info.num_blocks, info.kv_bytes) == (0, 0)
    assert (info.max_context, info.hidden_size) == (64, 48)


def test_a_prompt_must_fit_into_one_step(load: Load, tmp_path: Path) -> None:
    path = write_encoder(by_name("bert"), tmp_path)
    assert load(path, max_batched_tokens=20).runner.info.max_context == 20
