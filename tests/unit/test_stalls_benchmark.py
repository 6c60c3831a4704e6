"""What benchmarks/stalls.py says of the longest waits."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.stalls import H200, simulate
from benchmarks.step_trace import describe_waits
from rocmforge.backend.step import StepInput
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.support.fakes.virtual_device import Arrival

LIMITS = SchedulerLimits(
    max_sequences=8, max_batched_tokens=512, max_waiting=8, max_stall_ns=30_000_000
)


@dataclass(frozen=True)
class Hiccup(H200):
    """A device that one step takes 90 ms on."""

    def __call__(self, step: StepInput) -> float:
        return 0.09 if step.step_id == 30 else super().__call__(step)


def test_the_longest_wait_is_told_with_the_step_that_it_was_for() -> None:
    seen, steps = simulate(Hiccup(), LIMITS, [Arrival(0.0, 40, 60), Arrival(0.05, 3000, 4)])
    wait, step, *others = describe_waits(seen, steps, 2)
    assert wait.startswith("90.0 ms until ")
    what = f"step 30: {1 + len(steps[30].prompts[0])} tokens, 1 decodes, prompts "
    assert step.strip().startswith(what)
    assert "device 90.00, predicted " in step
    assert len(others) == 2, "the next longest is another one, with its own step"


def test_decodes_are_told_without_a_prediction() -> None:
    seen, steps = simulate(Hiccup(), LIMITS, [Arrival(0.0, 40, 60)])
    _, step = describe_waits(seen, steps, 1)
    assert "step 30: 1 tokens, 1 decodes: " in step
    assert "predicted" not in step
