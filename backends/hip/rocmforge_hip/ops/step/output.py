"""The results of a step: arrays at known places in one pinned buffer, which travel in one copy."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge_hip.device.memory import DeviceArray, HostCopies
from rocmforge_hip.weights.formats import round_up

_ALIGN: Final = 16
_PAGE: Final = mmap.PAGESIZE


@dataclass(frozen=True, eq=False)
class OutputLayout:
    """The places of the results of `rows` rows with `num_top` top_logprobs in their buffer.

    Sums of hidden states come first, and end where the tokens begin. On the device, that is always
    the same place: the next step reads the tokens there.
    """

    rows: int
    logprobs: bool
    num_top: int
    sums: int = 0
    hidden_size: int = 0
    parts: int = 1  # that a tower makes one after the other, of which a row has all

    @cached_property
    def _offsets(self) -> tuple[int, int, int, int]:
        chosen = round_up(self.rows * 4, _ALIGN)
        ids = chosen + round_up(self.rows * 4, _ALIGN) * self.logprobs
        values = ids + round_up(self.rows * self.num_top * 4, _ALIGN)
        return chosen, ids, values, values + round_up(self.rows * self.num_top * 4, _ALIGN)

    @property
    def sums_nbytes(self) -> int:
        """Bytes before the tokens."""
        return self.sums * self.hidden_size * 4

    @property
    def nbytes(self) -> int:
        """Bytes to copy."""
        return self.sums_nbytes + self._offsets[3]

    def make_room(self) -> npt.NDArray[np.float32] | None:
        """Returns memory for the sums that is there when they come; None if there are none.

        The kernel clears pages when they are first touched, which takes as long as the copy.
        """
        if not self.sums:
            return None
        room = np.empty((self.sums, self.parts, self.hidden_size // self.parts), np.float32)
        room.reshape(-1).view(np.uint8)[::_PAGE] = 0
        return room

    def read_hidden(
        self, buffer: npt.NDArray[np.uint8], room: npt.NDArray[np.float32], copies: HostCopies
    ) -> npt.NDArray[np.float32]:
        """Returns the sums, [sums, hidden_size], copied once, into what `make_room` returned."""
        sums = buffer[: self.sums_nbytes].view(np.float32)
        by_part = sums.reshape(self.parts, self.sums, self.hidden_size // self.parts)
        copies.copy(room, by_part.swapaxes(0, 1))
        return room.reshape(self.sums, self.hidden_size)

    def arrays(self, base: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Returns log-probabilities of the tokens, ids of the top_logprobs, and those.

        Args:
            base: Of the tokens.
        """
        chosen, ids, values, _ = self._offsets
        shape = (self.rows, self.num_top)
        return (
            DeviceArray(base + chosen, (self.rows,), np.dtype("f4")),
            DeviceArray(base + ids, shape, np.dtype("i4")),
            DeviceArray(base + values, shape, np.dtype("f4")),
        )

    def read(
        self, buffer: npt.NDArray[np.uint8], rows: int
    ) -> tuple[npt.NDArray[np.int32], Any, Any, Any]:
        """Copies of the first rows of: tokens, log-probabilities, ids, their log-probabilities."""
        chosen, ids, values, _ = self._offsets
        buffer = buffer[self.sums_nbytes :]
        tokens = buffer[: self.rows * 4].view(np.int32)[:rows].copy()
        logprobs = top_ids = top_logprobs = None
        if self.logprobs:
            logprobs = buffer[chosen : chosen + self.rows * 4].view(np.float32)[:rows].copy()
        if self.num_top:
            shape = (self.rows, self.num_top)
            size = self.rows * self.num_top * 4
            top_ids = buffer[ids : ids + size].view(np.int32).reshape(shape)[:rows].copy()
            top_logprobs = buffer[values : values + size].view(np.float32)
            top_logprobs = top_logprobs.reshape(shape)[:rows].copy()
        return tokens, logprobs, top_ids, top_logprobs
