"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """An Aho-Corasick automaton over the stop strings (CACM 18(6), 1975).

    Its state says how much of the text's end could still become a stop string, so that exactly
    that much is held back. Text is fed character by character: which stop string is found does not
    depend on how the text was cut. Immutable; the caller keeps the state.

    Attributes:
        first: The characters with which stop strings begin.
        held: Per state, the number of characters that could still become a stop string.
        found: Per state, the longest stop string that ends here, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self.held = [0]
        self.found: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()
        self.first = frozenset(self._next[0])

    def step(self, state: int, character: str) -> int:
        """Returns the state after one more character; 0 is the state of the empty text."""
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fail[state]

    def _insert(self, stop: str) -> None:
        state = 0
        for depth, character in enumerate(stop, start=1):
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self.held.append(depth)
                self.found.append(None)
            state = self._next[state][character]
        if state:
            self.found[state] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                queue.append(child)
                self._fail[child] = self.step(self._fail[state], character)
            if self.found[state] is None:
                self.found[state] = self.found[self._fail[state]]
