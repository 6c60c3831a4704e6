"""Executes steps on the device: one copy up, kernels or a graph of them, one copy down.

Masks may be an exception: they are copied when the forward pass runs already, and sampling waits.

Two steps may be in flight. All work is in one stream, so a step begins when the one before it has
ended, and may read the tokens that one sampled. The host has two sets of pinned buffers and events
and waits for one event only, when a result is collected.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rocmforge.backend.protocol import RunnerInfo, StepCost, StepInput, StepOutput, UInt32Array
from rocmforge.errors import EngineError, OutOfMemory
from rocmforge.models.config import ModelConfig
from rocmforge.models.decoder import hidden_states, logits
from rocmforge.models.weights import ModelWeights
from rocmforge_hip.activations import MAX_ALTERNATIVES, Activation, StepLimits
from rocmforge_hip.driver import Driver, HipError
from rocmforge_hip.geometry import BLOCK_TOKENS
from rocmforge_hip.graphs import GraphCache
from rocmforge_hip.library import KernelLibrary
from rocmforge_hip.lora_plan import most_tiles, tile_rows
from rocmforge_hip.memory import Arena, DeviceArray, Memory, PinnedBuffer
from rocmforge_hip.ops import HipOps
from rocmforge_hip.sampler import Sampler
from rocmforge_hip.step import (
    NO_LISTS,
    DeviceStep,
    ListSizes,
    OutputLayout,
    SamplingNeeds,
    StepLayout,
    StepShape,
)
from rocmforge_hip.traffic import StepReads
from rocmforge_hip.weight_plan import LOGITS
from rocmforge_hip.weights import Weight, ceil_div

PIPELINE_DEPTH: Final = 2
_MIN_GRAPH_BLOCKS: Final = 8
_BUCKETS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Device:
    """What a loaded model holds of the device; freed in this order, from the last to the first."""

    driver: Driver
    stream: int
    library: KernelLibrary
    memory: Memory


@dataclass(frozen=True, slots=True)
class Model:
    """The model on the device."""

    config: ModelConfig
    weights: ModelWeights[Weight]
    ops: HipOps
    sampler: Sampler
    arena: Arena
    inputs: DeviceArray  # bytes


@dataclass(frozen=True, slots=True)
class _Lane:
    """Host buffers and events of one of the steps in flight."""

    inputs: PinnedBuffer
    outputs: PinnedBuffer
    started: int


class _Forward(NamedTuple):
    """What a forward pass left for the end of its step."""

    hidden: Activation | None  # of all tokens, if sums of it are wanted
    logits: Activation | None  # None if a graph has sampled them too


@dataclass(frozen=True, slots=True)
class _Unmasked:
    """A step that waits for its masks before it samples."""

    lane: _Lane
    ended: int
    layout: StepLayout
    step: DeviceStep
    forward: _Forward
    output: OutputLayout


@dataclass(frozen=True, slots=True)
class _InFlight:
    lane: _Lane
    ended: int  # event
    bytes_read: int
    step_id: int
    rows: int
    output: OutputLayout
    host_rows: int


class HipRunner:
    """Implements `Runner`."""

    def __init__(
        self,
        device: Device,
        model: Model,
        limits: StepLimits,
        info: RunnerInfo,
        reads: StepReads,
    ) -> None:
        self._device = device
        self._model: Model | None = model
        self._limits = limits
        self._info = info
        self._graphs = GraphCache(device.driver, device.stream)
        self._reads = reads
        self._lanes = [self._new_lane(device, model) for _ in range(PIPELINE_DEPTH)]
        # One more than lanes: when a step is collected, the one before has not lost its own.
        self._ends = [device.driver.create_event(timed=True) for _ in range(PIPELINE_DEPTH + 1)]
        self._ended_last: int | None = None
        self._launches = device.driver.launches
        self._in_flight: deque[_InFlight] = deque()
        self._layouts: dict[StepShape, tuple[StepLayout, dict[str, DeviceArray]]] = {}
        self._unmasked: _Unmasked | None = None
        self._failure: EngineError | None = None

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def driver(self) -> Driver:
        """For its counters."""
        return self._device.driver

    def submit(self, step: StepInput) -> None:
        assert len(self._in_flight) < PIPELINE_DEPTH, "too many steps in flight"
        assert self._unmasked is None, "the step before waits for its masks"
        self._check_alive()
        try:
            self._in_flight.append(self._start(step))
        except EngineError as error:
            self._failure = error
            raise

    def constrain(self, allowed: UInt32Array) -> None:
        assert self._unmasked is not None, "no step waits for masks"
        self._check_alive()
        waiting, self._unmasked = self._unmasked, None
        driver, stream = self._device.driver, self._device.stream
        section = waiting.layout.masks
        # Rows beyond those of the step are padding, and keep the masks that they have.
        target = waiting.lane.inputs.bytes[section.offset : section.stop].view(np.uint32)
        target[: allowed.size] = allowed.reshape(-1)
        try:
            driver.copy_to_device(
                waiting.step.inputs["allowed"].address,
                waiting.lane.inputs.address + section.offset,
                section.stop - section.offset,
                stream,
            )
            self._finish(waiting.lane, waiting.ended, waiting.step, waiting.forward, waiting.output)
        except EngineError as error:
            self._failure = error
            raise

    def collect(self) -> StepOutput:
        assert self._in_flight, "nothing was submitted"
        self._check_alive()
        done = self._in_flight.popleft()
        driver = self._device.driver
        try:
            driver.synchronize_event(done.ended)
            device_ns = driver.elapsed_ns(done.lane.started, done.ended)
            cost = self._cost(done)
        except EngineError as error:
            self._failure = error
            raise
        tokens, logprobs, top_ids, top_logprobs = done.output.read(
            done.lane.outputs.bytes, done.rows
        )
        return StepOutput(
            step_id=done.step_id,
            token_ids=tokens,
            logprobs=logprobs,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            device_ns=device_ns,
            hidden=done.output.read_hidden(done.lane.outputs.bytes),
            host_processed_rows=done.host_rows,
            cost=cost,
        )

    def _cost(self, done: _InFlight) -> StepCost:
        driver, before = self._device.driver, self._ended_last
        self._ended_last = done.ended
        launches, self._launches = driver.launches - self._launches, driver.launches
        return StepCost(
            bytes_read=done.bytes_read,
            launches=launches,
            gap_ns=0 if before is None else driver.elapsed_ns(before, done.lane.started),
        )

    def close(self) -> None:
        if self._model is None:
            return
        self._model = None
        device = self._device
        try:
            device.driver.synchronize_stream(device.stream)
            self._graphs.close()
            for lane in self._lanes:
                device.driver.destroy_event(lane.started)
            for event in self._ends:
                device.driver.destroy_event(event)
            release(device)
        except HipError:
            # A device that has failed answers every call with its error; the process ends next,
            # which gives everything back.
            if self._failure is None:
                raise

    def _check_alive(self) -> None:
        assert self._model is not None, "the runner is closed"
        if self._failure is not None:
            raise self._failure

    def _start(self, step: StepInput) -> _InFlight:
        assert self._model is not None
        model, driver, stream = self._model, self._device.driver, self._device.stream
        lane = self._lanes[step.step_id % len(self._lanes)]
        ended = self._ends[step.step_id % len(self._ends)]
        needs = SamplingNeeds.of(step.sampling)
        bucket = self._bucket(step)
        shape = bucket or exact_shape(step)
        layout, arrays = self._layout(shape, step, model, is_bucket=bucket is not None)
        self._check_size(step, layout, needs, model)
        layout.pack(step, lane.inputs.bytes)
        driver.record_event(lane.started, stream)
        is_masked_later = step.sampling.is_masked_later
        size = layout.masks.offset if is_masked_later else layout.nbytes
        driver.copy_to_device(model.inputs.address, lane.inputs.address, size, stream)
        on_device = DeviceStep(shape, arrays, needs, step)
        forward = self._compute(on_device, model, is_bucket=bucket is not None)
        output = OutputLayout(
            shape.rows, needs.logprobs, needs.alternatives, shape.sums, model.config.dim
        )
        if is_masked_later:
            assert forward.logits is not None, "masks keep sampling out of graphs"
            self._unmasked = _Unmasked(lane, ended, layout, on_device, forward, output)
        else:
            self._finish(lane, ended, on_device, forward, output)
        processors = step.sampling.processors
        host_rows = model.sampler.processors.host_rows(processors) if processors else 0
        return _InFlight(
            lane,
            ended,
            self._reads.of(step),
            step.step_id,
            len(step.logit_rows),
            output,
            host_rows,
        )

    def _finish(
        self, lane: _Lane, ended: int, step: DeviceStep, forward: _Forward, output: OutputLayout
    ) -> None:
        """Samples, unless that was done with the forward pass, and brings the results."""
        assert self._model is not None
        driver, stream, sampler = self._device.driver, self._device.stream, self._model.sampler
        if forward.logits is not None:
            sampler.sample(step, forward.logits)
        source = sampler.tokens.address
        if forward.hidden is not None:
            # Only now, as sampling reads tokens of the step before, which may be overwritten.
            self._model.ops.sum_hidden(step, forward.hidden, output.hidden(source))
        if output.nbytes:
            driver.copy_to_host(lane.outputs.address, source, output.nbytes, stream)
        driver.record_event(ended, stream)

    def _compute(self, step: DeviceStep, model: Model, *, is_bucket: bool) -> _Forward:
        if not is_bucket:
            hidden, rows = self._forward(step, model)
            return _Forward(hidden if step.shape.sums else None, rows)
        # Penalties, biases, processors and log-probabilities come with arrays whose sizes are not
        # the shape's.
        samples_in_graph = not (step.needs.adjusts or step.needs.logprobs)

        def record() -> None:
            _, rows = self._forward(step, model)
            if samples_in_graph:
                model.sampler.sample(step, rows)

        key = (step.shape, step.needs) if samples_in_graph else (step.shape, None)
        self._graphs.launch(key, record)
        if samples_in_graph:
            return _Forward(hidden=None, logits=None)
        count, vocab = step.shape.rows, model.config.vocab_size
        array = model.arena[f"{LOGITS}.f32"].first(count, vocab)
        return _Forward(hidden=None, logits=Activation(LOGITS, count, vocab, f32=array))

    def _forward(self, step: DeviceStep, model: Model) -> tuple[Activation, Activation]:
        """Hidden states of all tokens, and logits."""
        model.sampler.resolve_tokens(step)
        hidden = hidden_states(model.config, model.weights, model.ops, step)
        return hidden, logits(model.config, model.weights, model.ops, step, hidden)

    def _bucket(self, step: StepInput) -> StepShape | None:
        """The shape of the graph for a step of decodes, None for any other step."""
        count = step.num_sequences
        if step.num_tokens != count or len(step.logit_rows) != count or len(step.hidden_ranges):
            return None
        size = min(next(size for size in _BUCKETS if count <= size), self._limits.sequences)
        blocks = ceil_div(int(step.context_len.max()), BLOCK_TOKENS)
        most = ceil_div(self._limits.context, BLOCK_TOKENS)
        blocks = min(max(1 << (blocks - 1).bit_length(), _MIN_GRAPH_BLOCKS), most)
        return StepShape(
            tokens=size,
            sequences=size,
            rows=size,
            blocks=blocks,
            decodes=size,
            prefills=0,
            longest_prefill=0,
            lora_tiles=most_tiles(size, self._limits.adapters) if len(step.adapters) else 0,
        )

    def _layout(
        self, shape: StepShape, step: StepInput, model: Model, *, is_bucket: bool
    ) -> tuple[StepLayout, dict[str, DeviceArray]]:
        """The layout of a step and its arrays; those of buckets are kept."""
        lists = ListSizes.of(step.sampling)
        if is_bucket and lists == NO_LISTS and shape in self._layouts:
            return self._layouts[shape]
        layout = StepLayout(shape, lists)
        found = layout, layout.arrays(model.inputs.address)
        if is_bucket and lists == NO_LISTS:
            self._layouts[shape] = found
        return found

    def _check_size(
        self, step: StepInput, layout: StepLayout, needs: SamplingNeeds, model: Model
    ) -> None:
        limits = self._limits
        if (
            step.num_tokens > limits.tokens
            or step.num_sequences > limits.sequences
            or len(step.logit_rows) > limits.rows
            or len(step.hidden_ranges) > limits.sequences
            or layout.nbytes > model.inputs.nbytes
            or needs.alternatives > MAX_ALTERNATIVES
        ):
            raise OutOfMemory(
                f"A step of {step.num_tokens} tokens, {step.num_sequences} sequences, "
                f"{len(step.hidden_ranges)} sums of hidden states, {len(step.logit_rows)} rows of "
                f"logits with {needs.alternatives} alternatives and {layout.nbytes:,} bytes of "
                f"input exceeds what was planned at load: {limits.tokens} tokens, "
                f"{limits.sequences} sequences, {limits.rows} rows, "
                f"{MAX_ALTERNATIVES} alternatives, {model.inputs.nbytes:,} bytes."
            )

    @staticmethod
    def _new_lane(device: Device, model: Model) -> _Lane:
        driver, memory = device.driver, device.memory
        return _Lane(
            memory.pinned(model.inputs.nbytes, "inputs of a step"),
            memory.pinned(model.sampler.tokens.nbytes, "results of a step"),
            driver.create_event(timed=True),
        )


def release(device: Device) -> None:
    """Gives back everything a model holds of a device that has nothing to do."""
    for buffer in device.memory.release():
        buffer.free()
    device.library.close()
    device.driver.destroy_stream(device.stream)


def exact_shape(step: StepInput) -> StepShape:
    """The shape without padding, of a step that is not a graph's."""
    lengths = step.query_start[1:] - step.query_start[:-1]
    decodes = int((lengths == 1).sum())
    return StepShape(
        tokens=step.num_tokens,
        sequences=step.num_sequences,
        rows=len(step.logit_rows),
        blocks=max(1, ceil_div(int(step.context_len.max()), BLOCK_TOKENS)),
        decodes=decodes,
        prefills=int((lengths > 1).sum()),
        longest_prefill=int(lengths.max()),
        lora_tiles=len(tile_rows(step.token_adapters)[0]) if len(step.adapters) else 0,
        sums=len(step.hidden_ranges),
    )
