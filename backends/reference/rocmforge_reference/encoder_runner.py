"""Executes the steps of an encoder, one at a time, when they are submitted."""

from __future__ import annotations

import time

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from rocmforge.backend.protocol import RunnerInfo, StepInput, StepOutput
from rocmforge.errors import BackendError, OutOfMemory
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.encoder import encode
from rocmforge_reference.model_ops import ReferenceOps, Step
from rocmforge_reference.weights import Weight


class ReferenceEncoderRunner:
    """An encoder in memory. BLAS has one thread, as in `ReferenceRunner`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights[Weight],
        ops: ReferenceOps,
        info: RunnerInfo,
    ) -> None:
        self._model: tuple[ModelConfig, ModelWeights[Weight], ReferenceOps] | None
        self._model = config, weights, ops
        self._info = info
        self._blas = ThreadpoolController()
        self._output: StepOutput | None = None

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, step: StepInput) -> None:
        assert self._output is None, "a step was submitted before the last one was collected"
        assert self._model is not None, "the runner is closed"
        started = time.perf_counter_ns()
        try:
            with self._blas.limit(limits=1, user_api="blas"):
                hidden = encode(*self._model, Step(step, step.token_ids, step.token_adapters))
        except MemoryError as error:
            raise OutOfMemory(
                f"A step of {step.num_tokens} tokens does not fit into memory ({error}). Lower "
                "max_batched_tokens."
            ) from error
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            raise BackendError(f"step {step.step_id}", repr(error)) from error
        self._output = StepOutput(
            step_id=step.step_id,
            token_ids=np.zeros(0, np.int32),
            logprobs=None,
            top_ids=None,
            top_logprobs=None,
            device_ns=time.perf_counter_ns() - started,
            hidden=hidden,
        )

    def collect(self) -> StepOutput:
        assert self._output is not None, "nothing was submitted"
        output, self._output = self._output, None
        return output

    def close(self) -> None:
        self._model = None
        self._output = None
