"""The verifier of one model, seen from the server's event loop: what is drawn, and what came of it.

It never holds anything up: samples wait in a short queue, and no request is recorded whose sample
would find it full.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Final

from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.engine.client.engine_process import EngineProcess
from rocmforge.engine.ipc.messages import LoadFailed, rebuild_error
from rocmforge.engine.ipc.params import GenerateRequest, TokenEvent
from rocmforge.engine.ipc.recorded import ROW_BYTES
from rocmforge.engine.ipc.status import ProofStatus
from rocmforge.engine.proof.bounds import bounds_for
from rocmforge.engine.proof.messages import (
    Begin,
    BundlePolicy,
    Checked,
    FromVerifier,
    Opened,
    Sample,
)
from rocmforge.engine.proof.recorder import LONGEST, Recorder, Send
from rocmforge.logs import LogFormat
from rocmforge.models.checkpoint import Identity

logger = logging.getLogger(__name__)

_MODULE: Final = "rocmforge.engine.proof.process"
_MOST_WAITING: Final = 8
"""Samples that wait, and requests that are recorded to become some."""
_LONGEST_S: Final = 60.0
"""Seconds that one sample may take; it is cut to fewer tokens, or dropped."""
_SLOWEST: Final = 30
"""Times as long as expected, after which the verifier counts as hung."""
_GRACE_S: Final = 2.0
REASONS: Final = ("queue", "long", "embeddings", "stopped")
"""Why samples are dropped; "stopped" = no verifier runs, or the model was unloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofConfig:
    """The operator's settings of what is verified, and what it may cost."""

    rate: float  # share of the engine's steps, and so of the tokens
    seconds: float  # of a core, in a minute
    tolerance: float | None  # as of `Bounds`; None = as was measured to fit
    is_strict: bool  # whether the model is not ready once there was an alarm
    bundles: BundlePolicy | None = None


