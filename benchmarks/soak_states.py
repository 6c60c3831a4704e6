"""Streams of a tiny model with states in one engine, for a long time: is everything accounted for?

    python -m benchmarks.soak_states --minutes 20

Requests begin alike, continue answers or come again; some are cancelled. There are fewer blocks
than they need, so sequences are preempted, and blocks and snapshots of states go to the host's
memory and to files. A predictor and prompt lookup draft. After every step of some, and at the end,
the books are checked; a prompt that comes again must be answered as before. The first quarter of
the time warms up; memory in the last third of the rest must be that in the first.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.soak import GROWTH, memory_kib
from rocmforge.backend.protocol import CopiesBlocks, LoadOptions
from rocmforge.backend.registry import create
from rocmforge.engine.cache.tiers.folder import CacheFolder
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.messages import Cancel, Command
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.data.models.text.tiny_models import by_name
from tests.data.models.text.tiny_recurrent import larger_delta
from tests.support.fakes.timed import Timed
from tests.support.models.predicting import load_predicting, write_predicting

_STREAMS: Final = 32
_CONTEXT: Final = 256
_STEP_TOKENS: Final = 256
_STEP_NS: Final = 10**9  # as steps seem to take: drafts and restored blocks pay
_BLOCKS: Final = 60  # a stream needs up to 16
_SNAPSHOTS: Final = 24
_HOST: Final = 150, 16  # blocks and snapshots
_FILE_BYTES: Final = 16 << 20
_DRAFTS: Final = 3
_CHECKED: Final = 10  # steps
_CANCELLED: Final = 0.2  # of requests
_REPORT_S: Final = 30.0
_VOCABULARY: Final = 90
_DONE: Final = (FinishReason.LENGTH, FinishReason.CANCELLED)


def main() -> int:
    """The command line; the status is 1 if memory grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--backend", default="reference")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), options.minutes * 60, options.backend, options.seed)
    print(found.stats.totals)
    return int(found.growth > GROWTH)


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it."""

    stats: EngineStats
    requests: int
    repeated: int  # answers that were compared
    growth: float  # of memory


@dataclass(slots=True)
class Stream:
    """A request that runs."""

    prompt: tuple[int, ...]
    cancel_after: int | None  # tokens
    tokens: list[int] = field(default_factory=list)


class Prompts:
    """Prompts that begin alike, go on from answers, or come again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._systems = [self._words(n) for n in (5, 40, 64, 100)]
        self._known: list[tuple[int, ...]] = []
        self._longer: list[tuple[int, ...]] = []

    def take(self) -> tuple[int, ...]:
        """Returns one."""
        kind = self.random.random()
        if self._known and kind < 0.3:
            return self.random.choice(self._known)
        if self._longer and kind < 0.6:
            return (*self._longer.pop(), *self._words(self.random.randint(1, 20)))
        prompt = (*self.random.choice(self._systems), *self._words(self.random.randint(1, 60)))
        if len(self._known) < 2 * _STREAMS:
            self._known.append(prompt)
        return prompt

    def go_on(self, prompt: tuple[int, ...], answer: list[int]) -> None:
        """Lets a later prompt go on from an answer."""
        if len(prompt) + len(answer) < _CONTEXT - 110 and len(self._longer) < _STREAMS:
            self._longer.append((*prompt, *answer))

    def _words(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randint(3, _VOCABULARY - 1) for _ in range(count))


