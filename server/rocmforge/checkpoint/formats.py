"""The weight formats: how the elements of a tensor are stored. Each is declared here, once.

Readers of files name them, `decode` turns them into numbers, and the build of the kernels makes
kernels for them, each from the header kernels/include/rf/formats/<name>.h. So this module needs
nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the elements of each row of a tensor are stored.

    Attributes:
        name: As in the names of kernels; in capitals, the name of GGUF's type.
        block_size: Elements of a row that are stored together; 1 for plain numbers.
        block_bytes: Bytes of such a block.
        has_kernels: There are kernels that multiply with matrices of this format. The others
            occur in files, where they can be described.
    """

    name: str
    block_size: int
    block_bytes: int
    has_kernels: bool

    def __str__(self) -> str:
        """Returns the name as people know it."""
        return self.name.upper()

    @property
    def is_quantised(self) -> bool:
        """Whether elements share a block; otherwise they are plain numbers."""
        return self.block_size > 1

    def row_bytes(self, features: int) -> int:
        """Returns the bytes of a row of so many elements, a multiple of `block_size`."""
        return features // self.block_size * self.block_bytes


def _declare(
    *rows: tuple[str, int, int], has_kernels: bool
) -> Mapping[str, WeightFormat]:  # name, block_size, block_bytes
    return {
        name: WeightFormat(name=name, block_size=size, block_bytes=nbytes, has_kernels=has_kernels)
        for name, size, nbytes in rows
    }


FORMATS: Final = MappingProxyType(
    {
        **_declare(
            ("f32", 1, 4),
            ("f16", 1, 2),
            ("bf16", 1, 2),
            ("q8_0", 32, 34),
            ("q4_0", 32, 18),
            ("q4_1", 32, 20),
            ("q5_0", 32, 22),
            ("q5_1", 32, 24),
            ("iq4_nl", 32, 18),
            ("mxfp4", 32, 17),
            ("q2_k", 256, 84),
            ("q3_k", 256, 110),
            ("q4_k", 256, 144),
            ("q5_k", 256, 176),
            ("q6_k", 256, 210),
            ("iq4_xs", 256, 136),
            has_kernels=True,
        ),
        **_declare(
            ("f64", 1, 8),
            ("i8", 1, 1),
            ("i16", 1, 2),
            ("i32", 1, 4),
            ("i64", 1, 8),
            ("q1_0", 128, 18),
            ("q8_1", 32, 40),
            ("q8_k", 256, 292),
            ("iq1_s", 256, 50),
            ("iq1_m", 256, 56),
            ("iq2_xxs", 256, 66),
            ("iq2_xs", 256, 74),
            ("iq2_s", 256, 82),
            ("iq3_xxs", 256, 98),
            ("iq3_s", 256, 110),
            ("tq1_0", 256, 54),
            ("tq2_0", 256, 66),
            ("nvfp4", 64, 36),
            has_kernels=False,
        ),
    }
)
"""All formats by name: those with kernels first, in the order in which they are shown to people."""
