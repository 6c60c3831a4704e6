"""The engine's loop body, synchronous and single-threaded."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from rocmforge.backend.protocol import MasksLate, Runner
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.constraint.constraint import Constraint
from rocmforge.engine.constraint.grammar import Compiled, Grammars
from rocmforge.engine.constraint.guarded import GuardedConstraint
from rocmforge.engine.constraint.thinking import ThinkingConstraint
from rocmforge.engine.draft.draft_model import DraftModel
from rocmforge.engine.draft.drafter import Drafter
from rocmforge.engine.draft.predictor import PredictorDrafts
from rocmforge.engine.draft.speculation import Speculation
from rocmforge.engine.ipc.messages import (
    Cancel,
    Command,
    DefineGrammar,
    Fatal,
    ForgetGrammar,
    RecordSteps,
    StepReport,
)
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, TokenEvent
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.batch import build_masks, build_step, needs_masks
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.scheduler import Scheduler
from rocmforge.engine.waiting.compiling import CompilingRequests
from rocmforge.engine.waiting.held import HeldRequests
from rocmforge.engine.waiting.images import Rows, WaitingImages
from rocmforge.errors import EngineError, Fault, RocmForgeError

logger = logging.getLogger(__name__)

_IDLE_WAIT_S = 0.005  # for a grammar to be compiled, before commands are looked at again
_FETCH_WAIT_S = 0.0005  # for blocks that come back, before it is looked again whether they have


class EngineCore:
    """Requests in, events out, one step at a time.

    With a runner of depth 2 the device never waits for the host: step N+1 is planned and
    submitted while N runs, its unknown tokens named by their row in N (`token_source`), and the
    results are read one step behind. What a sequence with a grammar may draw depends on its last
    token: its mask follows while the step runs, or, if the runner wants masks at once, the
    sequence sits out the step in which that token is still unknown.

    Args:
        runner: the loaded model.
        limits: what the operator allows.
        clock: monotonic nanoseconds, on the clock of `GenerateRequest.arrival_ns`.
        totals: counters to continue.
        grammars: makes matchers for constrained requests; None = there are none.
        draft_runner: the loaded draft model; None = there is only prompt lookup, and the model's
            predictor if it has one.
        tiers: where blocks go that the runner's cache has no room for; None = nowhere.
        images: makes rows of embeddings of images; None = there may be none.
    """

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        clock: Callable[[], int],
        totals: Totals | None = None,
        grammars: Grammars | None = None,
        draft_runner: Runner | None = None,
        tiers: CacheTiers | None = None,
        images: WaitingImages | None = None,
    ) -> None:
        totals = self._totals = totals or Totals()
        self._runner = runner
        self._clock = clock
        self._grammars = grammars
        self._compiling = CompilingRequests(grammars) if grammars is not None else None
        self._images = images
        self._late_masks = runner if isinstance(runner, MasksLate) else None
        self._tiers = tiers
        self._scheduler = Scheduler(
            runner.info, limits, totals, masks_late=self._late_masks is not None, tiers=tiers
        )
        drafter: Drafter | None = None
        if draft_runner is not None:
            drafter = DraftModel(draft_runner, limits, runner.info.vocab_size, clock, totals)
        elif runner.info.predicts:
            ids, extend = self._take_step_id, self._scheduler.extend_for_drafts
            drafter = PredictorDrafts(runner, limits, clock, totals, ids, extend)
        self._speculation = Speculation(drafter, clock, self._scheduler.room_for_drafts)
        self._block_size = runner.info.block_size
        self._depth = runner.info.pipeline_depth
        self._in_flight: deque[list[Chunk]] = deque()
        self._next_step_id = 0
        self._first_step_id = 0  # since there was nothing to do
        self._alone_step_id = 0  # the last that began with none in flight where one could be

    @property
    def max_context(self) -> int:
        """Tokens one sequence may have: the runner's limit, or what its cache can hold."""
        return self._scheduler.max_context

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do without a new command."""
        is_busy = bool(self._in_flight or self._compiling or self._images)
        return is_busy or self._scheduler.has_work

    def step(self, commands: Iterable[Command] = ()) -> StepReport:
        """Takes in commands, starts the next step and finishes the oldest one in flight.

        Raises:
            EngineError: the runner failed; only `fail` may be called after that.
        """
        if not self.has_work:
            self._first_step_id = self._next_step_id
        events = self._apply(commands)
        while self._in_flight and self._speculation.needs_rest(self._scheduler.running):
            events += self._collect()
        self._scheduler.tend()
        self._speculation.draft(self._scheduler.running)
        chunks = self._scheduler.schedule(self._clock())
        self._scheduler.start_copies()
        masks_later = self._late_masks is not None and needs_masks(chunks)
        if chunks:
            step_id = self._take_step_id()
            step = build_step(step_id, chunks, self._block_size, masks_later=masks_later)
            self._runner.submit(step)
            if not self._in_flight and (self._depth > 1 or step_id == self._first_step_id):
                self._alone_step_id = step_id
            self._in_flight.append(chunks)
            self._scheduler.prepare_commit()
        if not self._in_flight and self._scheduler.is_fetching:
            time.sleep(_FETCH_WAIT_S)
        else:
            assert self._in_flight or not self._scheduler.has_work, "a request would wait for ever"
        is_full = len(self._in_flight) == self._depth
        if self._in_flight and (is_full or not chunks):
            events += self._collect()
        if masks_later:
            assert self._late_masks is not None
            self._late_masks.constrain(build_masks(chunks))
        self._speculation.release_ended()
        return StepReport(events=tuple(events), stats=self._scheduler.stats())

    def tend(self) -> bool:
        """Lets copies of blocks go on while there is nothing to compute.

        Returns:
            Whether there is more to do: it should be called again soon.

        Raises:
            EngineError: the runner failed; only `fail` may be called after that.
        """
        self._scheduler.tend()
        self._scheduler.start_copies()
        return self._tiers is not None and self._tiers.is_busy

    def report(self) -> StepReport:
        """Returns the counters as they are now."""
        return StepReport(events=(), stats=self._scheduler.stats())

    def keep_blocks(self, seconds: float) -> None:
        """Saves what the cache holds where it outlives this process, for so long at most.

        Raises:
            EngineError: the runner failed.
        """
        end_ns = time.monotonic_ns() + round(seconds * 1e9)
        while self.tend() and time.monotonic_ns() < end_ns:
            time.sleep(_FETCH_WAIT_S)

    def _collect(self) -> list[TokenEvent]:
        """Finishes the oldest step in flight."""
        output, done = self._runner.collect(), self._in_flight.popleft()
        events = self._scheduler.commit(done, output, self._clock())
        self._speculation.observe(done, output, is_alone=output.step_id == self._alone_step_id)
        if output.cost is not None:
            is_first = output.step_id == self._first_step_id
            self._totals.count_cost(output.cost, after_rest=is_first)
        return events

    def _take_step_id(self) -> int:
        self._next_step_id += 1
        return self._next_step_id - 1

    def _apply(self, commands: Iterable[Command]) -> list[TokenEvent]:
        now_ns = self._clock()
        events = self._scheduler.expire(now_ns)
        for held in self._held:
            events += held.expire(now_ns)
        for command in commands:
            event = None
            if isinstance(command, GenerateRequest):
                event = self._submit(command, now_ns)
            elif isinstance(command, Cancel):
                event = self._cancel(command.request_id, now_ns)
            elif isinstance(command, RecordSteps):
                self._scheduler.record(command)
            elif isinstance(command, DefineGrammar) and self._grammars is not None:
                self._grammars.define(command.name, command.text)
            elif isinstance(command, ForgetGrammar) and self._grammars is not None:
                self._grammars.forget(command.name)
            if event is not None:
                events.append(event)
        return events + self._admit_shown(now_ns) + self._admit_compiled(now_ns)

    @property
    def _held(self) -> tuple[HeldRequests[Compiled] | HeldRequests[Rows], ...]:
        """The requests that are not the scheduler's yet."""
        both = self._compiling, self._images
        return tuple(held for held in both if held is not None)

    def _submit(self, request: GenerateRequest, now_ns: int) -> TokenEvent | None:
        if request.prompt.images:
            assert self._images is not None, "the client refuses what this engine cannot see"
            self._images.add(request)
            return None
        return self._compile(request, now_ns)

    def _admit_shown(self, now_ns: int) -> list[TokenEvent]:
        """Has the tower go on, and passes requests on whose images are there."""
        if not self._images:
            return []
        events: list[TokenEvent | None] = [*self._images.advance(now_ns)]
        events += [self._compile(request, now_ns) for request in self._images.take_ready()]
        return [event for event in events if event is not None]

    def _compile(self, request: GenerateRequest, now_ns: int) -> TokenEvent | None:
        if not request.sampling.grammar:
            return self._add(request, None, now_ns)
        assert self._compiling is not None, "the client refuses what this engine cannot constrain"
        self._compiling.add(request)
        return None

    def _cancel(self, request_id: int, now_ns: int) -> TokenEvent | None:
        event = self._scheduler.cancel(request_id, now_ns)
        for held in self._held:
            event = event or held.cancel(request_id, now_ns)
        return event

    def _admit_compiled(self, now_ns: int) -> list[TokenEvent]:
        """Hands requests whose grammar is there to the scheduler."""
        if not self._compiling:
            return []
        if not (self._in_flight or self._images or self._scheduler.has_work):
            self._compiling.wait(_IDLE_WAIT_S)
        ready = [self._add(*held, now_ns) for held in self._compiling.take_ready()]
        return [event for event in ready if event is not None]

    def _add(
        self, request: GenerateRequest, compiled: Compiled | None, now_ns: int
    ) -> TokenEvent | None:
        try:
            return self._scheduler.add(request, now_ns, self._constraint(request, compiled))
        except RocmForgeError as error:
            message = error.message
        except Exception as error:  # a mistake in the code, met by this request's values alone
            logger.exception("request %d cannot be taken", request.request_id)
            message = f"The request cannot be taken: {type(error).__name__}: {error}"
        return TokenEvent(
            request_id=request.request_id, finish_reason=FinishReason.ERROR, error=message
        )

    def _constraint(self, request: GenerateRequest, compiled: Compiled | None) -> Constraint | None:
        """Makes the constraint of a request, advanced over the tokens generated before."""
        sampling = request.sampling
        constraint: Constraint | None = None
        if compiled is not None:
            assert self._grammars is not None, "somebody has compiled it"
            constraint = self._grammars.begin(compiled)
        if sampling.thinking is not None:
            num_words = -(-self._runner.info.vocab_size // 32)
            constraint = ThinkingConstraint(
                sampling.thinking, constraint, request.eos_ids, num_words
            )
        if constraint is None:
            return None
        constraint = GuardedConstraint(constraint)
        for token in request.generated_ids:
            if not constraint.advance(token):
                raise EngineError(f"The output left its grammar: {constraint.error}")
        return constraint

    def fail(self, message: str, fault: Fault = Fault.ERROR) -> Fatal:
        """Ends every request, because the runner is not usable any more."""
        self._in_flight.clear()
        now_ns = self._clock()
        events = self._scheduler.fail_all(message, now_ns)
        for held in self._held:
            events += held.fail_all(message, now_ns)
        return Fatal(message=message, events=tuple(events), fault=fault)

    def check_integrity(self) -> None:
        """Asserts that every block is accounted for."""
        self._scheduler.check_integrity()
        self._speculation.check_integrity()
