"""Random matrices of every stored type, whose codes use every bit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Tensor

# Bytes of a block at which the halves are that scale it, and the largest code they multiply: with
# random bits there, weights would be huge or not numbers at all.
_SCALES: Final[Mapping[str, tuple[tuple[int, ...], float]]] = MappingProxyType(
    {
        "q8_0": ((0,), 128),
        "q4_0": ((0,), 16),
        "q4_1": ((0, 2), 16),
        "q5_0": ((0,), 16),
        "q5_1": ((0, 2), 16),
        "iq4_nl": ((0,), 128),
        "q2_k": ((80, 82), 45),
        "q3_k": ((108,), 128),
        "q4_k": ((0, 2), 1024),
        "q5_k": ((0, 2), 1024),
        "q6_k": ((208,), 4096),
        "iq4_xs": ((0,), 4096),
    }
)
_MXFP4_EXPONENTS: Final = (122, 128)  # of 2, biased by 127: the first byte of a block


def random_tensor(
    rng: np.random.Generator, format: str, name: str, rows: int, columns: int
) -> Tensor:
    """Returns a [rows, columns] matrix of weights of the order of 1, as the format stores it."""
    kind = FORMATS[format]
    block, size = kind.block_size, kind.block_bytes
    if block == 1:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        if format == "bf16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.astype({"f32": np.float32, "f16": np.float16}[format]).view(np.uint8)
        return Tensor(name, (rows, columns), kind, data)
    stored = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    if format == "mxfp4":
        stored[:, :, 0] = rng.integers(*_MXFP4_EXPONENTS, stored.shape[:2])
    else:
        offsets, largest = _SCALES[format]
        for offset in offsets:
            scale = rng.uniform(0.25, 1.0, stored.shape[:2]) / largest
            scale *= rng.choice([-1.0, 1.0], stored.shape[:2])
            stored[:, :, offset : offset + 2] = scale[:, :, None].astype(np.float16).view(np.uint8)
    return Tensor(name, (rows, columns), kind, stored.reshape(rows, -1))
