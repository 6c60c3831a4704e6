"""Text that arrives in pieces and is understood from its front."""

from __future__ import annotations


class Incoming:
    """The part of a text that has come and is not understood yet. Mutable.

    What is certain is taken off the front. What looks like markup is skipped: it is off the front,
    too, and remembered until that is certain, or until it turns out to be text.

    Attributes:
        text: What is left.
    """

    def __init__(self) -> None:
        self.text = ""
        self._skipped = ""

    def add(self, text: str) -> None:
        """Appends text that has come."""
        self.text += text

    def take(self, count: int | None = None) -> str:
        """Takes so many characters off the front; None = all of them."""
        end = len(self.text) if count is None else count
        taken, self.text = self.text[:end], self.text[end:]
        return taken

    def take_until(self, *marks: str) -> str:
        """Takes what stands before the first of the marks.

        While none of them is there, an end that could become one stays.
        """
        found = [place for mark in marks if (place := self.text.find(mark)) >= 0]
        kept = max((overlap(self.text, mark) for mark in marks), default=0)
        return self.take(min(found, default=len(self.text) - kept))

    def take_mark(self, *marks: str) -> str:
        """Takes the mark that stands at the front; "" if none does."""
        found = next((mark for mark in marks if self.text.startswith(mark)), "")
        return self.take(len(found))

    def may_become(self, *marks: str) -> bool:
        """Returns whether all there is is the beginning of a mark, so that more has to come."""
        return any(len(self.text) < len(mark) and mark.startswith(self.text) for mark in marks)

    def skip(self, count: int) -> None:
        """Skips so many characters."""
        self._skipped += self.take(count)

    def skip_space(self, characters: str | None = None) -> None:
        """Skips white space, or whatever of these characters there is."""
        self.skip(len(self.text) - len(self.text.lstrip(characters)))

    def skip_mark(self, *marks: str) -> str:
        """Skips the mark that stands at the front; "" if none does."""
        mark = self.take_mark(*marks)
        self._skipped += mark
        return mark

    def forget_skipped(self) -> None:
        """Forgets what has been skipped: it was markup."""
        self._skipped = ""

    def take_skipped(self) -> str:
        """Takes what has been skipped: it was text."""
        skipped, self._skipped = self._skipped, ""
        return skipped


def overlap(text: str, mark: str) -> int:
    """Counts the characters at the end of the text that could become the mark."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
