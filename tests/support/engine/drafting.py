"""Engines in which drafting always pays, and how many draft tokens were accepted."""

from __future__ import annotations

from typing import Final

from rocmforge.backend.protocol import Runner
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.support.fakes.timed import Timed

LIMITS: Final = SchedulerLimits(max_sequences=8, max_batched_tokens=64, max_waiting=2000)


def make_drafting_core(runner: Runner, draft: Runner | None) -> EngineCore:
    """A core for which no step takes any time, of the draft model neither."""
    return EngineCore(Timed(runner), LIMITS, lambda: 1, draft_runner=draft)


def rate(stats: EngineStats) -> float:
    """Returns the share of a draft model's tokens that were accepted."""
    assert stats.totals.model_drafted_tokens > 0
    return stats.totals.model_accepted_tokens / stats.totals.model_drafted_tokens
