"""Weights on the device: which formats there are kernels for, and how matrices lie in memory.

A matrix is stored as kernels/include/rf/weights.h says. It may be a stack of several matrices of
the file that are always multiplied with the same input (query, key and value), or gate and up rows
interleaved; a `Weight` is the part of it that one of them became.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.tensor import GgufTensor
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.weights.products import Product


@dataclass(frozen=True, slots=True)
class Format:
    """A stored type that the kernels can multiply with."""

    name: str  # in the names of kernels
    type: GGMLQuantizationType
    loads_per_quant_block: float  # of the embedding kernel: 16-byte items, or parts of a block
    is_quantised: bool = True

    def row_bytes(self, in_features: int) -> int:
        """Returns the bytes of a row, the same as in the file."""
        block, size = GGML_QUANT_SIZES[self.type]
        return in_features // block * size


def _formats() -> Mapping[GGMLQuantizationType, Format]:
    found = {}
    for name, loads in (("f32", 8.0), ("f16", 4.0), ("bf16", 4.0)):
        kind = GGMLQuantizationType[name.upper()]
        found[kind] = Format(name, kind, loads, is_quantised=False)
    for name in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4"):
        kind = GGMLQuantizationType[name.upper()]
        found[kind] = Format(name, kind, 1.0)
    for name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"):
        kind = GGMLQuantizationType[name.upper()]
        found[kind] = Format(name, kind, 0.5)
    return MappingProxyType(found)


FORMATS: Final = _formats()
FLOAT_FORMATS: Final = frozenset(each.name for each in FORMATS.values() if not each.is_quantised)


def format_of(tensor: GgufTensor) -> Format:
    """Returns the format of a matrix of the file.

    Raises:
        UnsupportedTensor: There are no kernels for its type or in_features.
    """
    if tensor.type not in FORMATS:
        names = ", ".join(known.type.name for known in FORMATS.values())
        raise UnsupportedTensor(
            tensor.name, f"the HIP backend has no kernels for {tensor.type.name}; it has: {names}"
        )
    if tensor.shape[1] % QUANT_BLOCK:
        raise UnsupportedTensor(
            tensor.name, f"its {tensor.shape[1]} in_features are not a multiple of {QUANT_BLOCK}"
        )
    return FORMATS[tensor.type]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix on the device, [stored_rows, in_features]."""

    data: DeviceArray
    format: Format
    out_features: int
    in_features: int
    stored_rows: int

    @property
    def quant_blocks(self) -> int:
        """Quant blocks of a row."""
        return self.in_features // QUANT_BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class MatrixPart:
    """A matrix of the model: outputs `first:first + out_features` of a matrix on the device.

    `product` is the activation that products with the matrix are written to; None for a table of
    rows, with which nothing is multiplied.
    """

    matrix: Matrix
    first: int
    out_features: int
    product: Product | None


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """A norm or a bias, float32. Biases of stacked matrices are stacked, and each has them all."""

    data: DeviceArray


Weight = MatrixPart | Vector


def round_up(count: int, multiple: int) -> int:
    """Returns the least multiple that is not below `count`."""
    return -(-count // multiple) * multiple


def ceil_div(count: int, size: int) -> int:
    """Returns how many pieces of `size` hold `count`."""
    return -(-count // size)
