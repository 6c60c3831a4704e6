"""Layers may differ in heads, in their sizes and in width, on both backends.

No file of ours has such a model yet: one of random weights takes the place of a tiny Llama's. Its
rows are those of gpt-oss, Nemotron 3, GLM-4.5-Air and Gemma 4, which 256 does not divide, in the
format that such files have then.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from rocmforge.backend.protocol import Backend, LoadOptions
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.opening import open_checkpoint
from rocmforge_hip.backend import create as create_hip
from rocmforge_hip.run.runner import HipRunner
from rocmforge_reference.backend import create as create_reference
from tests.backend.driving import Chunk, Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.uneven import random_adapter, random_weights, uneven

# Of log-probabilities, relative to the spread of the logits, by what the cache stores.
TOLERANCES = {"f16": 0.03, "int8": 0.08}
# Heads of queries, of keys and values, elements of keys, of values, window, width. The last but one
# has 2688 results of attention, the last one more heads than a block of decode attention takes.
LAYERS = (
    (4, 2, 64, 64, None, 2880),
    (2, 1, 512, 512, None, 704),
    (21, 7, 192, 128, 7, 96),
    (5, 1, 512, 512, None, 1408),
)


def load_uneven(stack: ExitStack, backend: Backend, path: Path, options: LoadOptions) -> Driver:
    """The model, with an adapter."""
    with open_checkpoint(path) as checkpoint:
        config = uneven(checkpoint.config, LAYERS)
        changed = replace(
            checkpoint,
            config=config,
            weights=random_weights(config),
            adapters=(random_adapter(config),),
        )
        runner = backend.load(changed, options, lambda stage, share: None)
    return Driver(stack.enter_context(closing(runner)))


def chunk(start: int, stop: int, adapter: int = NO_ADAPTER) -> Chunk:
    """Some tokens of the prompt."""
    return Chunk(tokens=list(PROMPT[start:stop]), start=start, blocks=[3, 1, 2, 4], adapter=adapter)


@pytest.mark.parametrize("kv_dtype", ["f16", "int8"])
def test_layers_of_different_heads_give_the_references_logits(
    stack: ExitStack, tmp_path: Path, kv_dtype: Literal["f16", "int8"]
) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    ours = load_uneven(stack, create_hip(), path, replace(SMALL, kv_dtype=kv_dtype))
    theirs = load_uneven(stack, create_reference(), path, SMALL)
    # Several tokens, which go through GEMM, several more of a context, and one, through GEMV.
    steps = [chunk(0, 20), chunk(20, 23), chunk(23, 24), chunk(24, 25), chunk(25, 27, 0)]
    for each in (*steps, chunk(27, 28, 0)):
        rows = [len(each.tokens) - 1]
        got, expected = (np.array(driver.logprobs(each, rows)) for driver in (ours, theirs))
        assert np.abs(got - expected).max() / expected.std() < TOLERANCES[kv_dtype], each

    # Each layer's own cache counts, of window layers no more than the window.
    assert isinstance(ours.runner, HipRunner)
    element, scale = {"f16": (2, 0), "int8": (1, 4)}[kv_dtype]
    seen = [
        kv_heads * (element * (key_dim + value_dim) + 2 * scale)
        for _, kv_heads, key_dim, value_dim, window, _ in LAYERS
        if window is None
    ]
    first, second = (ours.run(chunk(at, at + 1)).cost for at in (28, 29))
    assert first is not None
    assert second is not None
    assert second.bytes_read - first.bytes_read == sum(seen)
