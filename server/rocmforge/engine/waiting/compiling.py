"""Requests whose grammar is still being compiled. They are not the scheduler's yet."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, wait

from rocmforge.engine.constraint.grammar import Compiled, Grammars
from rocmforge.engine.ipc.params import GenerateRequest
from rocmforge.engine.waiting.held import HeldRequests


class CompilingRequests(HeldRequests[Compiled]):
    """Holds requests until their grammars are there, in order of arrival.

    Args:
        grammars: compiles.
    """

    def __init__(self, grammars: Grammars) -> None:
        super().__init__()
        self._grammars = grammars

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
