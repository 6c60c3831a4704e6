"""Towers on the HIP backend, from pixels to logits: against Transformers, and the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import Backend, Runner
from rocmforge.backend.step import StepOutput
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.prompt import image_span
from rocmforge.engine.waiting.images import image_step, in_order
from rocmforge.pixels.processors.patches import tile_of
from rocmforge_hip.backend import create as create_hip
from rocmforge_reference.backend import create as create_reference
from tests.data.models.towers.tiny_gemma4_tower import GEMMA4, GEMMA4_E
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED
from tests.data.models.towers.tiny_internvl import INTERNVL
from tests.data.models.towers.tiny_picture_experts import QWEN3_VL_MOE
from tests.data.models.towers.tiny_pixtral import MISTRAL3, PIXTRAL
from tests.data.models.towers.tiny_tower import (
    GOLDEN_ROWS,
    GOLDEN_TOKENS,
    PARTS,
    TinyTower,
    goldens,
)
from tests.data.models.towers.tiny_towers import GEMMA3
from tests.data.models.towers.tiny_windows import QWEN25_VL
from tests.data.models.towers.tower_files import write_tower_files, write_tower_folder
from tests.data.models.towers.towers import TOWERS
from tests.support.engine.core import reports, tokens_of
from tests.support.models.options import SMALL
from tests.support.models.towers import load_both, shown

pytestmark = pytest.mark.slow

TOLERANCE = 0.01  # relative to the largest element: halves between matrix products
OPTIONS = replace(
    SMALL, max_context=256, kv_blocks=64, max_batched_tokens=128, decode_variant="fused"
)
SAMPLING = SamplingParams(max_tokens=12, temperature=0.0)

IN_FILES = (
    *(MISTRAL3, PIXTRAL, INTERNVL, QWEN25_VL, QWEN3_VL_MOE),
    *(GEMMA4, GEMMA4_E, GEMMA4_UNIFIED),
)
"""Files of the others are read on the reference backend alone: tests/backend/test_towers.py."""

Parts = Sequence[Sequence[int] | int]


@dataclass(frozen=True)
class Found:
    """What a model makes of a prompt with images."""

    rows: list[Float32Array]  # of each image
    first: dict[int, float]  # log-probabilities of the likeliest tokens behind the prompt
    answer: list[int]


class NotedTower:
    """A tower that remembers what it made."""

    def __init__(self, tower: Runner) -> None:
        self._tower = tower
        self.info = tower.info
        self.submit = tower.submit
        self.close = tower.close
        self.made: list[Float32Array] = []

    def collect(self) -> StepOutput:
        """Waits for the oldest step."""
        output = self._tower.collect()
        assert output.hidden is not None
        self.made.append(output.hidden)
        return output


def found_by(backend: Backend, path: Path, model: TinyTower, parts: Parts = PARTS) -> Found:
    """Loads a model with its tower, and shows it a prompt."""
    with ExitStack() as stack:
        loaded = load_both(stack, backend, path, OPTIONS)
        prompt, tower = shown(model, parts, loaded.vision), NotedTower(loaded.tower)
        sampling = structs.replace(SAMPLING, num_logprobs=20)
        answer: list[int] = []
        first: dict[int, float] = {}
        for report in reports(replace(loaded, tower=tower).core(), [(prompt, sampling)]):
            for event in report.events:
                assert event.error is None
                answer += event.token_ids
                for logprob in event.logprobs or ():
                    first = first or dict(logprob.top)
    rows = [
        in_order(hidden, span, loaded.vision.processor)
        for hidden, span in zip(tower.made, prompt.images, strict=True)
    ]
    return Found(rows, first, answer)


@pytest.fixture(scope="module")
def of_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyTower], Found]:
    """What this backend makes of a model's folder."""

    @cache
    def find(model_name: str) -> Found:
        (model,) = (model for model in TOWERS if model.name == model_name)
        folder = write_tower_folder(model, tmp_path_factory.mktemp("folder") / "model")
        return found_by(create_hip(), folder, model)

    return lambda model: find(model.name)


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("model", TOWERS, ids=lambda model: model.name)
def test_a_tower_makes_the_rows_of_transformers(
    model: TinyTower, of_folder: Callable[[TinyTower], Found]
) -> None:
    for rows, expected in zip(
        of_folder(model).rows, np.array(goldens(model.name)["rows"]), strict=True
    ):
        difference = np.abs(rows[list(GOLDEN_ROWS)] - expected).max()
        assert difference < TOLERANCE * np.abs(expected).max()


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("model", TOWERS, ids=lambda model: model.name)
def test_a_prompt_with_images_is_answered_as_by_transformers(
    model: TinyTower, of_folder: Callable[[TinyTower], Found]
) -> None:
    """Its log-probabilities tell apart what the tokens of an answer may not."""
    found, logits = of_folder(model), np.array(goldens(model.name)["logits"])
    last = logits[GOLDEN_TOKENS.index(-1)]
    expected = last - np.log(np.exp(last).sum())
    difference = max(abs(value - expected[token]) for token, value in found.first.items())
    assert difference < TOLERANCE * logits.std()
    answer = goldens(model.name)["answer"]
    assert found.answer[: len(answer)] == answer


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("model", IN_FILES, ids=lambda model: model.name)
def test_the_files_of_a_model_and_its_tower_give_what_its_folder_gives(
    model: TinyTower, of_folder: Callable[[TinyTower], Found], tmp_path: Path
) -> None:
    found = found_by(create_hip(), write_tower_files(model, tmp_path), model)
    expected = of_folder(model)
    assert all(map(np.array_equal, found.rows, expected.rows))
    assert found.answer == expected.answer


