"""The requests that an engine has not finished: which it takes, and what comes of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count

from msgspec import structs

from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.client.journal import Journal
from rocmforge.engine.client.shared_grammars import SharedGrammars
from rocmforge.engine.client.verifier import Verifier
from rocmforge.engine.ipc.messages import Cancel, Command
from rocmforge.engine.ipc.params import (
    NO_KEY,
    FinishReason,
    GenerateRequest,
    Share,
    TokenEvent,
)
from rocmforge.errors import QueueFull

logger = logging.getLogger(__name__)

_DEADLINE_GRACE_S = 0.1
"""For the engine to end a request by itself, which then tells more of it."""
_FINISHED = frozenset({FinishReason.STOP, FinishReason.LENGTH})
_RETRY_AFTER_S = 1.0
_PLACES_PER_FREE_PLACE = 3
"""How many places of the queue a key may hold for each one that is free.

So one that floods the queue leaves a quarter of it to others, two leave a seventh (dynamic
thresholds: Choudhury and Hahne, 1998).
"""


class LiveRequests:
    """Numbers requests, and keeps their handles until they end. One event loop only.

    Args:
        config: how many there may be, and whether they outlive the process that has them.
        send: takes commands to the process, if there is one.
        verifier: has a sample of them computed again; None = nothing is.

    Attributes:
        busy_since: loop time when the first of those began that have been live since without a
            pause, or when they were handed to another process.
    """

    def __init__(
        self, config: EngineConfig, send: Callable[[Command], None], verifier: Verifier | None
    ) -> None:
        self._most_running = config.options.max_sequences
        self._most = self._most_running + config.max_waiting
        self._send = send
        self._verifier = verifier
        self._ids = count()
        self._handles: dict[int, GenerationHandle] = {}
        self._held: Counter[int] = Counter()  # requests by key
        self._durations: deque[float] = deque(maxlen=16)  # seconds that requests took lately
        self._journal = Journal() if config.resume else None
        self._grammars = SharedGrammars()
        self._idle = asyncio.Event()
        self._idle.set()
        self.busy_since = 0.0

    def __len__(self) -> int:
        return len(self._handles)

    async def wait_idle(self) -> None:
        """Waits until there is none."""
        await self._idle.wait()

    # --- their begin ---

    def check_place(self, share: Share) -> None:
        """Checks that the queue has room, and that the request's key leaves some to others.

        Raises:
            QueueFull: it has not, or the key does not.
        """
        free = self._most - len(self)
        has_place = free > 0
        if share.key != NO_KEY.key and len(self) >= self._most_running:
            has_place = self._held[share.key] < _PLACES_PER_FREE_PLACE * free
        if not has_place:
            held = self._held[share.key]
            whose = f", {held} of them with this key" if share.key != NO_KEY.key else ""
            raise QueueFull(
                f"{len(self)} requests are running or waiting{whose}; try again later.",
                retry_after_s=self._place_free_in_s(),
            )

    def _place_free_in_s(self) -> float:
        """Estimates seconds until a request ends, if those held now take as long as others did."""
        if not self._durations:
            return _RETRY_AFTER_S
        took_s = sum(self._durations) / len(self._durations)
        return max(_RETRY_AFTER_S, took_s / len(self))

    def submit(self, request: GenerateRequest) -> GenerationHandle:
        """Sends a request to the process, under a number of its own.

        Args:
            request: one that the process can compute, and that has a place.

        Raises:
            EngineError: it is larger than a message may be.
        """
        request_id = next(self._ids)
        sampling = request.sampling
        grammar = self._grammars.open(request_id, sampling.grammar, self._send)
        request = structs.replace(
            request, request_id=request_id, sampling=structs.replace(sampling, grammar=grammar)
        )
        try:
            if self._verifier is not None:
                self._verifier.open(request, self._send)
            self._send(request)  # what cannot be sent must not be waited for
        except BaseException:
            self._close(request_id)
            raise
        loop = asyncio.get_running_loop()
        if not self._handles:
            self.busy_since = loop.time()
            self._idle.clear()
        handle = GenerationHandle(request_id, self._cancel, request.share.key)
        if request.deadline_ns is not None:
            left_s = (request.deadline_ns - time.monotonic_ns()) * 1e-9
            handle.expires = loop.call_later(left_s + _DEADLINE_GRACE_S, self._expire, request_id)
        self._handles[request_id] = handle
        self._held[request.share.key] += 1
        if self._journal is not None:
            self._journal.open(request)
        return handle

    def resume(self) -> int:
        """Hands a new process what the one before it had not finished; returns how many."""
        if self._journal is None or not self._handles:
            return 0
        self.busy_since = asyncio.get_running_loop().time()
        requests = self._journal.resume()
        self._grammars.send_all(self._send)
        for request in requests:
            self._send(request)
            self._handles[request.request_id].resumed += 1
        return len(requests)

    # --- what comes of them ---

    def deliver(self, events: Sequence[TokenEvent]) -> bool:
        """Passes events on; returns whether one of them finished a request as it should end."""
        now = asyncio.get_running_loop().time()
        has_finished = False
        for event in events:
            handle = self._handles.get(event.request_id)
            if handle is None:
                continue  # closed in the meantime
            if self._journal is not None:
                self._journal.note(event)
            if self._verifier is not None:
                self._verifier.note(event)
            has_finished |= event.finish_reason in _FINISHED
            if event.finish_reason is not None:
                self._forget(event.request_id)
            handle.deliver(event, now)
        return has_finished

    def fail(self, message: str, *, keep_resumable: bool = False) -> None:
        """Ends all of them with an error, or all but those that another process can go on with."""
        self.deliver(
            [
                TokenEvent(request_id=request_id, finish_reason=FinishReason.DIED, error=message)
                for request_id in self._handles
                if not (keep_resumable and self.can_resume(request_id))
            ]
        )

    def can_resume(self, request_id: int) -> bool:
        """Returns whether another process can go on with a request."""
        return self._journal is not None and self._journal.can_resume(request_id)

    def close_stalled(self, limit_s: float) -> None:
        """Ends those whose events nobody has read for `limit_s` seconds."""
        now = asyncio.get_running_loop().time()
        for handle in list(self._handles.values()):
            if handle.is_stalled(now, limit_s):
                logger.warning("request %d is not being read: cancelled", handle.request_id)
                handle.close()

    # --- their end ---

    def _cancel(self, request_id: int) -> None:
        if self._forget(request_id):
            self._send(Cancel(request_id=request_id))

    def _expire(self, request_id: int) -> None:
        """Ends a request whose deadline has passed, whatever the engine is doing."""
        handle = self._handles[request_id]
        self._cancel(request_id)
        event = TokenEvent(request_id=request_id, finish_reason=FinishReason.DEADLINE)
        handle.deliver(event, asyncio.get_running_loop().time())

    def _forget(self, request_id: int) -> bool:
        handle = self._handles.pop(request_id, None)
        if handle is not None:
            handle.stop_clock()
            self._durations.append(asyncio.get_running_loop().time() - handle.began)
            self._held[handle.key] -= 1
        self._close(request_id)
        if not self._handles:
            self._idle.set()
        return handle is not None

    def _close(self, request_id: int) -> None:
        """Lets go of what is kept beside the handle of a request."""
        self._grammars.close(request_id, self._send)
        if self._journal is not None:
            self._journal.close(request_id)
        if self._verifier is not None:
            self._verifier.close(request_id)
