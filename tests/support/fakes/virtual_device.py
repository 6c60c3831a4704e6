"""A device that takes the time that a law says, on a clock that jumps.

The engine core runs on it as on any other: steps follow each other in one stream, and a step
begins when it was submitted or when the one before it ends, whichever is later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.support.fakes.fake_backend import DEVICE

Law = Callable[[StepInput], float]
"""Seconds that a step takes."""


@dataclass
class VirtualClock:
    """Time that passes only where somebody says so."""

    now_ns: int = 1

    def __call__(self) -> int:
        """The time."""
        return self.now_ns

    def wait_until(self, ns: int) -> None:
        """Lets time pass, if it is not so late already."""
        self.now_ns = max(self.now_ns, ns)


class VirtualDevice:
    """Implements `Runner`; whatever the tokens are, it draws token 0.

    Args:
        law: how long steps take.
        clock: moved to the end of a step when somebody waits for it.
        between_ns: What passes after each step beside what it says that it took.
    """

    def __init__(
        self,
        law: Law,
        clock: VirtualClock,
        *,
        depth: int = 2,
        between_ns: int = 0,
        max_context: int = 40960,
        num_tokens: int = 2_000_000,
        block_size: int = 32,
    ) -> None:
        self._law = law
        self._clock = clock
        self._between_ns = between_ns
        self._free_at_ns = 0
        self._queue: deque[tuple[StepInput, int, int]] = deque()
        self.steps: list[tuple[StepInput, int]] = []  # with the nanoseconds that each took
        self.info = RunnerInfo(
            backend="virtual",
            device=DEVICE,
            block_size=block_size,
            num_blocks=num_tokens // block_size,
            max_context=max_context,
            vocab_size=1000,
            pipeline_depth=depth,
            weights_bytes=0,
            kv_bytes=0,
            kv_dtype="none",
            notes=(),
        )

    def submit(self, step: StepInput) -> None:
        """Begins a step as soon as the one before it ends."""
        start = max(self._free_at_ns, self._clock.now_ns)
        took = round(1e9 * self._law(step))
        self._free_at_ns = start + took + self._between_ns
        self._queue.append((step, took, self._free_at_ns))
        assert len(self._queue) <= self.info.pipeline_depth

    def collect(self) -> StepOutput:
        """Waits for the oldest step."""
        step, took, end = self._queue.popleft()
        self._clock.now_ns = max(self._clock.now_ns, end)
        self.steps.append((step, took))
        return StepOutput(
            step_id=step.step_id,
            token_ids=np.zeros(len(step.logit_rows), np.int32),
            logprobs=None,
            top_ids=None,
            top_logprobs=None,
            device_ns=took,
        )

    def close(self) -> None:
        """Has nothing to give back."""


@dataclass(frozen=True)
class Arrival:
    """A request that comes at a time."""

    at_s: float
    num_prompt: int
    max_tokens: int


@dataclass
class Seen:
    """What the client of a request sees. Times are seconds."""

    arrival: Arrival
    tokens_at: list[float] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        """How long the first token took."""
        return self.tokens_at[0] - self.arrival.at_s

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """When each token but the first came, and how long after the one before it."""
        return [(later, later - earlier) for earlier, later in pairwise(self.tokens_at)]


@dataclass(frozen=True)
class Run:
    """What came of some arrivals."""

    seen: list[Seen]
    device: VirtualDevice
    totals: Totals


def simulate(law: Law, limits: SchedulerLimits, arrivals: Iterable[Arrival], **device: int) -> Run:
    """Runs the engine core on a virtual device until all requests have ended."""
    clock = VirtualClock()
    runner = VirtualDevice(law, clock, **device)
    core = EngineCore(runner, limits, clock)
    seen, totals = drive(core, clock, arrivals, clock.wait_until)
    core.check_integrity()
    return Run(seen, runner, totals)


def drive(
    core: EngineCore,
    clock: Callable[[], int],
    arrivals: Iterable[Arrival],
    wait_until: Callable[[int], None],
    watch: Callable[[Totals], None] = lambda totals: None,
) -> tuple[list[Seen], Totals]:
    """Has an engine core serve requests when they are due, until all have ended.

    Args:
        core: does nothing else.
        clock: the one of the core, in nanoseconds from near 0.
        arrivals: the requests.
        wait_until: waits until the clock shows so much.
        watch: called after each step.
    """
    coming = deque(sorted(arrivals, key=lambda arrival: arrival.at_s))
    seen: list[Seen] = []
    totals = Totals()
    while coming or core.has_work:
        if not core.has_work:
            wait_until(round(1e9 * coming[0].at_s) + 1)
        commands: list[GenerateRequest] = []
        while coming and 1e9 * coming[0].at_s <= clock():
            arrival = coming.popleft()
            commands.append(_request(len(seen), arrival))
            seen.append(Seen(arrival))
        report = core.step(commands)
        for event in report.events:
            assert event.error is None, event.error
            seen[event.request_id].tokens_at += [clock() / 1e9] * len(event.token_ids)
        totals = report.stats.totals
        watch(totals)
    return seen, totals


def _request(number: int, arrival: Arrival) -> GenerateRequest:
    """A request whose prompt shares no prefix with another's."""
    prompt = np.arange(arrival.num_prompt, dtype=np.int32)
    prompt[0] = number
    return GenerateRequest(
        request_id=number,
        prompt=token_prompt(prompt.tolist()),
        sampling=SamplingParams(max_tokens=arrival.max_tokens),
        eos_ids=(),
        arrival_ns=round(1e9 * arrival.at_s),
    )
