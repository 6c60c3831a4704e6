"""The weight formats: how the elements of a tensor are stored. Each is declared here, once.

Readers of files name them, `decode` turns them into numbers, and the build of the kernels makes
kernels for them, each from the header kernels/include/rf/formats/<name>.h. So this module needs
nothing but the standard library.
"""

from __future__ import annotations

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
        half_scales: Bytes of a block at which the float16s begin that multiply its codes.
        exponent_scales: Bytes of a block that are such factors, powers of two biased by 127.
        largest: The largest number that such a factor meets.
        has_kernels: There are kernels that multiply with matrices of this format. The others
            occur in files, where they can be described.
        is_mixed: Files mix it with others in query, key and value of a layer, so there are kernels
            that multiply with matrices of several such formats at once.
        is_streamed: There are kernels that copy its blocks ahead of products of few rows.
        is_staged: Kernels of Hopper GPUs bring its blocks to few rows through LDS, as its header
            says, too.
        is_paired: There is a kernel for up to 128 rows of which a multiprocessor of Hopper GPUs has
            two blocks, where registers suffice for that.
        is_beside_q6_k: Files that are mostly of this format have some values of a layer in Q6_K, so
            there are kernels of Hopper GPUs that multiply few rows with matrices of both.
    """

    name: str
    block_size: int
    block_bytes: int
    half_scales: tuple[int, ...] = ()
    exponent_scales: tuple[int, ...] = ()
    largest: float = 1.0
    has_kernels: bool = True
    is_mixed: bool = False
    is_streamed: bool = False
    is_staged: bool = False
    is_paired: bool = False
    is_beside_q6_k: bool = False

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


def _plain(name: str, nbytes: int) -> WeightFormat:
    return WeightFormat(name=name, block_size=1, block_bytes=nbytes)


def _scaled(
    name: str,
    block_size: int,
    block_bytes: int,
    largest: float,
    *half_scales: int,
    is_mixed: bool = False,
    is_streamed: bool = False,
    is_staged: bool = False,
    is_paired: bool = False,
    is_beside_q6_k: bool = False,
) -> WeightFormat:
    return WeightFormat(
        name=name,
        block_size=block_size,
        block_bytes=block_bytes,
        half_scales=half_scales,
        largest=largest,
        is_mixed=is_mixed,
        is_streamed=is_streamed,
        is_staged=is_staged,
        is_paired=is_paired,
        is_beside_q6_k=is_beside_q6_k,
    )


def _in_files(name: str, block_size: int, block_bytes: int) -> WeightFormat:
    return WeightFormat(
        name=name, block_size=block_size, block_bytes=block_bytes, has_kernels=False
    )


_ROWS: Final = (
    _plain("f32", 4),
    _plain("f16", 2),
    _plain("bf16", 2),
    _scaled("q8_0", 32, 34, 128, 0, is_mixed=True),
    _scaled("q4_0", 32, 18, 16, 0),
    _scaled("q4_1", 32, 20, 16, 0, 2),
    _scaled("q5_0", 32, 22, 16, 0, is_mixed=True),
    _scaled("q5_1", 32, 24, 16, 0, 2),
    _scaled("iq4_nl", 32, 18, 128, 0, is_mixed=True),
    WeightFormat(name="mxfp4", block_size=32, block_bytes=17, exponent_scales=(0,)),
    _scaled("q2_k", 256, 84, 45, 80, 82, is_mixed=True),
    _scaled("q3_k", 256, 110, 128, 108, is_mixed=True),
    _scaled(
        *("q4_k", 256, 144, 1024, 0, 2),
        is_mixed=True,
        is_streamed=True,
        is_staged=True,
        is_paired=True,
        is_beside_q6_k=True,
    ),
    _scaled("q5_k", 256, 176, 1024, 0, 2, is_mixed=True, is_beside_q6_k=True),
    _scaled("q6_k", 256, 210, 4096, 208, is_mixed=True, is_staged=True),
    _scaled("iq4_xs", 256, 136, 4096, 0, is_mixed=True),
    _scaled("iq3_s", 256, 110, 465, 0),
    _scaled("iq3_xxs", 256, 98, 481, 0),
    _scaled("iq2_s", 256, 82, 167, 0),
    _scaled("iq2_xs", 256, 74, 167, 0),
    _scaled("iq2_xxs", 256, 66, 167, 0),
    _scaled("q1_0", 128, 18, 1, 0),
    _in_files("f64", 1, 8),
    _in_files("i8", 1, 1),
    _in_files("i16", 1, 2),
    _in_files("i32", 1, 4),
    _in_files("i64", 1, 8),
    _in_files("q8_1", 32, 40),
    _in_files("q8_k", 256, 292),
    _in_files("iq1_s", 256, 50),
    _in_files("iq1_m", 256, 56),
    _in_files("tq1_0", 256, 54),
    _in_files("tq2_0", 256, 66),
    _in_files("nvfp4", 64, 36),
)

FORMATS: Final = MappingProxyType({format.name: format for format in _ROWS})
"""All formats by name: those with kernels first, in the order in which they are shown to people."""
