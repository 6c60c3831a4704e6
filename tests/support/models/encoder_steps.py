"""Steps of encoders, laid out by the engine itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import StepInput
from rocmforge.engine.ipc.params import GenerateRequest, Pooling, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.schedule.batch import build_step
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.step_builder import StepBuilder
from rocmforge.engine.sequence import sequence

LIMITS = SchedulerLimits(max_sequences=64, max_batched_tokens=8192, max_waiting=0)


def encoder_step(step_id: int, prompts: Sequence[Sequence[int]], pooling: Pooling) -> StepInput:
    """A step that computes whole prompts, and the sum of states that this kind of pooling wants."""
    step = StepBuilder(LIMITS, whole_prompts=True)
    for number, prompt in enumerate(prompts):
        request = GenerateRequest(
            request_id=number,
            prompt=token_prompt(prompt),
            sampling=SamplingParams(max_tokens=0, pooling=pooling),
            eos_ids=(),
            arrival_ns=0,
        )
        step.add(sequence.Sequence(request, 16), len(prompt))
    return build_step(step_id, step.chunks, 16)


def run(runner: Runner, step: StepInput) -> Float32Array:
    """What the runner returns for the step's ranges, [P, hidden_size]."""
    runner.submit(step)
    output = runner.collect()
    assert output.step_id == step.step_id
    assert len(output.token_ids) == 0
    assert output.hidden is not None
    assert output.hidden.shape == (len(step.hidden_ranges), runner.info.hidden_size)
    assert output.hidden.dtype == np.float32
    return output.hidden


def states(runner: Runner, prompt: Sequence[int], rows: Sequence[int]) -> Float32Array:
    """States of these tokens of a prompt, [rows, D], each from a sequence of its own."""
    step = encoder_step(0, [prompt] * len(rows), Pooling.MEAN)
    first = step.query_start[:-1] + np.array(rows, np.int32)
    return run(runner, replace(step, hidden_ranges=np.stack([first, first + 1], axis=1)))
