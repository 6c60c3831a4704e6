"""The reference backend with a mistake, to see who notices it.

For `--backend`: `tests.support.erring_backend:create`, whose first layer gives 1% too much, or
`tests.support.erring_backend:create_nan`, whose logits hold a NaN in the first step that decodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmforge.backend.protocol import (
    LoadOptions,
    ProbeResult,
    ProgressCallback,
    Runner,
    StepInput,
)
from rocmforge.models.checkpoint import Checkpoint
from rocmforge_reference.backend import create as create_reference
from rocmforge_reference.runner import ReferenceRunner

ERROR = np.float32(1.01)


class ErringBackend:
    """Loads a model with the reference backend and makes it wrong."""

    name = "erring"

    def __init__(self, *, is_broken: bool) -> None:
        self._reference = create_reference()
        self._is_broken = is_broken

    def probe(self) -> ProbeResult:
        return self._reference.probe()

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> Runner:
        runner = self._reference.load(checkpoint, options, progress)
        if self._is_broken:
            return Breaking(runner)
        spoil_layer(runner, 0)
        return runner


class Breaking:
    """A runner whose output matrix is lost once it has computed its first prompt."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.info = runner.info
        self.collect = runner.collect
        self.close = runner.close

    def submit(self, step: StepInput) -> None:
        if step.num_tokens == step.num_sequences:
            weights_of(self._runner).output.values[...] = np.nan
        self._runner.submit(step)


def create() -> ErringBackend:
    return ErringBackend(is_broken=False)


def create_nan() -> ErringBackend:
    return ErringBackend(is_broken=True)


def spoil_layer(runner: Runner, layer: int) -> None:
    """Has attention and network of a layer give 1% too much."""
    weights = weights_of(runner).layers[layer]
    weights.attention.output.values[...] *= ERROR
    weights.feed_forward.down.values[...] *= ERROR


def weights_of(runner: Runner) -> Any:
    assert isinstance(runner, ReferenceRunner)
    assert runner._model is not None
    return runner._model[1]
