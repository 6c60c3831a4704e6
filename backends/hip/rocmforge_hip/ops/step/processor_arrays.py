"""The arrays of logits processors in a step's inputs, and the order of their launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.backend.step import ProcessorBatch
from rocmforge.logits.processor import MAX_NUMBERS, MAX_PROCESSORS
from rocmforge_hip.device.memory import ArraySpec, spec

X = TypeVar("X")


Content = tuple[npt.NDArray[Any], float | None]
"""What a step writes into one of its arrays: values from the start, then padding; None: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorArrays(Generic[X]):
    """The arrays of U uses of logits processors, in L rows of logits; see `ProcessorBatch`."""

    order: X  # int32 [U], the uses in the order of their launches
    rows: X  # int32 [U]
    numbers: X  # float32 [U, N]
    token_sets: X  # uint32 [U, W]
    windows: X  # int32 [U]
    uniforms: X  # float32 [U]
    history_offsets: X  # int32 [L + 1]
    histories: X  # int32 [history_offsets[-1]]
    prompt_lengths: X  # int32 [L]


@dataclass(frozen=True, slots=True)
class UseSizes:
    """Sizes of the arrays of processors in a step's input."""

    uses: int
    numbers: int  # of a use
    words: int  # of a use's token set
    history: int  # tokens, of all rows

    @classmethod
    def of(cls, batch: ProcessorBatch | None) -> UseSizes:
        """Returns the sizes for these uses."""
        if batch is None:
            return NO_USES
        numbers, words = batch.numbers.shape[1], batch.token_sets.shape[1]
        return cls(len(batch.names), numbers, words, len(batch.history))

    @classmethod
    def most(cls, sequences: int, context: int, words: int) -> UseSizes:
        """Returns the largest sizes that there can be."""
        return cls(sequences * MAX_PROCESSORS, MAX_NUMBERS, words, sequences * context)

    def specs(self, rows: int) -> ProcessorArrays[ArraySpec] | None:
        """Returns the arrays of these uses, for so many rows of logits; None without any."""
        if not self.uses:
            return None
        return ProcessorArrays(
            order=spec((self.uses,), "i4"),
            rows=spec((self.uses,), "i4"),
            numbers=spec((self.uses, self.numbers), "f4"),
            token_sets=spec((self.uses, self.words), "u4"),
            windows=spec((self.uses,), "i4"),
            uniforms=spec((self.uses,), "f4"),
            history_offsets=spec((rows + 1,), "i4"),
            histories=spec((self.history,), "i4"),
            prompt_lengths=spec((rows,), "i4"),
        )


NO_USES: Final = UseSizes(0, 0, 0, 0)


def processor_contents(batch: ProcessorBatch) -> ProcessorArrays[Content]:
    """Returns what goes into the arrays of `UseSizes.specs`."""
    return ProcessorArrays(
        order=(np.concatenate([uses for _, uses in launches(batch)]), 0),
        rows=(batch.rows, 0),
        numbers=(batch.numbers, 0),
        token_sets=(batch.token_sets, 0),
        windows=(batch.windows, 0),
        uniforms=(batch.uniforms, 0),
        history_offsets=(batch.history_offsets, int(batch.history_offsets[-1])),
        histories=(batch.history, 0),
        prompt_lengths=(batch.prompt_lengths, 0),
    )


def launches(batch: ProcessorBatch) -> list[tuple[str, npt.NDArray[np.int32]]]:
    """Returns processors and their uses, so that those of a row come in their order."""
    turns = np.arange(len(batch.rows)) - np.searchsorted(batch.rows, batch.rows)
    found: dict[tuple[int, str], list[int]] = {}
    for use, turn in enumerate(turns.tolist()):
        found.setdefault((turn, batch.names[use]), []).append(use)
    return [(name, np.array(found[turn, name], np.int32)) for turn, name in sorted(found)]
