"""Requests through an engine core, handed in at once, until the last one has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.messages import StepReport
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import Prompt, token_prompt
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.schedule.limits import SchedulerLimits

Request = tuple[Sequence[int] | Prompt, SamplingParams]


def make_core(
    runner: Runner,
    options: LoadOptions,
    max_waiting: int = 1000,
    tiers: CacheTiers | None = None,
    draft: Runner | None = None,
) -> EngineCore:
    """A core with the limits of these options, and a clock that moves when it is looked at."""
    clock = count(1)
    limits = SchedulerLimits(
        max_sequences=options.max_sequences,
        max_batched_tokens=options.max_batched_tokens,
        max_waiting=max_waiting,
    )
    return EngineCore(runner, limits, lambda: next(clock), draft_runner=draft, tiers=tiers)


def submits(requests: Iterable[Request]) -> list[GenerateRequest]:
    """Requests, numbered from 0 on, that no token ends."""
    return [
        GenerateRequest(
            request_id=number,
            prompt=prompt if isinstance(prompt, Prompt) else token_prompt(prompt),
            sampling=sampling,
            eos_ids=(),
            arrival_ns=0,
        )
        for number, (prompt, sampling) in enumerate(requests)
    ]


def reports(core: EngineCore, requests: Iterable[Request]) -> Iterator[StepReport]:
    """What the core reports of each step."""
    yield core.step(submits(requests))
    while core.has_work:
        yield core.step()
    core.check_integrity()


def tokens_of(core: EngineCore, requests: Sequence[Request]) -> tuple[list[list[int]], EngineStats]:
    """The tokens of each request, none of which fails, and what the core has counted."""
    tokens: list[list[int]] = [[] for _ in requests]
    stats = EngineStats()
    for report in reports(core, requests):
        stats = report.stats
        for event in report.events:
            assert event.error is None
            tokens[event.request_id] += event.token_ids
    return tokens, stats


def vectors_of(core: EngineCore, requests: Iterable[Request]) -> list[Float32Array]:
    """The vectors of those requests that ask for one, in their order."""
    found = {
        event.request_id: np.frombuffer(event.embedding, np.float32)
        for report in reports(core, requests)
        for event in report.events
        if event.embedding is not None
    }
    return [found[number] for number in sorted(found)]
