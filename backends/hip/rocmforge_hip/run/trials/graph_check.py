"""Compares replays of graphs with plain launches of the same steps, on the loaded model.

Open reports say that replays read what the one before them was given, on some cards and versions
of ROCm: `REPORTS`. A step that reads the positions or blocks of another gives wrong answers, and
may write into the cache of another sequence, so this is looked for before there are requests. It
is done at load, not when a graph is first used: then no request waits for it, all ranks take part
at the same point, and what to say of the device is known when the server starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rocmforge.backend.step import StepOutput
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.trials.steps import TURNS, TrialCase, TrialSteps, difference_of

REPORTS: Final = (
    "https://github.com/ROCm/hip/issues/3887",  # gfx1201, graphs of about 200 kernels or more
    "https://github.com/ROCm/hip/issues/3902",  # gfx950, an input copied just before the replay
    "https://github.com/ROCm/clr/issues/279",  # gfx942, in one of five processes
)
MOST_SECONDS: Final = 10.0
"""After which no further graph is checked."""

Agree = Callable[[Sequence[bool]], Sequence[bool]]
"""Returns which of these is true on any rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCheck:
    """The result. `str()` is for people."""

    checked: int  # graphs
    planned: int
    seconds: float
    difference: str  # the first one; "" = replays are right

    def __str__(self) -> str:
        if self.difference:
            return f"not used: {self.difference}"
        return (
            f"{self.checked} of {self.planned} checked in {self.seconds:.1f} s: replays are "
            "equal to plain launches"
        )


def check_graphs(
    runner: HipRunner, limits: StepLimits, agree: Agree, progress: Callable[[float], None]
) -> GraphCheck:
    """Captures graphs and replays them: every batch size, short and long contexts.

    With the smallest batch also every kind of sampling, which adds its own kernels; the others
    have the kind with the most. Takes at most `MOST_SECONDS` and a case.

    The steps write into blocks of the cache and slots of states, which nobody has been given yet.
    What they leave there is never read: a block or slot belongs to a sequence once it has been
    written for that.

    Args:
        runner: Of a causal model; computes and has nothing in flight.
        limits: Of its steps.
        agree: Between the ranks, which all check at the same time.
        progress: Is told the share that is done.

    Raises:
        EngineError: The device failed.
    """
    steps = TrialSteps(runner, limits)
    cases = list(steps.cases())
    started, difference = time.perf_counter(), ""
    checked = 0
    for checked, case in enumerate(cases, 1):
        progress((checked - 1) / len(cases))
        plain, replayed = (_run(runner, steps, case, replays=replays) for replays in (False, True))
        difference = _difference(case, plain, replayed)
        is_late = time.perf_counter() - started > MOST_SECONDS
        differs, ends = agree((bool(difference), is_late))
        if differs:
            difference = difference or f"of {case}, on another device of the group"
        if differs or ends:
            break
    runner.has_teams = True
    return GraphCheck(
        checked=checked,
        planned=len(cases),
        seconds=time.perf_counter() - started,
        difference=difference,
    )


def _run(
    runner: HipRunner, steps: TrialSteps, case: TrialCase, *, replays: bool
) -> list[StepOutput]:
    """Returns the results of steps in a row; two are in flight, as when serving."""
    runner.replays, runner.has_teams = replays, case.has_teams
    beginning = steps.beginning(case)
    if beginning is not None:
        runner.submit(beginning)
        runner.collect()
    outputs = []
    for turn in range(TURNS):
        runner.submit(steps.step(case, turn))
        if turn:
            outputs.append(runner.collect())
    return [*outputs, runner.collect()]


def _difference(
    case: TrialCase, plain: Sequence[StepOutput], replayed: Sequence[StepOutput]
) -> str:
    for turn, (wanted, got) in enumerate(zip(plain, replayed, strict=True), 1):
        if what := difference_of(wanted, got):
            return f"{what} of {case} differ in replay {turn}"
    return ""
