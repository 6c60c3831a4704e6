"""An encoder that answers at once and checks that it gets whole prompts and nothing else."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import NO_SOURCE, StepInput, StepOutput
from tests.support.fakes.fake_backend import DEVICE, FakeMistake
from tests.support.fakes.fake_model import HIDDEN_SIZE, hidden_states


class FakeEncoder:
    """A runner whose made-up state of a token depends on all tokens of the prompt."""

    def __init__(self, *, max_context: int, pipeline_depth: int) -> None:
        self._steps: deque[StepInput] = deque()
        self.num_steps = 0
        self.info = RunnerInfo(
            backend="fake",
            device=DEVICE,
            block_size=16,
            num_blocks=0,
            max_context=max_context,
            vocab_size=1000,
            pipeline_depth=pipeline_depth,
            weights_bytes=0,
            kv_bytes=0,
            kv_dtype="none",
            hidden_size=HIDDEN_SIZE,
            causal=False,
            notes=(),
        )

    def submit(self, step: StepInput) -> None:
        lengths = np.diff(step.query_start)
        expected = np.concatenate([np.arange(length) for length in lengths])
        for is_right, what in (
            (np.array_equal(step.positions, expected), "prompts begin at position 0"),
            (np.array_equal(step.context_len, lengths), "prompts are whole"),
            (step.block_table.shape == (len(lengths), 0), "there are no blocks"),
            (len(step.logit_rows) == step.sampling.num_rows == 0, "there are no logits"),
            ((step.token_source == NO_SOURCE).all(), "all tokens are known"),
            (len(step.hidden_ranges) == len(lengths), "every prompt wants its states"),
        ):
            if not is_right:
                raise FakeMistake(what)
        self._steps.append(step)
        self.num_steps += 1

    def collect(self) -> StepOutput:
        step = self._steps.popleft()
        states = np.concatenate(
            [
                encoder_states(step.token_ids[first:end])
                for first, end in zip(step.query_start[:-1], step.query_start[1:], strict=True)
            ]
        )
        sums = [states[first:end].sum(axis=0) for first, end in step.hidden_ranges.tolist()]
        return StepOutput(
            step_id=step.step_id,
            token_ids=np.zeros(0, np.int32),
            logprobs=None,
            top_ids=None,
            top_logprobs=None,
            device_ns=1,
            hidden=np.stack(sums),
        )

    def close(self) -> None:
        self._steps.clear()


def encoder_states(prompt: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.float32]:
    """Made-up states of the tokens of a prompt, [N, HIDDEN_SIZE]; whole numbers."""
    whole: Float32Array = hidden_states(prompt[::-1])[-1]
    return hidden_states(prompt) + whole
