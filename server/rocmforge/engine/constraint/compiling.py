"""Requests whose grammar is still being compiled. They are not the scheduler's yet."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, wait

from rocmforge.engine.constraint.grammar import Compiled, Grammars
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, RequestTiming, TokenEvent


class CompilingRequests:
    """Holds requests until their grammars are there, in order of arrival.

    Args:
        grammars: compiles.
    """

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._held: dict[int, tuple[GenerateRequest, Compiled]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, request: GenerateRequest) -> None:
        """Begins to compile the grammar of a request."""
        compiled = self._grammars.compile(request.sampling.grammar)
        self._held[request.request_id] = request, compiled

    def wait(self, timeout_s: float) -> None:
        """Waits until one is ready, but not for ever."""
        wait([compiled for _, compiled in self._held.values()], timeout_s, FIRST_COMPLETED)

    def take_ready(self) -> list[tuple[GenerateRequest, Compiled]]:
        """Gives up those whose grammar is compiled, or turned out not to compile."""
        ready = [held for held in self._held.values() if held[1].done()]
        for request, _ in ready:
            del self._held[request.request_id]
        return ready

    def cancel(self, request_id: int, now_ns: int) -> TokenEvent | None:
        """Ends a request, if it is one of these."""
        if request_id not in self._held:
            return None
        return self._end(request_id, FinishReason.CANCELLED, now_ns)

    def expire(self, now_ns: int) -> list[TokenEvent]:
        """Ends those whose deadline has passed."""
        late = [
            request_id
            for request_id, (request, _) in self._held.items()
            if request.deadline_ns is not None and request.deadline_ns <= now_ns
        ]
        return [self._end(request_id, FinishReason.DEADLINE, now_ns) for request_id in late]

    def fail_all(self, message: str, now_ns: int) -> list[TokenEvent]:
        """Ends all of them, because the engine does."""
        return [
            self._end(request_id, FinishReason.DIED, now_ns, message)
            for request_id in list(self._held)
        ]

    def _end(
        self, request_id: int, reason: FinishReason, now_ns: int, error: str | None = None
    ) -> TokenEvent:
        request, _ = self._held.pop(request_id)
        return TokenEvent(
            request_id=request_id,
            finish_reason=reason,
            error=error,
            timing=RequestTiming(
                arrival_ns=request.arrival_ns,
                scheduled_ns=0,
                first_token_ns=0,
                finished_ns=now_ns,
            ),
        )