@pytest.mark.usefixtures("stack")
def test_a_picture_of_almost_one_colour_keeps_what_tells_its_pixels_apart(tmp_path: Path) -> None:
    """Its patches are normed first, which halves of numbers up to 1 would spoil by 2.7%."""
    folder = write_tower_folder(GEMMA4_UNIFIED, tmp_path / "model")
    picture = 143 + np.random.default_rng(3).integers(0, 3, (72, 96, 3), np.uint8)
    found = []
    for create in (create_hip, create_reference):
        with ExitStack() as stack:
            loaded = load_both(stack, create(), folder, OPTIONS)
            processor = loaded.vision.processor
            span = image_span(tile_of(picture, processor), loaded.vision.placeholder)
            loaded.tower.submit(image_step(0, span, processor))
            hidden = loaded.tower.collect().hidden
            assert hidden is not None
            found.append(hidden)
    difference = np.abs(found[0] - found[1]).max()
    assert difference < TOLERANCE * np.abs(found[1]).max()


@pytest.mark.usefixtures("stack")
def test_rows_of_an_image_see_each_other_up_to_its_last(tmp_path: Path) -> None:
    """The token behind an image tells: one row less for the others moves it by 0.018."""
    folder, parts = write_tower_folder(GEMMA3, tmp_path / "model"), ((5, 6), 0, (70,))
    found, expected = (
        found_by(create(), folder, GEMMA3, parts).first for create in (create_hip, create_reference)
    )
    both = found.keys() & expected.keys()
    assert max(abs(found[token] - expected[token]) for token in both) < 0.005


def test_images_that_are_found_up_to_their_middle_are_answered_as_by_the_reference(
    stack: ExitStack, tmp_path: Path
) -> None:
    """In small steps, with layers that release what a window has left behind."""
    folder = write_tower_folder(GEMMA3, tmp_path / "model")
    options = replace(OPTIONS, max_batched_tokens=20, max_sequences=2, releases_windows=True)
    cores = []
    for create in (create_hip, create_reference):
        loaded = load_both(stack, create(), folder, options)
        cores.append(loaded.core())
    shared = tuple(range(40, 61))  # a block ends behind 11 rows of the image behind it
    for image, end, hits in ((0, (70,), 0), (0, (80, 81), 32), (1, (70,), 32)):
        prompt = shown(GEMMA3, (shared, image, end), loaded.vision)
        found, wanted = (tokens_of(core, [(prompt, SAMPLING)]) for core in cores)
        assert found[0] == wanted[0]
        assert found[1].totals.prefix_hit_tokens == hits, "of all prompts so far"
