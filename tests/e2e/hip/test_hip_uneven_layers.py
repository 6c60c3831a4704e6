"""Layers may differ in the width of the feed-forward network, on both backends.

No file of ours has such a model yet: the last layer of one loses some of its features.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from rocmforge.backend.protocol import Backend
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.blocks import WeightPlace
from rocmforge.models.weights import map_places, take, walk
from rocmforge.opening import open_checkpoint
from rocmforge_hip.backend import create as create_hip
from rocmforge_reference.backend import create as create_reference
from tests.backend.driving import Chunk, Driver
from tests.data.models.tiny_models import PROMPT, by_name, write_model
from tests.support.hip import fitting
from tests.support.options import SMALL

KEPT = 64  # features, of 96
TOLERANCE = 0.03  # of log-probabilities, relative to the spread of the logits


def narrow(place: WeightPlace, tensor: Tensor) -> Tensor:
    """The part of a weight of the last layer that is left."""
    sizes = place.declared.shape
    if place.layer != 1 or "intermediate_size" not in sizes:
        return tensor
    return tensor.slice(sizes.index("intermediate_size"), 0, KEPT)


def load_narrow(stack: ExitStack, backend: Backend, path: Path) -> Driver:
    """The model with a narrow last layer."""
    with open_checkpoint(path) as checkpoint:
        first, last = checkpoint.config.layers
        layers = (first, replace(last, intermediate_size=KEPT))
        config = replace(checkpoint.config, layers=layers)
        tensors = map_places(take(config, checkpoint.weights), narrow)
        weights = {place.path: tensor for place, tensor in walk(tensors)}
        changed = replace(checkpoint, config=config, weights=weights)
        runner = backend.load(changed, SMALL, lambda stage, share: None)
    return Driver(stack.enter_context(closing(runner)))


def logprobs(driver: Driver, tokens: list[int], start: int) -> np.ndarray:
    chunk = Chunk(tokens=tokens, start=start, blocks=[3, 1, 2, 4])
    return np.array(driver.logprobs(chunk, [len(tokens) - 1]))


def test_layers_of_different_width_give_the_references_logits(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    ours, theirs = (
        load_narrow(stack, backend, path) for backend in (create_hip(), create_reference())
    )
    # Several tokens, which go through GEMM, and one more, which goes through GEMV.
    for tokens, start in ((PROMPT[:20], 0), (PROMPT[20:21], 20)):
        got, expected = (logprobs(driver, list(tokens), start) for driver in (ours, theirs))
        assert np.abs(got - expected).max() / expected.std() < TOLERANCE
