"""Executes the steps of an encoder: one copy up, kernels, one copy down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rocmforge.backend.protocol import RunnerInfo, StepInput, StepOutput
from rocmforge.errors import OutOfMemory
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.encoder import encode
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.ops.linear import f32_of
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.ops.step import DeviceStep, SamplingNeeds, StepLayout
from rocmforge_hip.run.base import BaseRunner
from rocmforge_hip.run.decoder import exact_shape
from rocmforge_hip.run.pipeline import Lane
from rocmforge_hip.weights.formats import Weight


@dataclass(frozen=True, slots=True)
class Encoder:
    """The model on the device."""

    config: ModelConfig
    weights: ModelWeights[Weight]
    ops: HipOps
    inputs: DeviceArray  # bytes


@dataclass(frozen=True, slots=True)
class _InFlight:
    step_id: int
    sums: int


class HipEncoderRunner(BaseRunner[Encoder, _InFlight]):
    """Implements `Runner`."""

    def __init__(
        self, device: Device, model: Encoder, limits: StepLimits, info: RunnerInfo
    ) -> None:
        output_bytes = limits.sequences * model.config.output_size * 4
        super().__init__(device, model, limits, info, output_bytes)

    def submit(self, step: StepInput) -> None:
        self._pipeline.submit(partial(self._start, step))

    def collect(self) -> StepOutput:
        lane, done, timing = self._pipeline.collect()
        count = done.sums * self._info.hidden_size
        hidden = lane.outputs.bytes[: count * 4].view(np.float32).copy()
        return StepOutput(
            step_id=done.step_id,
            token_ids=np.zeros(0, np.int32),
            logprobs=None,
            top_ids=None,
            top_logprobs=None,
            device_ns=timing.device_ns,
            hidden=hidden.reshape(done.sums, -1) if done.sums else None,
        )

    def _start(self, step: StepInput, lane: Lane, ended: int) -> _InFlight:
        model, driver, stream = self._model, self._device.driver, self._device.stream
        self._check_size(step)
        shape = replace(exact_shape(step), blocks=0)  # there is no cache
        layout = StepLayout(shape)
        layout.pack(step, lane.inputs.bytes)
        driver.record_event(lane.started, stream)
        driver.copy_to_device(model.inputs.address, lane.inputs.address, layout.nbytes, stream)
        if shape.sums:  # a step leaves nothing else behind
            arrays = layout.arrays(model.inputs.address)
            on_device = DeviceStep(shape, arrays, SamplingNeeds.of(step.sampling))
            found = f32_of(encode(model.config, model.weights, model.ops, on_device))
            driver.copy_to_host(lane.outputs.address, found.address, found.nbytes, stream)
        driver.record_event(ended, stream)
        return _InFlight(step.step_id, shape.sums)

    def _check_size(self, step: StepInput) -> None:
        limits = self._limits
        if (
            step.num_tokens > limits.tokens
            or step.num_sequences > limits.sequences
            or len(step.hidden_ranges) > limits.sequences
            or int(step.positions.max()) >= limits.context
        ):
            raise OutOfMemory(
                f"A step of {step.num_tokens} tokens and {step.num_sequences} sequences, the "
                f"longest of {int(step.positions.max()) + 1} tokens, exceeds what was planned at "
                f"load: {limits.tokens} tokens, {limits.sequences} sequences of {limits.context}."
            )
