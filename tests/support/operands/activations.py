"""Activations for kernel tests, quantised as rf/activations/act.h says, with 1 or 2 slices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK = 32

# One ActScale.
SCALE_DTYPE = np.dtype([("scale", np.float32), ("sum_low", np.int16), ("sum_high", np.int16)])


@dataclass(frozen=True, slots=True)
class QuantisedActivation:
    """An int8 activation."""

    q: npt.NDArray[np.int8]  # [slices, rows, K]
    scales: np.ndarray[tuple[int, ...], np.dtype[np.void]]  # [slices, rows, K / 32] of SCALE_DTYPE

    def values(self) -> npt.NDArray[np.float64]:
        """What it stands for, [rows, K]."""
        scale = np.repeat(self.scales["scale"].astype(np.float64), BLOCK, axis=-1)
        return (self.q * scale).sum(axis=0)  # type: ignore[no-any-return]


def quantise(x: npt.NDArray[np.float32], slices: int = 1) -> QuantisedActivation:
    """Quantises [rows, K] in float32, as the kernels do."""
    rows, columns = x.shape
    q = np.zeros((slices, rows, columns // BLOCK, BLOCK), np.int8)
    scales = np.zeros((slices, rows, columns // BLOCK), SCALE_DTYPE)
    rest = x.reshape(q.shape[1:])
    largest = np.abs(rest).max(axis=-1)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    step = largest * np.float32(1 / 127)
    for each in range(slices):
        q[each] = np.rint(rest * inverse[..., None])
        scales[each]["scale"] = step
        rest = rest - step[..., None] * q[each]
        step, inverse = step / np.float32(254), inverse * np.float32(254)
    scales["sum_low"] = q[..., :16].sum(axis=-1, dtype=np.int16)
    scales["sum_high"] = q[..., 16:].sum(axis=-1, dtype=np.int16)
    return QuantisedActivation(q.reshape(slices, rows, columns), scales)
