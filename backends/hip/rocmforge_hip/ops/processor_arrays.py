"""The arrays of logits processors in a step's input, and the order of their launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.protocol import ProcessorBatch
from rocmforge.logits.processor import MAX_NUMBERS, MAX_PROCESSORS


@dataclass(frozen=True, slots=True)
class UseSizes:
    """Sizes of the arrays of processors in a step's input."""

    uses: int
    numbers: int  # of a use
    words: int  # of a use's token set
    history: int  # tokens, of all rows

    @classmethod
    def of(cls, batch: ProcessorBatch | None) -> UseSizes:
        """Those of these uses."""
        if batch is None:
            return NO_USES
        numbers, words = batch.numbers.shape[1], batch.token_sets.shape[1]
        return cls(len(batch.names), numbers, words, len(batch.history))

    @classmethod
    def most(cls, sequences: int, context: int, words: int) -> UseSizes:
        """The largest there can be."""
        return cls(sequences * MAX_PROCESSORS, MAX_NUMBERS, words, sequences * context)

    def sections(self, rows: int) -> Iterator[tuple[str, int, str]]:
        """Name, count and dtype of each array, for so many rows of logits."""
        if not self.uses:
            return
        yield "use_order", self.uses, "i4"
        yield "use_rows", self.uses, "i4"
        yield "use_numbers", self.uses * self.numbers, "f4"
        yield "use_token_sets", self.uses * self.words, "u4"
        yield "use_windows", self.uses, "i4"
        yield "use_uniforms", self.uses, "f4"
        yield "history_offsets", rows + 1, "i4"
        yield "histories", self.history, "i4"
        yield "prompt_lengths", rows, "i4"


NO_USES: Final = UseSizes(0, 0, 0, 0)


def use_contents(batch: ProcessorBatch) -> Iterator[tuple[str, npt.NDArray[Any], int | float]]:
    """Name, values and padding of the arrays of `UseSizes.sections`."""
    yield "use_order", np.concatenate([uses for _, uses in launches(batch)]), 0
    yield "use_rows", batch.rows, 0
    yield "use_numbers", batch.numbers.reshape(-1), 0
    yield "use_token_sets", batch.token_sets.reshape(-1), 0
    yield "use_windows", batch.windows, 0
    yield "use_uniforms", batch.uniforms, 0
    yield "history_offsets", batch.history_offsets, int(batch.history_offsets[-1])
    yield "histories", batch.history, 0
    yield "prompt_lengths", batch.prompt_lengths, 0


def launches(batch: ProcessorBatch) -> list[tuple[str, npt.NDArray[np.int32]]]:
    """Processors and their uses, so that those of a row come in their order."""
    turns = np.arange(len(batch.rows)) - np.searchsorted(batch.rows, batch.rows)
    found: dict[tuple[int, str], list[int]] = {}
    for use, turn in enumerate(turns.tolist()):
        found.setdefault((turn, batch.names[use]), []).append(use)
    return [(name, np.array(found[turn, name], np.int32)) for turn, name in sorted(found)]
