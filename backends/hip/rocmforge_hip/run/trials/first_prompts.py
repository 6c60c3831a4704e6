"""Computes prompts before anybody asks, so that the first to ask need not wait for first times.

A driver may put off work until a kernel is launched first. Steps of decodes are run at load in all
kinds (`graph_check`, `variants`), but of prompts only a short one: kernels for larger tiles and
splits would be launched first by requests. What waits behind such a step waits as long, and the
engine, which learns from it what steps cost, makes the next ones small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.trials.graph_check import Agree
from rocmforge_hip.run.trials.steps import TrialSteps

MOST_SECONDS: Final = 0.5
"""After which no larger prompt is tried: where steps take as long, a first time adds little."""
_LEAST_TOKENS: Final = 16


def try_prompts(
    runner: HipRunner, limits: StepLimits, agree: Agree, progress: Callable[[float], None]
) -> None:
    """Computes a prompt of each size, small ones first, and draws a token behind each.

    Each is twice as long as the one before it, up to the largest step. It takes at most
    `MOST_SECONDS` and a prompt. What the steps leave in the cache is never read, as in
    `check_graphs`.

    Args:
        runner: Of a causal model; computes and has nothing in flight.
        limits: Of its steps.
        agree: Between the ranks, which all do this at the same time.
        progress: Is told the share that is done.

    Raises:
        EngineError: The device failed.
    """
    started = time.perf_counter()
    steps = TrialSteps(runner, limits)
    for size in _sizes(steps.longest_prompt):
        progress(size / steps.longest_prompt)
        runner.submit(steps.prompt(0, size, draws=True))
        runner.collect()
        (ends,) = agree((time.perf_counter() - started > MOST_SECONDS,))
        if ends:
            break


def _sizes(most: int) -> Iterator[int]:
    size = _LEAST_TOKENS
    while size < most:
        yield size
        size *= 2
    yield most
