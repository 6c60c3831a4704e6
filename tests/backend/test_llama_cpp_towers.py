"""Models that take images, from the pixels to an answer, against llama.cpp with the same files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend.protocol import Backend
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.waiting.images import image_step, in_order
from rocmforge.models.config import ActivationFunction
from rocmforge_reference import ops
from rocmforge_reference.ops import activate
from tests.data.models.goldens.llama_cpp_towers import (
    COLUMNS,
    MODELS,
    ROWS,
    llama_cpp_golden,
    write_for_llama_cpp,
)
from tests.data.models.towers.tiny_tower import PARTS, TinyTower
from tests.support.engine.core import reports
from tests.support.models.options import SMALL
from tests.support.models.towers import Loaded, load_both, shown

TOLERANCE = 1e-4
"""Of a log-probability, or of a row relative to its spread; the files have four or five digits
behind the point."""
OPTIONS = replace(SMALL, max_batched_tokens=256, max_context=256, kv_blocks=64)


def always_tanh(x: npt.NDArray[Any], activation: ActivationFunction) -> npt.NDArray[Any]:
    """Takes the tanh form of every GELU, as llama.cpp's towers do."""
    exact = activation is ActivationFunction.GELU
    return activate(x, ActivationFunction.GELU_TANH if exact else activation)


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> TinyTower:
    found: TinyTower = request.param
    return found


@pytest.fixture
def loaded(
    model: TinyTower, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Loaded]:
    monkeypatch.setattr(ops, "activate", always_tanh)
    with ExitStack() as stack:
        yield load_both(stack, backend, write_for_llama_cpp(model, tmp_path), OPTIONS)


def test_a_tower_makes_the_rows_of_llama_cpp(model: TinyTower, loaded: Loaded) -> None:
    expected = np.array(llama_cpp_golden(model.name)["rows"])
    for number, span in enumerate(shown(model, PARTS, loaded.vision).images):
        loaded.tower.submit(image_step(number, span, loaded.vision.processor))
        hidden = loaded.tower.collect().hidden
        assert hidden is not None
        rows = in_order(hidden, span, loaded.vision.processor)[list(ROWS), :COLUMNS]
        differences = np.abs(rows - expected[number])
        assert differences.max() < TOLERANCE * expected.std()


def test_an_answer_after_images_is_that_of_llama_cpp(model: TinyTower, loaded: Loaded) -> None:
    golden = llama_cpp_golden(model.name)
    prompt = shown(model, PARTS, loaded.vision)
    sampling = SamplingParams(max_tokens=len(golden["tokens"]), temperature=0.0, num_logprobs=1)
    events = [
        event for report in reports(loaded.core(), [(prompt, sampling)]) for event in report.events
    ]
    assert [token for event in events for token in event.token_ids] == golden["tokens"]
    found = [logprob.logprob for event in events for logprob in event.logprobs or ()]
    np.testing.assert_allclose(found, golden["logprobs"], rtol=0, atol=TOLERANCE)
