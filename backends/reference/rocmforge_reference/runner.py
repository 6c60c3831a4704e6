"""Executes steps, one at a time, when they are submitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from rocmforge.backend.arrays import Float32Array, Int32Array, UInt8Array
from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import NO_SOURCE, StepInput, StepOutput
from rocmforge.backend.windows import WindowGroups, in_own_blocks
from rocmforge.errors import BackendError, OutOfMemory
from rocmforge.logits.processor import LogitsProcessor
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.model import (
    hidden_states,
    logits,
    predicted_logits,
    predicted_states,
    prepare_predictor,
    sums,
)
from rocmforge_reference.model_ops import ReferenceOps, Step
from rocmforge_reference.sampling import NO_TOKEN, sample
from rocmforge_reference.weights import Weight

Arrays = tuple[Float32Array, ...]


class ReferenceRunner:
    """A model in memory. `submit` does the work; `collect` hands it out.

    Implements `CopiesBlocks` and `Rounding`.

    BLAS is kept to one thread meanwhile. Its threads meet, spinning, at the end of each of the
    hundreds of small products of a step: with as many cores to themselves that saves a third of
    the time, but where anything else runs it costs several times as much.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights[Weight],
        ops: ReferenceOps,
        info: RunnerInfo,
        processors: Mapping[str, LogitsProcessor],
        round_ops: Callable[[str, int], ReferenceOps],
        windows: WindowGroups | None = None,
    ) -> None:
        self._model: tuple[ModelConfig, ModelWeights[Weight], ReferenceOps] | None
        self._model = config, weights, ops
        self._info = info
        self._processors = processors
        self._round_ops = round_ops
        self._windows = windows
        self._blas = ThreadpoolController()
        self._output: StepOutput | None = None
        self._last_tokens = np.empty(0, np.int32)
        self._host_blocks: UInt8Array = np.empty((0, 0), np.uint8)
        self._host_states: UInt8Array = np.empty((0, 0), np.uint8)
        self._copied_ns: list[int] = []

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, step: StepInput) -> None:
        assert self._output is None, "a step was submitted before the last one was collected"
        started = time.perf_counter_ns()
        try:
            with self._blas.limit(limits=1, user_api="blas"):
                self._output = self._run(in_own_blocks(step, self._windows), started)
        except MemoryError as error:
            raise OutOfMemory(
                f"A step of {step.num_tokens} tokens with {len(step.logit_rows)} rows of logits "
                f"does not fit into memory ({error}). Lower max_batched_tokens."
            ) from error
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            raise BackendError(f"step {step.step_id}", repr(error)) from error

    def collect(self) -> StepOutput:
        assert self._output is not None, "nothing was submitted"
        output, self._output = self._output, None
        return output

    def rounded(self, kv_dtype: str, activation_bits: int) -> ReferenceRunner:
        assert self._model is not None, "the runner is closed"
        config, weights, _ = self._model
        ops = self._round_ops(kv_dtype, activation_bits)
        return ReferenceRunner(
            *(config, weights, ops, self._info, self._processors, self._round_ops, self._windows)
        )

    def open_host_blocks(self, count: int) -> UInt8Array:
        self._host_blocks = np.empty((count, self._info.block_bytes), np.uint8)
        return self._host_blocks

    def open_host_states(self, count: int) -> UInt8Array:
        self._host_states = np.empty((count, self._info.slot_bytes), np.uint8)
        return self._host_states

    def save_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        self._save(self._blocks, blocks, self._host_blocks, slots)

    def restore_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        self._restore(self._blocks, blocks, self._host_blocks, slots)

    def save_states(self, states: Int32Array, slots: Int32Array) -> None:
        self._save(self._ops.state_arrays, states, self._host_states, slots)

    def restore_states(self, states: Int32Array, slots: Int32Array) -> None:
        self._restore(self._ops.state_arrays, states, self._host_states, slots)

    def finished_copies(self) -> list[int]:
        copied, self._copied_ns = self._copied_ns, []
        return copied

    def _save(
        self, arrays: Arrays, places: Int32Array, host: UInt8Array, slots: Int32Array
    ) -> None:
        started = time.perf_counter_ns()
        for array, part in _parts(arrays, host):
            host[slots, part] = array[places].reshape(len(places), -1).view(np.uint8)
        self._copied_ns.append(time.perf_counter_ns() - started)

    def _restore(
        self, arrays: Arrays, places: Int32Array, host: UInt8Array, slots: Int32Array
    ) -> None:
        started = time.perf_counter_ns()
        for array, part in _parts(arrays, host):
            values = np.ascontiguousarray(host[slots, part]).view(np.float32)
            array[places] = values.reshape(len(places), *array.shape[1:])
        self._copied_ns.append(time.perf_counter_ns() - started)

    @property
    def _blocks(self) -> Arrays:
        """The cache by blocks of the engine, each of which may be several of an array's own."""
        count = self._info.num_blocks
        return tuple(array.reshape(count, -1) for array in self._ops.cache_arrays if array.size)

    @property
    def _ops(self) -> ReferenceOps:
        assert self._model is not None, "the runner is closed"
        return self._model[2]

    def close(self) -> None:
        self._model = None
        self._output = None

    def _run(self, step: StepInput, started_ns: int) -> StepOutput:
        assert self._model is not None, "the runner is closed"
        config, weights, ops = self._model
        token_ids = self._resolve(step)
        resolved = Step(step, token_ids, step.token_adapters)
        if step.predicts:
            hidden = predicted_states(config, weights, ops, resolved)
        else:
            hidden = hidden_states(config, weights, ops, resolved)
            prepare_predictor(config, weights, ops, resolved, hidden)
        found = sums(config, weights, ops, resolved, hidden) if len(step.hidden_ranges) else None
        if not config.causal:
            return StepOutput(
                step_id=step.step_id,
                token_ids=np.zeros(0, np.int32),
                logprobs=None,
                top_ids=None,
                top_logprobs=None,
                device_ns=time.perf_counter_ns() - started_ns,
                hidden=found,
            )
        logits_of = predicted_logits if step.predicts else logits
        rows = logits_of(config, weights, ops, resolved, hidden)
        from_device = step.token_source[step.logit_rows] != NO_SOURCE
        pending = np.where(from_device, token_ids[step.logit_rows], np.int32(NO_TOKEN))
        samples = sample(rows, step.sampling, pending, self._processors)
        self._last_tokens = samples.token_ids
        return StepOutput(
            step_id=step.step_id,
            token_ids=samples.token_ids,
            logprobs=samples.logprobs,
            top_ids=samples.top_ids,
            top_logprobs=samples.top_logprobs,
            device_ns=time.perf_counter_ns() - started_ns,
            hidden=found,
        )

    def _resolve(self, step: StepInput) -> Int32Array:
        """Returns the token ids, with those of the previous step filled in.

        A row that could not be sampled stands for token 0: its sequence is about to be ended.
        """
        known = step.token_source == NO_SOURCE
        if known.all():
            return step.token_ids
        token_ids = step.token_ids.copy()
        token_ids[~known] = np.maximum(self._last_tokens[step.token_source[~known]], 0)
        return token_ids


def _parts(arrays: Arrays, host: UInt8Array) -> list[tuple[Float32Array, slice]]:
    """Returns the arrays, and where their bytes are in a slot of the host's memory."""
    parts, end = [], 0
    for array in arrays:
        start, end = end, end + array[0].nbytes
        if end > start:  # a layer without attention has no keys
            parts.append((array, slice(start, end)))
    assert end == host.shape[1], "all of it is copied"
    return parts
