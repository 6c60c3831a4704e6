"""Token ids to text while they arrive: whole characters only, and never a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rocmforge.text.output.stops import StopStrings
from rocmforge.text.tokenizer.tokenizer import Tokenizer

_decoder = codecs.getincrementaldecoder("utf-8")


class DecodedText(NamedTuple):
    """The text that some tokens have added.

    Attributes:
        text: Text that is safe to show. May be empty: an unfinished character or the beginning of
            a stop string is held back.
        tokens: How many of the pushed tokens belong to the answer; fewer than were pushed if a
            stop string ended within them (the token that completed it is counted).
        stop: The stop string that was found; the answer ends before it, and nothing may be pushed
            after it.
        offsets: For each counted token, where its text begins, in characters from the beginning of
            the answer. A token that only continues a character has the offset of that character.
    """

    text: str
    tokens: int
    stop: str | None
    offsets: tuple[int, ...]


class IncrementalDetokenizer:
    """One answer's text. Mutable; belongs to the request that reads it.

    Concatenated, the texts of all deltas are the decoded answer, for any split of the tokens into
    pushes. U+FFFD appears where the model has produced bytes that are not UTF-8, and nowhere else:
    a character that is still unfinished when the answer ends is left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        skip_special: bool = True,
        shown: Mapping[int, str] | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            tokenizer: The model's tokenizer.
            stop: Strings that end the answer; empty ones are ignored. The one that is completed
                first wins; of several that end at the same character, the longest.
            skip_special: Whether control tokens are left out.
            shown: Control tokens that are not, with their spelling.
        """
        self._texts, self._bytes = tokenizer.piece_tables(skip_special=skip_special)
        self._shown = shown or {}
        self._decoder = _decoder(errors="replace")
        self._undecoded = False  # the decoder holds the beginning of a character
        self._length = 0  # characters decoded so far, held back ones included
        self._stops = StopStrings(stop) if any(stop) else None
        self._state = 0
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> DecodedText:
        """Take the next tokens of the answer.

        Args:
            token_ids: Ids below the vocabulary's size.
        """
        texts: list[str] = []
        offsets: list[int] = []
        for count, token_id in enumerate(token_ids, start=1):
            offsets.append(self._length)
            text = None if self._undecoded else self._texts[token_id]
            if text is None:
                text = self._decode(self._bytes[token_id])
            if token_id in self._shown:
                text += self._shown[token_id]
            self._length += len(text)
            if self._stops is None:
                texts.append(text)
                continue
            stop = self._scan(text, texts)
            if stop is not None:
                return DecodedText("".join(texts), count, stop, tuple(offsets))
        return DecodedText("".join(texts), len(token_ids), None, tuple(offsets))

    def finish(self) -> DecodedText:
        """End the answer without a stop string: give out what was held back for one."""
        held, self._held, self._state = self._held, "", 0
        return DecodedText(held, 0, None, ())

    def _decode(self, piece: bytes) -> str:
        text = self._decoder.decode(piece)
        self._undecoded = bool(self._decoder.getstate()[0])
        return text

    def _scan(self, text: str, out: list[str]) -> str | None:
        """Append to `out` what can no longer become a stop string; return one that is found."""
        stops = self._stops
        assert stops is not None
        state = self._state
        if state == 0 and stops.first.isdisjoint(text):
            out.append(text)
            return None
        held = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = stops.step(state, character)
            stop = stops.found[state]
            if stop is not None:
                out.append(held[: end - len(stop)])
                self._held, self._state = "", 0
                return stop
        safe = len(held) - stops.held[state]
        out.append(held[:safe])
        self._held, self._state = held[safe:], state
        return None