class Soak:
    """The streams of one engine.

    Args:
        core: the engine.
        prompts: what is asked.
    """

    def __init__(self, core: EngineCore, prompts: Prompts) -> None:
        self._core = core
        self._prompts = prompts
        self._running: dict[int, Stream] = {}
        self._answers: dict[tuple[int, ...], list[int]] = {}
        self.requests = self.repeated = 0

    def step(self, *, may_begin: bool) -> EngineStats:
        """One step, and requests for streams that have none."""
        commands: list[Command] = [
            Cancel(number)
            for number, stream in self._running.items()
            if stream.cancel_after is not None and len(stream.tokens) >= stream.cancel_after
        ]
        while may_begin and len(self._running) < _STREAMS:
            commands.append(self._begin())
        report = self._core.step(commands)
        for event in report.events:
            stream = self._running[event.request_id]
            stream.tokens += event.token_ids
            assert event.error is None, event.error
            if event.finish_reason is not None:
                assert event.finish_reason in _DONE, event.finish_reason
                self._end(self._running.pop(event.request_id))
        return report.stats

    def _begin(self) -> GenerateRequest:
        dice, prompt = self._prompts.random, self._prompts.take()
        most = min(dice.choice((4, 20, 90)), _CONTEXT - len(prompt))
        cancel = dice.randint(0, most - 1) if dice.random() < _CANCELLED else None
        self._running[self.requests] = Stream(prompt, cancel)
        self.requests += 1
        return GenerateRequest(
            request_id=self.requests - 1,
            prompt=token_prompt(prompt),
            sampling=SamplingParams(
                max_tokens=most,
                temperature=0,
                ignore_eos=True,
                prompt_lookup_tokens=dice.choice((0, _DRAFTS)),
                draft_model_tokens=dice.choice((0, _DRAFTS)),
            ),
            eos_ids=(2,),
            arrival_ns=time.monotonic_ns(),
        )

    def _end(self, stream: Stream) -> None:
        self._prompts.go_on(stream.prompt, stream.tokens)
        before = self._answers.setdefault(stream.prompt, stream.tokens)
        common = min(len(before), len(stream.tokens))
        assert before[:common] == stream.tokens[:common], f"another answer to {stream.prompt}"
        if len(stream.tokens) > len(before):
            self._answers[stream.prompt] = stream.tokens
        self.repeated += before is not stream.tokens
        if len(self._answers) > 4 * _STREAMS:  # the oldest ones, which are the known prompts, stay
            self._answers.popitem()

    def finish(self) -> EngineStats:
        """Lets all streams end, and copies and files; checks that nothing is held."""
        while self._core.has_work:
            self.step(may_begin=False)
        while self._core.tend():
            time.sleep(0.001)
        self._core.check_integrity()
        stats = self._core.report().stats
        assert not self._running, "a stream has no end"
        assert (stats.blocks_used, stats.slots_used) == (0, 0), stats
        return stats


def run(folder: Path, seconds: float, backend: str = "reference", seed: int = 1) -> Found:
    """Runs for some time, with files in a folder.

    Raises:
        AssertionError: something is not accounted for, or an answer is another than before.
    """
    model = by_name("qwen35")
    if backend == "hip":
        model = larger_delta(model)
    options = LoadOptions(
        device=None,
        max_context=_CONTEXT,
        max_sequences=_STREAMS,
        max_batched_tokens=_STEP_TOKENS,
        kv_blocks=_BLOCKS,
        kv_dtype="auto",
        memory_utilization=0.9,
        draft_tokens=_DRAFTS,
        state_snapshots=_SNAPSHOTS,
    )
    limits = SchedulerLimits(
        max_sequences=_STREAMS, max_batched_tokens=_STEP_TOKENS, max_waiting=_STREAMS
    )
    path = write_predicting(model, folder / "model.gguf")
    with closing(load_predicting(create(backend), path, options)) as runner:
        assert isinstance(runner, CopiesBlocks)
        totals, (blocks, states) = Totals(), _HOST
        files = CacheFolder(folder / "cache", bytes(32), _FILE_BYTES)
        tiers = CacheTiers(runner, blocks, files, totals, states)
        core = EngineCore(Timed(runner, _STEP_NS), limits, time.monotonic_ns, totals, tiers=tiers)
        soak = Soak(core, Prompts(seed))
        growth = _let_run(soak, core, seconds)
        stats = soak.finish()
        tiers.close()
    print(f"{soak.requests} requests, {soak.repeated} answers compared, memory {growth:.1%}")
    return Found(stats, soak.requests, soak.repeated, growth)


def _let_run(soak: Soak, core: EngineCore, seconds: float) -> float:
    """Returns by how much memory grew, as a factor."""
    begin = reported = time.monotonic()
    samples: list[tuple[float, int]] = []
    steps = 0
    while (now := time.monotonic()) < begin + seconds:
        stats = soak.step(may_begin=True)
        steps += 1
        if steps % _CHECKED == 0:
            core.check_integrity()
        if now - (samples[-1][0] if samples else 0) > seconds / 100:
            samples.append((now, memory_kib("self")))
        if now - reported > _REPORT_S:
            reported = now
            totals = stats.totals
            print(
                f"{now - begin:6.0f} s, {steps} steps, {soak.requests} requests, "
                f"{totals.preemptions} preemptions, {totals.prefix_hit_tokens} tokens found, "
                f"{stats.snapshots} snapshots, {samples[-1][1]} KiB",
                flush=True,
            )
    warm = begin + seconds / 4
    third = seconds / 4
    early = [kib for at, kib in samples if warm <= at < warm + third]
    late = [kib for at, kib in samples if at >= begin + seconds - third]
    return statistics.median(late) / statistics.median(early)


if __name__ == "__main__":
    raise SystemExit(main())
