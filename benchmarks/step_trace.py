"""What the steps of an engine were, when they began and ended: why somebody waited for a token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rocmforge.backend.protocol import Runner, RunnerInfo
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.engine.ipc.totals import Totals
from tests.support.fakes.virtual_device import Seen


@dataclass
class TracedStep:
    """One step; nanoseconds of the engine's clock, and how long it took and should have taken."""

    number: int
    prompts: list[range]  # positions
    decodes: int
    submitted_ns: int  # when the host began to
    running_ns: int = 0  # when the host had done so
    awaited_ns: int = 0  # when the host began to wait for the results
    results_ns: int = 0
    device_ns: int = 0
    predicted_ns: int = 0  # 0: it was not
    committed_ns: int = 0  # when the host had done with the results


class TracedRunner:
    """Implements `Runner`, and notes what passes through.

    Args:
        runner: computes.
        clock: nanoseconds.
    """

    def __init__(self, runner: Runner, clock: Callable[[], int]) -> None:
        self._runner = runner
        self._clock = clock
        self._predicted_ns = 0
        self.steps: list[TracedStep] = []
        self._collected = 0

    @property
    def info(self) -> RunnerInfo:
        return self._runner.info

    def submit(self, step: StepInput) -> None:
        counts = np.diff(step.query_start)
        prompts = [
            range(end - count, end)
            for count, end in zip(counts.tolist(), step.context_len.tolist(), strict=True)
            if count > 1
        ]
        decodes = len(counts) - len(prompts)
        traced = TracedStep(step.step_id, prompts, decodes, self._clock())
        self.steps.append(traced)
        self._runner.submit(step)
        traced.running_ns = self._clock()

    def collect(self) -> StepOutput:
        traced = self.steps[self._collected]
        traced.awaited_ns = self._clock()
        output = self._runner.collect()
        traced.results_ns = self._clock()
        traced.device_ns = output.device_ns
        self._collected += 1
        return output

    def watch(self, totals: Totals) -> None:
        """Learns what was predicted for the step that was collected last."""
        traced = self.steps[self._collected - 1]
        traced.predicted_ns = totals.predicted_step_ns - self._predicted_ns
        traced.committed_ns = self._clock()
        self._predicted_ns = totals.predicted_step_ns

    def close(self) -> None:
        self._runner.close()


def describe_waits(seen: Sequence[Seen], steps: Sequence[TracedStep], most: int) -> Iterator[str]:
    """Describes the longest waits for a token, each with the steps that were computed meanwhile."""
    longest: dict[tuple[int, ...], tuple[float, float]] = {}
    for each in seen:
        for at, gap in each.gaps:
            end = bisect_right(steps, 1e9 * at, key=lambda step: step.results_ns)
            begin = bisect_right(steps, 1e9 * (at - gap), key=lambda step: step.results_ns)
            numbers = tuple(range(begin, end))
            longest[numbers] = max(longest.get(numbers, (0.0, 0.0)), (gap, at))
    for numbers, (gap, at) in sorted(longest.items(), key=lambda wait: -wait[1][0])[:most]:
        yield f"{1e3 * gap:.1f} ms until {at:.4f} s"
        for number in numbers:
            yield f"    {_describe(steps[number], steps[number - 1] if number else None)}"


def _describe(step: TracedStep, before: TracedStep | None) -> str:
    parts = ", ".join(f"{part.start}..{part.stop}" for part in step.prompts[:4])
    more = f" and {len(step.prompts) - 4} more" if len(step.prompts) > 4 else ""
    tokens = step.decodes + sum(map(len, step.prompts))
    waited = step.results_ns - step.awaited_ns
    times = [
        f"device {step.device_ns / 1e6:.2f}",
        *([f"predicted {step.predicted_ns / 1e6:.2f}"] if step.predicted_ns else []),
        f"submitting {(step.running_ns - step.submitted_ns) / 1e6:.2f}",
        f"waiting {waited / 1e6:.2f}",
        f"taking in {(step.committed_ns - step.results_ns) / 1e6:.2f} ms",
    ]
    if before is not None:
        times.insert(0, f"{(step.results_ns - before.results_ns) / 1e6:.2f} after the one before")
    what = f"step {step.number}: {tokens} tokens, {step.decodes} decodes"
    return f"{what}{f', prompts {parts}{more}' if parts else ''}: {', '.join(times)}"
