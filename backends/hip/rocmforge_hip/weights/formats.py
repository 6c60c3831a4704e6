"""Weights on the device: which formats there are kernels for, and how matrices lie in memory.

A matrix is stored as rf/weights/weights.h says. It may be a stack of several matrices of
the file that are always multiplied with the same input (query, key and value), or gate and up rows
interleaved; a `Weight` is the part of it that one of them became.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rocmforge.checkpoint.formats import FORMATS as STORED_FORMATS
from rocmforge.checkpoint.formats import WeightFormat
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.models.blocks import Role
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.weights.products import Product

FORMATS: Final[Mapping[str, WeightFormat]] = MappingProxyType(
    {name: format for name, format in STORED_FORMATS.items() if format.has_kernels}
)
"""Those that the kernels can multiply with, by name."""
FORMAT_NUMBERS: Final = MappingProxyType({name: place for place, name in enumerate(FORMATS)})
"""Their places there, by which kernels for several formats know them."""
FLOAT_FORMATS: Final = frozenset(name for name, each in FORMATS.items() if not each.is_quantised)


def format_of(tensor: Tensor) -> WeightFormat:
    """Returns the format of a matrix of the file.

    Raises:
        UnsupportedTensor: There are no kernels for its type or in_features.
    """
    if tensor.format.name not in FORMATS:
        names = ", ".join(name.upper() for name in FORMATS)
        raise UnsupportedTensor(
            tensor.name,
            f"the HIP backend has no kernels for {tensor.format}; it has: {names}",
        )
    if tensor.shape[-1] % QUANT_BLOCK:
        raise UnsupportedTensor(
            tensor.name, f"its {tensor.shape[-1]} in_features are not a multiple of {QUANT_BLOCK}"
        )
    return FORMATS[tensor.format.name]


@dataclass(frozen=True, slots=True, eq=False)
class HostedExperts:
    """The experts of a matrix where the device has no room for all of them.

    Those of all experts are in the host's memory. `Matrix.data` has a seat for some of them, and a
    kernel reads each from where `places` says.
    """

    seats: int
    host: int  # address of all experts, one after the other, as the device and the host know it
    places: DeviceArray  # int64 [num_experts], bytes from `Matrix.data` to the matrix of each


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix on the device, [stored_rows, in_features].

    The matrices of all experts of a layer are one after the other, unless they are hosted; the
    numbers are of one.
    """

    data: DeviceArray
    format: WeightFormat
    out_features: int
    in_features: int
    stored_rows: int
    num_experts: int = 0  # 0: it is of none
    num_shared: int = 0  # of them, the first, which every token goes to
    hosted: HostedExperts | None = None  # None: all experts are on the device

    @property
    def places(self) -> DeviceArray | None:
        """Where the matrix of each expert is: see `HostedExperts`."""
        return None if self.hosted is None else self.hosted.places

    @property
    def quant_blocks(self) -> int:
        """Quant blocks of a row."""
        return self.in_features // QUANT_BLOCK

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix, of one expert where it is of experts."""
        return self.stored_rows * self.format.row_bytes(self.in_features)

    @property
    def row_loads(self) -> int:
        """Loads of the embedding kernel for a row: one or two quant blocks, or 16 bytes of numbers.

        repack.hip asserts that only formats with blocks of one quant block load a single one.
        """
        if not self.format.is_quantised:
            return self.format.row_bytes(self.in_features) // 16
        return self.quant_blocks // (1 if self.format.block_size == QUANT_BLOCK else 2)


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
    role: Role  # what of the matrix this device has, where others have parts, too


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """A norm, a bias or a router, float32, and flat.

    Biases of stacked matrices are stacked, and each has them all.
    """

    data: DeviceArray


Weight = MatrixPart | Vector


def round_up(count: int, multiple: int) -> int:
    """Returns the least multiple that is not below `count`."""
    return -(-count // multiple) * multiple


def ceil_div(count: int, size: int) -> int:
    """Returns how many pieces of `size` hold `count`."""
    return -(-count // size)
