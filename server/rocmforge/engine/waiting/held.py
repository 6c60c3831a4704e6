"""Requests that the scheduler has not been given yet, and what each of them waits for."""

from __future__ import annotations

from typing import Generic, TypeVar

from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, RequestTiming, TokenEvent

T = TypeVar("T")


class HeldRequests(Generic[T]):
    """Holds requests in order of arrival, each with what it waits for."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[GenerateRequest, T]] = {}

    def __len__(self) -> int:
        return len(self._held)

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
