"""Sections of reasoning before an answer: how long they may be, and what they must not disturb."""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from rocmforge.backend.arrays import Int32Array, UInt32Array
from rocmforge.engine.constraint.constraint import Constraint
from rocmforge.engine.ipc.params import Thinking

_EVERYTHING = np.uint32(0xFFFFFFFF)


class _State(Enum):
    START = auto()  # the first token opens the section, or there is none
    THINKING = auto()
    ANSWER = auto()


class ThinkingConstraint:
    """Lets a section of reasoning go before what the answer has to follow. See `Constraint`.

    Args:
        thinking: the section.
        answer: what the answer has to follow; None = nothing.
        eos_ids: tokens that end a sequence: not before an answer that has to follow something.
        num_words: words of a mask.
    """

    def __init__(
        self,
        thinking: Thinking,
        answer: Constraint | None,
        eos_ids: tuple[int, ...],
        num_words: int,
    ) -> None:
        self.num_words = num_words
        self._thinking = thinking
        self._answer = answer
        self._left = thinking.budget
        self._thoughts = np.full(num_words, _EVERYTHING)
        for token in eos_ids if answer is not None else ():
            self._thoughts[token // 32] &= ~_bit(token)
        self._state = _State.THINKING if thinking.is_begun else _State.START

    def fill(self, mask: UInt32Array) -> None:
        match self._state:
            case _State.THINKING:
                self._fill_thinking(mask, self._left)
            case _State.START if self._answer is not None:
                self._answer.fill(mask)
                mask[self._thinking.begin // 32] |= _bit(self._thinking.begin)
            case _State.ANSWER if self._answer is not None:
                self._answer.fill(mask)
            case _:
                mask[:] = _EVERYTHING

    def fill_ahead(self, masks: UInt32Array, tokens: Int32Array) -> None:
        if self._state is _State.ANSWER and self._answer is not None:
            self._answer.fill_ahead(masks, tokens)
            return
        self.fill(masks[0])
        for i, mask in enumerate(masks[1:], start=1):
            if self._state is _State.THINKING:
                self._fill_thinking(mask, self._left if self._left is None else self._left - i)
            else:
                mask[:] = _EVERYTHING

    def count_allowed(self, tokens: Int32Array) -> int:
        match self._state:
            case _State.START:
                return 0
            case _State.THINKING:
                ends = np.flatnonzero(tokens == self._thinking.end)
                count = int(ends[0]) if len(ends) else len(tokens)
                return count if self._left is None else min(count, self._left)
            case _State.ANSWER:
                return len(tokens) if self._answer is None else self._answer.count_allowed(tokens)

    def advance(self, token: int) -> bool:
        match self._state:
            case _State.START if token == self._thinking.begin:
                self._state = _State.THINKING
            case _State.THINKING if token == self._thinking.end:
                self._state = _State.ANSWER
            case _State.THINKING if self._left is not None:
                self._left -= 1
            case _State.START | _State.ANSWER:
                self._state = _State.ANSWER
                return self._answer is None or self._answer.advance(token)
        return True

    @property
    def error(self) -> str:
        return "" if self._answer is None else self._answer.error

    def _fill_thinking(self, mask: UInt32Array, left: int | None) -> None:
        if left is None or left > 0:
            mask[:] = self._thoughts
        else:
            mask[:] = 0
            mask[self._thinking.end // 32] = _bit(self._thinking.end)


def _bit(token: int) -> np.uint32:
    return np.uint32(1 << token % 32)
