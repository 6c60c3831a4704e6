"""Decides which sequences run in the next step, with how many tokens, and which are preempted.

The order is first come, first served; between API keys, the key that was served least comes first
(`fairness`). Every step first gives one token to each sequence that decodes, then spends what is
left of the token budget on prompts, in that order. A sequence gets the blocks for all its known
tokens when it is admitted, and one more whenever it grows over the edge of a block. When no block
is left, the newest running sequence of the key served most is preempted: it gives all its blocks
back and is recomputed later. The first in order always gets on, so everything ends.

Nothing here does I/O or looks at a clock. Counters run ahead of the device: a scheduled step counts
as computed, because steps run in the order in which they were scheduled.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from heapq import heappop, heappush

from msgspec import structs

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import StepOutput
from rocmforge.backend.windows import context_blocks
from rocmforge.engine.cache.block_manager import BlockManager
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.constraint.constraint import Constraint
from rocmforge.engine.ipc.messages import RecordSteps
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, TokenEvent
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.fairness import FairQueue
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.results import Results
from rocmforge.engine.schedule.step_builder import StepBuilder
from rocmforge.engine.schedule.step_costs import StepCosts, StepWork, pairs_of
from rocmforge.engine.schedule.time_budget import TimeBudget
from rocmforge.engine.sequence.sequence import Sequence, Status
from rocmforge.errors import UnsupportedFeature


class Scheduler:
    """The owner of all sequences and all blocks.

    Args:
        info: block size and count, and the context limit.
        limits: see `SchedulerLimits`.
        totals: counters to continue.
        masks_late: whether the mask of a token may follow when its step already runs.
        tiers: where blocks go that are given up; None = nowhere.
    """

    def __init__(
        self,
        info: RunnerInfo,
        limits: SchedulerLimits,
        totals: Totals,
        *,
        masks_late: bool = False,
        tiers: CacheTiers | None = None,
    ) -> None:
        self.totals = totals
        self._masks_late = masks_late
        self._causal = info.causal
        if info.causal:
            self.max_context = min(
                info.max_context, context_blocks(info, limits.max_batched_tokens) * info.block_size
            )
        else:  # prompts are computed whole, and leave nothing behind
            self.max_context = min(info.max_context, limits.max_batched_tokens)
            limits = replace(limits, prefix_cache=False, max_stall_ns=0)
        self._limits = limits
        self._block_size = info.block_size
        self._num_between = max(0, info.state_slots - info.snapshots - limits.max_sequences)
        self._cache = BlockManager(
            info.num_blocks,
            info.block_size,
            keeps_prefixes=limits.prefix_cache,
            num_slots=info.state_slots,
            num_snapshots=info.snapshots,
            num_between=self._num_between,
            totals=totals,
            tiers=tiers,
            window_groups=info.window_groups,
            window=info.window,
            step_tokens=limits.max_batched_tokens,
        )
        self._learns_costs = bool(limits.max_stall_ns) or tiers is not None
        self._live: dict[int, Sequence] = {}
        self._waiting = FairQueue()
        self._running: list[Sequence] = []  # keys served least first, within them oldest first
        self._deadlines: list[tuple[int, int]] = []  # heap of (deadline_ns, request_id)
        self._num_decided = totals.steps
        self._recorded: frozenset[int] = frozenset()  # requests
        self._recorded_until = 0  # step
        self._costs = StepCosts()
        self._committed_ns = 0  # when the last results came
        self._results = Results(totals, self._cache, self._waiting, self._finish)

    # --- requests come and go ---

    def add(
        self, request: GenerateRequest, now_ns: int, matcher: Constraint | None = None
    ) -> TokenEvent | None:
        """Queues a request; returns its last event at once if there is nothing to compute.

        One that is too long for the context was planned for an engine before this one, or goes on
        after it: that engine had room for more. It ends like all that died with the engine.

        Raises:
            UnsupportedFeature: a model that draws no tokens is asked for them, or one with states
                and no slots to take them back, for draft tokens.
        """
        if not self._causal and request.sampling.pooling is None:
            raise UnsupportedFeature("The model generates no text.")
        is_stateful = self._cache.num_slots > 0
        if is_stateful and not self._num_between and request.sampling.has_drafts:
            raise UnsupportedFeature("The model cannot check draft tokens.")
        assert len(self._live) < self._limits.max_live, "the client admits no more"
        num_prompt, max_tokens = len(request.prompt), request.sampling.max_tokens
        if num_prompt + max_tokens > self.max_context:
            return TokenEvent(
                request_id=request.request_id,
                finish_reason=FinishReason.DIED,
                error=f"Prompt and output are {num_prompt + max_tokens} tokens; the context of the "
                f"engine is {self.max_context}.",
            )
        waits = matcher is not None and not self._masks_late
        seq = Sequence(request, self._block_size, matcher, waits=waits)
        assert request.request_id not in self._live, "request ids are unique"
        self._live[request.request_id] = seq
        self._waiting.append(seq)
        if max_tokens == 0 and not seq.pool and (not seq.scores_prompt or num_prompt == 1):
            return self._finish(seq, FinishReason.LENGTH, now_ns)
        if request.deadline_ns is not None:
            heappush(self._deadlines, (request.deadline_ns, request.request_id))
        return None

    def cancel(self, request_id: int, now_ns: int) -> TokenEvent | None:
        """Ends a request, if it is unfinished; its blocks are free when this returns."""
        seq = self._live.get(request_id)
        return self._finish(seq, FinishReason.CANCELLED, now_ns) if seq is not None else None

    def expire(self, now_ns: int) -> list[TokenEvent]:
        """Ends the requests whose deadline has passed."""
        events = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, request_id = heappop(self._deadlines)
            seq = self._live.get(request_id)
            if seq is not None:
                events.append(self._finish(seq, FinishReason.DEADLINE, now_ns))
        return events

    def fail_all(self, message: str, now_ns: int) -> list[TokenEvent]:
        """Ends everything, because the engine does."""
        return [
            self._finish(
                seq, FinishReason.DIED, now_ns, TokenEvent(request_id=request_id, error=message)
            )
            for request_id, seq in list(self._live.items())
        ]

    def record(self, what: RecordSteps) -> None:
        """Has the most probable tokens of these requests reported, for some steps."""
        self._recorded = frozenset(what.requests)
        self._recorded_until = what.until

    # --- before a step ---

    def tend(self) -> None:
        """Takes in what tiers have done; they may go on while there is nothing to compute."""
        self._cache.poll_tiers()

    def start_copies(self) -> None:
        """Begins copies of blocks, before the step is submitted that was decided last."""
        self._cache.start_copies()

    @property
    def is_fetching(self) -> bool:
        """Whether blocks are on their way back to the device, for which a request waits."""
        return bool(self._cache.arrivals)

    def schedule(self, now_ns: int) -> list[Chunk]:
        """Decides the next step. No chunks: nothing can be computed before a result is known.

        Or before blocks have come back that are worth waiting for.
        """
        self._cache.begin_step()
        if self._num_decided >= self._recorded_until:
            self._recorded = frozenset()
        step = StepBuilder(self._limits, whole_prompts=not self._causal, recorded=self._recorded)
        self._waiting.sort_by_charge(self._running)
        self._continue_decodes(step)
        if self._limits.max_stall_ns:
            if step.chunks or any(seq.waits_for_token for seq in self._running):
                decodes = StepWork.of(step.chunks)
                step.limit_time(TimeBudget(self._costs, decodes, self._limits.max_stall_ns))
            self._overtake(step, now_ns)
        self._continue_prefills(step)
        while self._admit(step, now_ns):
            pass
        self._num_decided += bool(step.chunks)
        return step.chunks

    def _compute(
        self, step: StepBuilder, seq: Sequence, count: int, num_draft_tokens: int = 0
    ) -> None:
        """Puts tokens into the step.

        The blocks that they fill can be shared at once, by sequences of the same step too: in each
        layer, the keys and values of all tokens are stored before any of them attends.
        """
        step.add(seq, count, num_draft_tokens)
        self._cache.advance(seq)

    def _continue_decodes(self, step: StepBuilder) -> None:
        running = tuple(self._running)
        for i, seq in enumerate(running):
            if seq.num_new < 1 or seq.status is not Status.RUNNING or not self._grow(seq):
                continue
            if seq.num_new == 1:
                room = step.room_for_draft_tokens(len(running) - 1 - i)
                self._compute(step, seq, 1, self._add_draft_tokens(seq, room))

    def _overtake(self, step: StepBuilder, now_ns: int) -> None:
        """Lets prompts with less to compute go before the first in order, the shortest first.

        They get at most half of the room, so the first in order takes at most twice as long.
        """
        prompts = [seq for seq in self._running if seq.num_new > 1]
        if not prompts:
            return
        longest = prompts[0].num_new
        shorter = sorted(prompts[1:], key=lambda seq: seq.num_new)
        step.reserve_half(prompts[0])
        while shorter and shorter[0].num_new < longest:
            head = self._waiting.head()
            if head is None or head.num_new >= shorter[0].num_new or not self._admit(step, now_ns):
                self._continue_prefill(step, shorter.pop(0))
        while (head := self._waiting.head()) is not None and head.num_new < longest:
            if not self._admit(step, now_ns):
                break
        step.give_back()

    def _continue_prefills(self, step: StepBuilder) -> None:
        for seq in self._running:
            if seq.num_new > 1 and seq not in step.sequences:
                self._continue_prefill(step, seq)

    def _continue_prefill(self, step: StepBuilder, seq: Sequence) -> None:
        """Computes what there is room for, in parts where a snapshot is to be left in between."""
        is_cut = True
        while is_cut and (count := self._cache.cut(seq, step.room_for(seq))) > 0:
            self._compute(step, seq, count)
            is_cut = (
                self._cache.is_cut(seq)
                and seq.num_tokens == seq.num_known  # else the next token is a draw's
                and step.has_room_for_part(len(self._running))
            )

    def _admit(self, step: StepBuilder, now_ns: int) -> bool:
        """Starts the next sequence that waits, if there are room and blocks for it."""
        seq = self._waiting.head()
        if seq is None or not step.has_room_for_part(len(self._running)):
            return False
        if step.room_for(seq) <= 0 or not self._place(seq):
            return False
        self._waiting.remove(seq)
        self._running.append(seq)
        seq.status = Status.RUNNING
        if not seq.scheduled_ns:  # what is recomputed is not charged again
            self._waiting.charge_prompt(seq, seq.num_new)
            seq.scheduled_ns = now_ns
        self._continue_prefill(step, seq)  # less than there was room for, if a part was cached
        return True

    def _grow(self, seq: Sequence) -> bool:
        """Makes room for the next tokens; False if the sequence itself was preempted for that.

        More than one are new to a sequence that was preempted while its draft tokens were checked,
        and whose blocks are for the tokens that were known before.
        """
        while not self._cache.extend(seq, seq.num_computed + seq.num_new):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _add_draft_tokens(self, seq: Sequence, room: int) -> int:
        """Puts draft tokens behind the known ones; no sequence is preempted for them."""
        count = seq.add_draft_tokens(min(room, seq.compute_limit - seq.num_known))
        if count and not self._cache.extend(seq, seq.num_known + count, reserve=len(self._running)):
            count = min(count, max(0, self._cache.room(seq) - seq.num_known))
        return self._cache.take_between(seq, count)

    @property
    def room_for_drafts(self) -> int | None:
        """Draft tokens that a step can check, for which states are kept; None = without states."""
        return self._num_between if self._cache.num_slots else None

    def extend_for_drafts(self, seq: Sequence, end: int) -> bool:
        """Makes room for `end` tokens of a running sequence, but preempts none; False without."""
        return self._cache.extend(seq, end, reserve=len(self._running))

    def _preempt(self, seq: Sequence) -> None:
        self._cache.release(seq)
        self._running.remove(seq)
        self._waiting.put_back(seq)
        seq.status = Status.WAITING
        self.totals.preemptions += 1

    def _place(self, seq: Sequence) -> bool:
        """Gives a sequence blocks for all its tokens: cached ones first, then fresh ones.

        One free block per running sequence stays free, so that the newcomer is not preempted when
        those grow.
        """
        if not self._causal:
            return True
        reusable, reserve = self._reusable(seq), len(self._running)
        if self._cache.fetch(
            seq, seq.num_new, reusable=reusable, reserve=reserve, compute_ns=self._compute_ns
        ):
            return False
        if not self._cache.place(seq, seq.num_new, reusable=reusable, reserve=reserve):
            return False
        self._count_prefix(seq, seq.num_computed)
        return True

    def _compute_ns(self, start: int, count: int) -> float | None:
        """Returns what it takes to compute tokens of a prompt; None = not known yet."""
        prices = self._costs.prices
        if prices is None:
            return None
        steps = -(-count // self._limits.max_batched_tokens)
        return prices.fixed * steps + prices.filled * count + prices.pair * pairs_of(start, count)

    @staticmethod
    def _reusable(seq: Sequence) -> int:
        """Returns how many of its first tokens need not be computed; the last one always is.

        A sequence whose prompt is scored needs the logits of every token not scored yet, and one
        that is pooled the hidden states.
        """
        reusable = min(seq.num_known, seq.compute_limit) - 1
        if seq.scores_prompt and seq.num_scored < seq.num_prompt - 1:
            reusable = min(reusable, seq.num_scored)
        if seq.pool is not None:
            reusable = min(reusable, seq.pool.next)
        return reusable

    def _count_prefix(self, seq: Sequence, num_tokens: int) -> None:
        first_time = seq.scheduled_ns == 0
        if first_time:
            seq.cached_tokens = min(num_tokens, seq.num_prompt)  # what is resumed is longer
        self.totals.prefix_query_tokens += seq.num_known
        self.totals.prefix_hit_tokens += num_tokens

    # --- while a step runs ---

    def prepare_commit(self) -> None:
        """Does what `commit` would have to do before others learn of their tokens."""
        self._costs.prepare()

    # --- after a step ---

    def commit(self, chunks: list[Chunk], output: StepOutput, now_ns: int) -> list[TokenEvent]:
        """Takes in the results of a step that `schedule` decided; see `Results`."""
        decodes = [chunk.is_decode for chunk in chunks]
        if self._learns_costs and not all(decodes):
            wait_ns = now_ns - self._committed_ns if any(decodes) else 0
            predicted_ns = self._costs.observe(StepWork.of(chunks), output.device_ns, wait_ns)
            self.totals.count_prompt_step(output.device_ns, predicted_ns)
        self._committed_ns = now_ns
        return self._results.take(chunks, output, now_ns)

    # --- the end of a sequence ---

    def _finish(
        self, seq: Sequence, reason: FinishReason, now_ns: int, news: TokenEvent | None = None
    ) -> TokenEvent:
        """Frees everything and returns the last event, which carries `news` too."""
        if seq.status is Status.RUNNING:
            self._cache.release(seq)
            self._running.remove(seq)
        else:
            self._waiting.remove(seq)
        seq.status = Status.FINISHED
        del self._live[seq.request.request_id]
        return structs.replace(
            news or TokenEvent(request_id=seq.request.request_id),
            finish_reason=reason,
            cached_tokens=seq.cached_tokens,
            timing=seq.timing(now_ns),
        )

    # --- observation ---

    @property
    def running(self) -> list[Sequence]:
        """Sequences that hold blocks, those that go first at the front."""
        return self._running

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._live)

    def stats(self) -> EngineStats:
        """Returns a snapshot of gauges and counters."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            waiting_by_key=self._waiting.by_key,
            blocks_total=self._cache.num_blocks,
            blocks_used=self._cache.num_used,
            blocks_cached=self._cache.num_cached,
            slots_total=self._cache.num_slots,
            slots_used=self._cache.num_slots_used,
            snapshots=self._cache.num_snapshots,
            totals=copy(self.totals),
        )

    def check_integrity(self) -> None:
        """Asserts that queues, tables and the counts of blocks and state slots agree."""
        assert set(self._live.values()) == {*self._running, *self._waiting}
        assert len(self._live) == len(self._running) + len(self._waiting)
        assert all(seq.num_blocks == 0 for seq in self._waiting), "waiting sequences hold no blocks"
        assert all(seq.states is None for seq in self._waiting), "nor states"
        self._cache.check_integrity(self._running)
