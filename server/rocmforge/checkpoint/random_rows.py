"""Random weights as a format stores them: to try kernels with, and to measure speed."""

from __future__ import annotations

from math import log2
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.formats import WeightFormat

_EXPONENTS: Final = (122, 128)  # of 2, biased by 127: weights up to about 1


def random_rows(
    rng: np.random.Generator,
    format: WeightFormat,
    rows: int,
    features: int,
    magnitude: float = 1.0,
) -> npt.NDArray[np.uint8]:
    """Returns [rows, bytes of a row]: weights of the order of `magnitude`; codes use every bit.

    `features` is a multiple of the format's block size; the format is one with kernels.
    """
    if not format.is_quantised:
        values = (magnitude * rng.standard_normal((rows, features))).astype(np.float32)
        if format.name == "bf16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype({"f32": np.float32, "f16": np.float16}[format.name]).view(np.uint8)
    shape = (rows, features // format.block_size, format.block_bytes)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    # With random bits there, weights would be huge or not numbers at all.
    for place in format.half_scales:
        scale = rng.uniform(0.25, 1.0, shape[:2]) / format.largest * magnitude
        scale *= rng.choice([-1.0, 1.0], shape[:2])
        blocks[:, :, place : place + 2] = scale[:, :, None].astype("<f2").view(np.uint8)
    for place in format.exponent_scales:
        blocks[:, :, place] = rng.integers(*_EXPONENTS, shape[:2]) + round(log2(magnitude))
    return blocks.reshape(rows, -1)
