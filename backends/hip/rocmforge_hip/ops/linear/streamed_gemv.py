"""GEMV of one row with weights that come through LDS, on devices with kernels for that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from rocmforge_hip.device.driver import Dim3
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.gemv import GEMV_THREADS
from rocmforge_hip.weights.formats import Matrix

STREAMED: Final = frozenset({"q4_k", "q6_k", "q8_0"})
"""The formats that `gemv_stream.h` knows."""

_STREAMED_GATED: Final = frozenset({"q4_k", "q8_0"})


class DeferringKernels(NamedTuple):
    """The kernels that add a product to the residual, and leave its norm for later."""

    alone: Kernel[...]
    routed: Kernel[...]  # where a router reads the norm, too


class StreamedGemv:
    """The kernels for products whose norm is left for later, where those are faster.

    A block takes one tile after another, so there are as many blocks as run at once
    (kernels/include/rf/gemv/gemv_stream.h).

    Args:
        library: Where the kernels are.
        geometry: For the device.
    """

    def __init__(self, library: KernelLibrary, geometry: Geometry) -> None:
        self._geometry = geometry
        self._mixed = library.kernel(
            "rf_gemv_deferred_mixed_stream", products.rf_gemv_deferred_mixed
        )
        self._gated = library.kernel(
            "rf_gemv_deferred_gated_stream", products.rf_gemv_deferred_gated
        )
        self.deferred: Final = DeferringKernels(
            library.kernel("rf_gemv_deferred_stream", products.rf_gemv_deferred),
            library.kernel("rf_gemv_deferred_route_stream", products.rf_gemv_deferred_route),
        )
        self._mixed_at_once = self._mixed.blocks_at_once(GEMV_THREADS)
        self._gated_at_once = self._gated.blocks_at_once(GEMV_THREADS)

    @classmethod
    def of(cls, library: KernelLibrary, geometry: Geometry) -> StreamedGemv | None:
        """Returns them if a device has these kernels: Hopper GPUs, as copies pass registers by."""
        has = library.has("rf_gemv_deferred_mixed_stream")
        return cls(library, geometry) if has else None

    def takes(self, matrices: Iterable[Matrix]) -> bool:
        """Returns whether one launch multiplies so with all of these."""
        return all(
            matrix.format.name in STREAMED and self._geometry.streams_row(matrix.in_features)
            for matrix in matrices
        )

    def takes_gated(self, matrix: Matrix) -> bool:
        """Returns whether gate and up are multiplied so."""
        return matrix.format.name in _STREAMED_GATED and self.takes((matrix,))

    def takes_deferred(self, matrix: Matrix) -> bool:
        """Returns whether a product is added to the residual so."""
        return self.takes((matrix,)) and self._geometry.streams_row(matrix.out_features)

    def mixed(self, tiles: int) -> tuple[Kernel[...], tuple[Dim3, int]]:
        """Returns the kernel for up to three matrices, and its grid and threads."""
        return self._mixed, self._launched(tiles, self._mixed_at_once)

    def gated(self, units: int) -> tuple[Kernel[...], tuple[Dim3, int]]:
        """Returns the kernel for gate and up, and its grid and threads."""
        return self._gated, self._launched(units, self._gated_at_once)

    def _launched(self, work: int, at_once: int) -> tuple[Dim3, int]:
        return (min(work, at_once * self._geometry.compute_units), 1, 1), GEMV_THREADS
