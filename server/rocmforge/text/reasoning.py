"""Separating what a model thinks from what it answers, while both arrive."""

from __future__ import annotations

from dataclasses import dataclass

BEGIN = "<think>"
END = "</think>"


def reasons(template: str) -> bool:
    """Whether a chat template knows sections of reasoning."""
    return BEGIN in template or END in template


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text from a section of reasoning."""

    text: str


class ReasoningSplitter:
    """Takes the section of reasoning off the front of one answer. Mutable.

    White space behind either marker is markup too. For any split into pieces the result is the
    same, joined.

    Args:
        is_inside: Whether the prompt has opened the section already.
    """

    def __init__(self, *, is_inside: bool) -> None:
        self._marker: str | None = END if is_inside else BEGIN  # looked for; None = none any more
        self._strips = True
        self._held = ""

    def push(self, text: str) -> list[str | Reasoning]:
        """Takes more of the answer."""
        self._held += text
        said: list[str | Reasoning] = []
        if self._marker == BEGIN:
            start = self._held.lstrip()
            if BEGIN.startswith(start) and start != BEGIN:
                return []
            if start.startswith(BEGIN):
                self._held, self._marker = start.removeprefix(BEGIN), END
            else:
                self._marker, self._strips = None, False
        if self._marker == END:
            thought, end, rest = self._held.partition(END)
            if end:
                self._say(thought, said, is_reasoning=True)
                self._held, self._marker, self._strips = rest, None, True
            else:
                held = _overlap(self._held)
                thought = self._held[: len(self._held) - held]
                self._held = self._held[len(thought) :]
                self._say(thought, said, is_reasoning=True)
        if self._marker is None:
            self._say(self._held, said, is_reasoning=False)
            self._held = ""
        return said

    def finish(self) -> list[str | Reasoning]:
        """The end of the answer: what was held back is no marker."""
        said: list[str | Reasoning] = []
        self._strips = self._strips and self._marker == END
        self._say(self._held, said, is_reasoning=self._marker == END)
        self._held = ""
        return said

    def _say(self, text: str, said: list[str | Reasoning], *, is_reasoning: bool) -> None:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        if text:
            said.append(Reasoning(text) if is_reasoning else text)


def _overlap(text: str) -> int:
    """How much of the text's end could become the closing marker."""
    longest = min(len(END) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if END.startswith(text[-n:])), 0)
