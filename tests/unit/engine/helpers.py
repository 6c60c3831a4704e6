"""Shortcuts for tests of the engine: requests, cores over the fake runner, runs to the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.messages import Command
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams, TokenEvent, TokenLogprob
from rocmforge.engine.ipc.prompt import Prompt, token_prompt
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.waiting.images import WaitingImages
from tests.support.fakes.fake_backend import FakeConfig, make_runner


def request(
    request_id: int,
    prompt: Sequence[int] | Prompt,
    sampling: SamplingParams,
    *,
    eos_ids: tuple[int, ...] = (),
    deadline_ns: int | None = None,
) -> GenerateRequest:
    """A request that arrived at time 0."""
    return GenerateRequest(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, Prompt) else token_prompt(prompt),
        sampling=sampling,
        eos_ids=eos_ids,
        arrival_ns=0,
        deadline_ns=deadline_ns,
    )


def limits(
    max_sequences: int = 8, max_batched_tokens: int = 64, max_waiting: int = 1000
) -> SchedulerLimits:
    """Limits with room for everybody in the queue."""
    return SchedulerLimits(
        max_sequences=max_sequences, max_batched_tokens=max_batched_tokens, max_waiting=max_waiting
    )


def options(max_sequences: int = 64, max_batched_tokens: int = 512) -> LoadOptions:
    """Load options for the fake backend."""
    return LoadOptions(
        device=None,
        max_context=4096,
        max_sequences=max_sequences,
        max_batched_tokens=max_batched_tokens,
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.9,
    )


@dataclass
class Clock:
    """Time that moves when told to."""

    now_ns: int = 1

    def __call__(self) -> int:
        """The time."""
        return self.now_ns


@dataclass
class Result:
    """Everything that was said about one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_scores: list[float | None] = field(default_factory=list)  # None for placeholders
    last: TokenEvent | None = None


class Bench:
    """A core over the fake runner, and what came out of it."""

    def __init__(
        self,
        config: FakeConfig | None = None,
        scheduler_limits: SchedulerLimits | None = None,
        *,
        draft: FakeConfig | None = None,
        grammars: Grammars | None = None,
        images: WaitingImages | None = None,
        totals: Totals | None = None,
    ) -> None:
        chosen = scheduler_limits or limits()
        sizes = (4096, chosen.max_sequences, chosen.max_batched_tokens)
        self.clock = Clock()
        self.runner = make_runner(config or FakeConfig(), *sizes)
        self.draft = None if draft is None else make_runner(draft, *sizes)
        self.core = EngineCore(
            self.runner,
            chosen,
            self.clock,
            totals,
            grammars=grammars,
            draft_runner=self.draft,
            images=images,
        )
        self.results: dict[int, Result] = {}

    def step(self, *commands: Command) -> None:
        """One step; collects its events and checks the books."""
        self.clock.now_ns += 1
        for command in commands:
            if isinstance(command, GenerateRequest):
                self.results[command.request_id] = Result()
        report = self.core.step(commands)
        self.take(report.events)
        self.core.check_integrity()
        self.stats = report.stats

    def take(self, events: Iterable[TokenEvent]) -> None:
        """Files events under their requests; none may follow a last one."""
        for event in events:
            result = self.results[event.request_id]
            assert result.last is None, "an event after the last one"
            result.token_ids.extend(event.token_ids)
            result.logprobs.extend(event.logprobs or ())
            scores = event.prompt_logprobs or ()
            result.prompt_logprobs.extend(filter(None, scores))
            result.prompt_scores.extend([None if each is None else each.logprob for each in scores])
            if event.finish_reason is not None:
                result.last = event

    def submit(self, *requests: GenerateRequest) -> None:
        """Submits all of them before one step."""
        self.step(*requests)

    def finish(self) -> dict[int, Result]:
        """Steps until nothing is left, and checks that nothing is."""
        while self.core.has_work:
            self.step()
        assert self.stats.blocks_used == 0
        assert all(result.last is not None for result in self.results.values())
        return self.results

    def run(self, *requests: GenerateRequest) -> dict[int, Result]:
        """Submits and finishes."""
        self.submit(*requests)
        return self.finish()
