"""Separating what a model thinks from what it answers, while both arrive."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from rocmforge.text.output.incoming import Incoming

BEGIN = "<think>"
END = "</think>"


def reasons(template: str) -> bool:
    """Returns whether a chat template knows sections of reasoning."""
    return BEGIN in template or END in template


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text from a section of reasoning."""

    text: str


class _State(Enum):
    START = auto()  # reasoning may begin
    REASONING = auto()
    ANSWER = auto()


class ReasoningSplitter:
    """Takes the section of reasoning off the front of one answer. Mutable.

    White space behind either marker is markup too. For any split into pieces the result is the
    same, joined.

    Args:
        is_inside: Whether the prompt has opened the section already.
    """

    def __init__(self, *, is_inside: bool) -> None:
        self._incoming = Incoming()
        self._state = _State.REASONING if is_inside else _State.START
        self._strips = is_inside  # white space that comes now

    def push(self, text: str) -> list[str | Reasoning]:
        """Takes more of the answer."""
        incoming, said = self._incoming, list[str | Reasoning]()
        incoming.add(text)
        if self._state is _State.START:
            incoming.skip_space()
            if incoming.may_become(BEGIN):
                return []
            if incoming.take_mark(BEGIN):
                incoming.forget_skipped()
                self._state, self._strips = _State.REASONING, True
            else:
                self._state = _State.ANSWER
                self._say(incoming.take_skipped(), said)
        if self._state is _State.REASONING:
            self._say(incoming.take_until(END), said)
            if incoming.take_mark(END):
                self._state, self._strips = _State.ANSWER, True
        if self._state is _State.ANSWER:
            self._say(incoming.take(), said)
        return said

    def finish(self) -> list[str | Reasoning]:
        """Ends the answer: what was held back is no marker."""
        said: list[str | Reasoning] = []
        self._say(self._incoming.take_skipped() + self._incoming.take(), said)
        return said

    def _say(self, text: str, said: list[str | Reasoning]) -> None:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        if text:
            said.append(Reasoning(text) if self._state is _State.REASONING else text)
