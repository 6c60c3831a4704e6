"""Decides which API key is next, when several have requests waiting.

Each key has a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models",
2023): it is charged for the tokens it is served, divided by its weight, and the key charged least
comes next. A key that had nothing waiting does not save up the time: its counter is lifted to the
least of those that wait. So keys that always have something waiting are served alike, up to a
constant, however many requests each of them sends, and nothing is left idle while anything waits.

Within a key, and on a server without keys, the order is first come, first served.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Final

from rocmforge.engine.ipc.params import NO_KEY, Share
from rocmforge.engine.sequence.sequence import Sequence

PROMPT_COST: Final = 1.0
OUTPUT_COST: Final = 2.0
"""Of a token. A step computes many tokens of a prompt in the time of a few outputs (same paper)."""


class FairQueue:
    """Sequences that wait, and what each key has been charged."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Sequence]] = {}  # by key; none is empty
        self._charged: dict[int, float] = defaultdict(float)  # by key
        self._left_last = NO_KEY.key  # whose queue became empty last

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    @property
    def by_key(self) -> tuple[tuple[int, int], ...]:
        """Keys that wait, and with how many sequences."""
        return tuple((key, len(queue)) for key, queue in self._queues.items())

    def append(self, seq: Sequence) -> None:
        """Puts a sequence behind the others of its key."""
        self._queue_of(seq).append(seq)

    def put_back(self, seq: Sequence) -> None:
        """Puts a preempted sequence before the others of its key."""
        self._queue_of(seq).appendleft(seq)

    def head(self) -> Sequence | None:
        """Returns the next one: the oldest of the key charged least; None if none waits.

        Of keys charged alike, it is the one whose oldest came first.
        """
        if not self._queues:
            return None
        heads = [queue[0] for queue in self._queues.values()]
        if len(heads) == 1:
            return heads[0]
        return min(heads, key=lambda seq: (self.charged(seq), seq.request.request_id))

    def remove(self, seq: Sequence) -> None:
        """Takes a sequence out."""
        key = seq.request.share.key
        queue = self._queues[key]
        queue.remove(seq)
        if not queue:
            del self._queues[key]
            self._left_last = key

    def charge_prompt(self, seq: Sequence, count: int) -> None:
        """Charges for `count` tokens of a prompt."""
        self._charge(seq.request.share, PROMPT_COST * count)

    def charge_output(self, seq: Sequence) -> None:
        """Charges for a generated token."""
        self._charge(seq.request.share, OUTPUT_COST)

    def charged(self, seq: Sequence) -> float:
        """Returns the counter of the sequence's key."""
        return self._charged[seq.request.share.key]

    def sort_by_charge(self, running: list[Sequence]) -> None:
        """Sorts running sequences in place: keys charged less first, within a key as they are."""
        if len(self._charged) > 1:
            running.sort(key=self.charged)

    def _charge(self, share: Share, cost: float) -> None:
        self._charged[share.key] += cost / share.weight

    def _queue_of(self, seq: Sequence) -> deque[Sequence]:
        key = seq.request.share.key
        queue = self._queues.get(key)
        if queue is None:
            waiting = self._queues or (self._left_last,)
            floor = min(self._charged[other] for other in waiting)
            self._charged[key] = max(self._charged[key], floor)
            queue = self._queues[key] = deque()
        return queue
