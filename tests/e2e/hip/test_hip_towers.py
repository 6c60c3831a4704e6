"""Towers on the HIP backend, from pixels to logits: against Transformers, and the reference."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.waiting.images import image_step, in_order
from rocmforge_hip.backend import create as create_hip
from rocmforge_reference.backend import create as create_reference
from tests.data.models.tiny_towers import (
    GEMMA3,
    GOLDEN_ROWS,
    PARTS,
    TinyTower,
    goldens,
    write_tower_folder,
)
from tests.data.models.towers import TOWERS
from tests.support.core import tokens_of
from tests.support.options import SMALL
from tests.support.towers import load_both, shown

pytestmark = pytest.mark.slow

TOLERANCE = 0.01  # relative to the largest element: halves between matrix products
OPTIONS = replace(
    SMALL, max_context=256, kv_blocks=64, max_batched_tokens=128, decode_variant="fused"
)
SAMPLING = SamplingParams(max_tokens=12, temperature=0.0)


@pytest.mark.parametrize("model", TOWERS, ids=lambda model: model.name)
def test_a_tower_makes_the_rows_of_transformers_and_answers_are_the_references(
    model: TinyTower, stack: ExitStack, tmp_path: Path
) -> None:
    folder = write_tower_folder(model, tmp_path / "model")
    ours = load_both(stack, create_hip(), folder, OPTIONS)
    theirs = load_both(stack, create_reference(), folder, OPTIONS)
    expected = np.array(goldens(model.name)["rows"])
    prompt = shown(model, PARTS, ours.vision)
    for number, span in enumerate(prompt.images):
        ours.tower.submit(image_step(number, span, ours.vision.processor))
        hidden = ours.tower.collect().hidden
        assert hidden is not None
        rows = in_order(hidden, span, ours.vision.processor)[list(GOLDEN_ROWS)]
        difference = np.abs(rows - expected[number]).max()
        assert difference < TOLERANCE * np.abs(expected[number]).max()
    found, _ = tokens_of(ours.core(), [(prompt, SAMPLING)])
    wanted, _ = tokens_of(theirs.core(), [(prompt, SAMPLING)])
    assert found == wanted


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
