"""The reference backend with a mistake, to see who notices it.

For `--backend`: `tests.support.fakes.erring_backend:` and one of

    create          the first layer gives 1% too much
    create_last     the last one does
    create_second   the second one does, if there is one
    create_nan      logits hold a NaN from the first step on that only decodes
    create_right    nothing is wrong
    create_hip_third    the HIP backend, whose third layer gives 3% too much
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rocmforge.backend.protocol import LoadOptions, ProbeResult, ProgressCallback, Runner
from rocmforge.backend.step import StepInput
from rocmforge.checkpoint.tensor import float32_tensor
from rocmforge.models.checkpoint import Checkpoint
from rocmforge_hip.backend import create as create_hip
from rocmforge_reference.backend import create as create_reference
from rocmforge_reference.runner import ReferenceRunner

ERROR = np.float32(1.01)
LARGE_ERROR = np.float32(1.03)


class ErringBackend:
    """Loads a model with the reference backend and makes it wrong."""

    name = "erring"

    def __init__(self, layer: int | None, *, is_broken: bool = False) -> None:
        self._reference = create_reference()
        self._layer = layer
        self._is_broken = is_broken

    def probe(self) -> ProbeResult:
        return self._reference.probe()

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> Runner:
        runner = self._reference.load(checkpoint, options, progress)
        if self._is_broken:
            return Breaking(runner)
        if self._layer is not None and self._layer < checkpoint.config.num_layers:
            spoil_layer(runner, self._layer)
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
    return ErringBackend(0)


def create_last() -> ErringBackend:
    return ErringBackend(-1)


def create_second() -> ErringBackend:
    return ErringBackend(1)


def create_nan() -> ErringBackend:
    return ErringBackend(None, is_broken=True)


def create_right() -> ErringBackend:
    return ErringBackend(None)


def create_hip_third() -> SpoilingBackend:
    return SpoilingBackend(2)


class SpoilingBackend:
    """The HIP backend, which is given a model with a layer that gives 3% too much."""

    name = "spoiling"

    def __init__(self, layer: int) -> None:
        self._hip = create_hip()
        self._layer = layer

    def probe(self) -> ProbeResult:
        return self._hip.probe()

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> Runner:
        weights = dict(checkpoint.weights)
        for name in ("attention.output", "feed_forward.down"):
            key = f"layers.{self._layer}.{name}"
            weights[key] = float32_tensor(key, weights[key].to_float32() * LARGE_ERROR)
        return self._hip.load(replace(checkpoint, weights=weights), options, progress)


def spoil_layer(runner: Runner, layer: int) -> None:
    """Has attention and network of a layer give 1% too much."""
    weights = weights_of(runner).layers[layer]
    weights.attention.output.values[...] *= ERROR
    weights.feed_forward.down.values[...] *= ERROR


def weights_of(runner: Runner) -> Any:
    assert isinstance(runner, ReferenceRunner)
    assert runner._model is not None
    return runner._model[1]
