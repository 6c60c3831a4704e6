"""Activations for kernel tests, quantised as kernels/include/rf/act.h says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK = 32

# One ActScale.
SCALE_DTYPE = np.dtype([("scale", np.float32), ("sum_low", np.int16), ("sum_high", np.int16)])


@dataclass(frozen=True, slots=True)
class QuantisedActivation:
    """An int8 activation [rows, K]."""

    q: npt.NDArray[np.int8]
    scales: np.ndarray[tuple[int, ...], np.dtype[np.void]]  # [rows, K / 32] of SCALE_DTYPE

    def values(self) -> npt.NDArray[np.float64]:
        """What it stands for."""
        scale = np.repeat(self.scales["scale"].astype(np.float64), BLOCK, axis=1)
        return self.q.astype(np.float64) * scale


def quantise(x: npt.NDArray[np.float32]) -> QuantisedActivation:
    """Quantises [rows, K] in float32, as the kernels do."""
    rows, columns = x.shape
    blocks = x.reshape(rows, columns // BLOCK, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    q = np.rint(blocks * inverse[..., None]).astype(np.int8)
    scales = np.zeros((rows, columns // BLOCK), SCALE_DTYPE)
    scales["scale"] = largest * np.float32(1 / 127)
    scales["sum_low"] = q[..., :16].sum(axis=-1, dtype=np.int16)
    scales["sum_high"] = q[..., 16:].sum(axis=-1, dtype=np.int16)
    return QuantisedActivation(q.reshape(rows, columns), scales)