class Verifier:
    """Draws samples, has them computed again, and counts. Outlives the engines of its model.

    Args:
        config: the settings.
    """

    def __init__(self, config: ProofConfig) -> None:
        self._config = config
        self._recorder = Recorder(config.rate, secrets.token_bytes(16), self)
        self._waiting: deque[Sample] = deque()
        self._news = asyncio.Event()  # a sample has come, or an answer
        self._answer: FromVerifier | LoadFailed | None = None
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._fitting = LONGEST  # tokens of a sequence that is computed in time
        self._dropped: Counter[str] = Counter()
        self._status = ProofStatus(is_running=False, problem=None)

    @property
    def status(self) -> ProofStatus:
        """A snapshot."""
        dropped = tuple((reason, self._dropped[reason]) for reason in REASONS)
        return replace(self._status, dropped=dropped)

    @property
    def distrusts(self) -> bool:
        """Whether the model should take no requests."""
        return self._config.is_strict and self._status.alarm is not None

    # --- what the engine client tells ---

    def open(self, request: GenerateRequest, send: Send) -> None:
        """Takes note of a request; `send` tells the engine, before it has the request."""
        self._recorder.open(request, send)

    def advance(self, steps: int, send: Send) -> None:
        """Takes note of how many steps the engine has computed; `send` tells it what follows."""
        self._recorder.advance(steps, send)

    def note(self, event: TokenEvent) -> None:
        """Takes note of an event."""
        self._recorder.note(event)

    def close(self, request_id: int) -> None:
        """Takes note of the end of a request."""
        self._recorder.close(request_id)

    def begin(
        self,
        model: str,
        identity: Identity | None,
        runner: RunnerInfo,
        options: LoadOptions,
        log: tuple[str, LogFormat],
    ) -> None:
        """Starts the process once an engine is ready; what that engine replaces is forgotten."""
        if self._task is not None or not runner.causal:
            return
        self._status = replace(self._status, problem=None, alarm=None, alarm_at=None)
        start = Begin(
            model=model,
            identity=identity,
            runner=runner,
            options=options,
            bounds=bounds_for(runner, self._config.tolerance),
            bundles=self._config.bundles,
            log_level=log[0],
            log_format=log[1],
        )
        self._task = asyncio.create_task(self._run(start), name="verifier")

    async def end(self) -> None:
        """Ends the process with the engine; samples that wait are dropped. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._drop_waiting()

    # --- what the recorder tells ---

    def admits(self, tokens: int) -> bool:
        """Returns whether a request that was drawn is recorded: it would be computed again soon."""
        if self._is_stopped:
            reason = "stopped"
        elif tokens >= self._fitting:
            reason = "long"
        elif self._recorder.num_recorded + len(self._waiting) >= _MOST_WAITING:
            reason = "queue"
        else:
            return True
        self._dropped[reason] += 1
        return False

    @property
    def _is_stopped(self) -> bool:
        return self._task is None or self._task.done()

    def hand_in(self, sample: Sample) -> None:
        """Queues a sample, or drops it."""
        if self._is_stopped:
            self._dropped["stopped"] += 1
        elif len(self._waiting) >= 2 * _MOST_WAITING:  # of broken ones, as any request may become
            self._dropped["queue"] += 1
        else:
            self._waiting.append(sample)
            self._news.set()

    def skip(self) -> None:
        """Counts a request that was drawn and cannot be computed again."""
        self._dropped["embeddings"] += 1

    def found_nan(self) -> None:
        """Raises the alarm at once."""
        self._raise_alarm("the device's logits hold a NaN", None)

    # --- the process ---

    async def _run(self, start: Begin) -> None:
        try:
            self._process = await EngineProcess.spawn(
                start, self._on_answer, kinds=FromVerifier, module=_MODULE
            )
        except OSError as error:
            self._give_up(f"the verifier could not be started: {error}")
            return
        try:
            await self._work(self._process)
        finally:
            self._status = replace(self._status, is_running=False)
            self._process.kill("was stopped")
            await self._process.wait(_GRACE_S)
            self._process = None

    async def _work(self, process: EngineProcess) -> None:
        opened = await self._next_answer(process, None)
        if not isinstance(opened, Opened):
            return
        self._status = replace(self._status, is_running=True)
        token_s = opened.token_s
        while True:
            self._fitting = min(opened.max_context, int(_LONGEST_S / token_s) + 1)
            self._news.clear()
            while not self._waiting:
                await self._news.wait()
                self._news.clear()
            sample = _cut(self._waiting.popleft(), self._fitting)
            if sample is None:
                self._dropped["long"] += 1
                continue
            process.send(sample)
            limit_s = _GRACE_S + _SLOWEST * token_s * sample.stop
            checked = await self._next_answer(process, limit_s + _LONGEST_S)
            if not isinstance(checked, Checked):
                return
            self._take(checked)
            token_s = (token_s + checked.seconds / checked.computed) / 2
            await asyncio.sleep(checked.seconds * (60.0 / self._config.seconds - 1.0))

    async def _next_answer(
        self, process: EngineProcess, limit_s: float | None
    ) -> FromVerifier | None:
        """Waits for what the process says; gives up if that is nothing, or that it failed."""
        self._answer = None
        ended = asyncio.create_task(process.disconnected())
        try:
            async with asyncio.timeout(limit_s):
                while self._answer is None and not ended.done():
                    self._news.clear()
                    news = asyncio.create_task(self._news.wait())
                    await asyncio.wait((news, ended), return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
        except TimeoutError:
            self._give_up(f"the verifier gave no answer for {limit_s:.0f} s")
            return None
        finally:
            ended.cancel()
        answer = self._answer
        if answer is None:
            self._give_up("the verifier's process ended")
        elif isinstance(answer, LoadFailed):
            self._give_up(f"the verifier failed: {rebuild_error(answer).message}")
            return None
        return answer

    def _on_answer(self, answer: FromVerifier) -> None:
        self._answer = answer
        self._news.set()

    def _take(self, checked: Checked) -> None:
        status = self._status
        self._status = replace(
            status,
            samples=status.samples + 1,
            tokens=status.tokens + checked.tokens,
            agreeing=status.agreeing + checked.agreeing,
            kl_sum=status.kl_sum + checked.kl_sum,
            worst=max(status.worst, checked.worst),
            error=checked.error,
            expected=checked.expected,
            seconds=status.seconds + checked.seconds,
        )
        if checked.alarm is not None:
            self._raise_alarm(checked.alarm, checked.bundle)

    def _raise_alarm(self, text: str, bundle: str | None) -> None:
        status = self._status
        if status.alarm is None or bundle is not None:
            seen = "" if bundle is None else f"; see {bundle}"
            logger.error("verification failed: %s%s", text, seen)
        self._status = replace(
            status,
            alarms=status.alarms + 1,
            alarm=status.alarm or text,
            alarm_at=status.alarm_at or time.time(),
            bundle=bundle or status.bundle,
        )

    def _give_up(self, problem: str) -> None:
        logger.error("nothing is verified any more: %s", problem)
        self._status = replace(self._status, problem=problem)
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._dropped["stopped"] += len(self._waiting)
        self._waiting.clear()


def _cut(sample: Sample, fitting: int) -> Sample | None:
    """Returns the sample with so many tokens at most; None if none that was recorded is left."""
    if sample.stop <= fitting:
        return sample
    count = fitting - sample.first
    if count < 1 or not sample.rows:
        return None
    return Sample(
        number=sample.number,
        tokens=sample.tokens[:fitting],
        first=sample.first,
        rows=sample.rows[: count * ROW_BYTES],
        adapter=sample.adapter,
    )
