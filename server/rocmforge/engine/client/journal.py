"""The tokens of unfinished requests, with which another engine process can go on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from msgspec import structs

from rocmforge.engine.ipc.params import GenerateRequest, TokenEvent


@dataclass(slots=True)
class _Entry:
    request: GenerateRequest
    tokens: list[int] = field(default_factory=list)
    tokens_before: int = -1  # when it was last handed to a process again; -1 = never


class Journal:
    """Remembers unfinished requests and their tokens.

    The draws of a request depend on its seed and positions only, so one that is submitted again
    together with its tokens goes on with the very tokens it would have had.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def open(self, request: GenerateRequest) -> None:
        """Remembers a request that was submitted."""
        self._entries[request.request_id] = _Entry(request)

    def note(self, event: TokenEvent) -> None:
        """Remembers what a request was given."""
        if event.token_ids and event.request_id in self._entries:
            self._entries[event.request_id].tokens += event.token_ids

    def close(self, request_id: int) -> None:
        """Forgets a request."""
        self._entries.pop(request_id, None)

    def can_resume(self, request_id: int) -> bool:
        """Returns whether it makes sense to submit a request again.

        Not if it got no further since the last time: it may be what the process dies of. Nor if
        parts of its prompt have been scored: they would come twice.
        """
        entry = self._entries.get(request_id)
        if entry is None or len(entry.tokens) == entry.tokens_before:
            return False
        return bool(entry.tokens) or entry.request.sampling.prompt_logprobs < 0

    def resume(self) -> list[GenerateRequest]:
        """Returns all requests, oldest first, to be submitted again.

        They arrive now: what they have run already is no time in a queue.
        """
        now_ns = time.monotonic_ns()
        requests = []
        for entry in self._entries.values():
            entry.tokens_before = len(entry.tokens)
            requests.append(
                structs.replace(entry.request, generated_ids=tuple(entry.tokens), arrival_ns=now_ns)
            )
        return requests
