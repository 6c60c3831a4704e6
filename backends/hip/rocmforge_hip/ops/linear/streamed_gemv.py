"""GEMV of one row with weights that come through LDS, on Hopper GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rocmforge_hip.device.driver import Dim3
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear.gemv import GEMV_THREADS
from rocmforge_hip.weights.formats import Matrix

STREAMED: Final = frozenset({"q4_k", "q6_k"})
"""The formats that `gemv_stream.h` knows."""

_STREAMED_GATED: Final = frozenset({"q4_k"})
_LEAST_FEATURES: Final = 4096  # of x, and of sums; with fewer, it was not measured to be faster


class StreamedGemv:
    """The kernels for products whose norm is left for later, where those are faster.

    A block takes one tile after another, so there are as many blocks as run at once
    (kernels/include/rf/gemv_stream.h).

    Args:
        library: Where the kernels are.
        geometry: For the device.
    """

    def __init__(self, library: KernelLibrary, geometry: Geometry) -> None:
        self._units = geometry.compute_units
        self._mixed = library.kernel(
            "rf_gemv_deferred_mixed_stream", products.rf_gemv_deferred_mixed
        )
        self._gated = library.kernel(
            "rf_gemv_deferred_gated_stream", products.rf_gemv_deferred_gated
        )
        self.deferred: Final = library.kernel("rf_gemv_deferred_stream", products.rf_gemv_deferred)
        self._mixed_at_once = self._mixed.blocks_at_once(GEMV_THREADS)
        self._gated_at_once = self._gated.blocks_at_once(GEMV_THREADS)

    @classmethod
    def of(cls, library: KernelLibrary, geometry: Geometry) -> StreamedGemv | None:
        """Returns them if a device has copies that go around registers, and these kernels."""
        has = geometry.has_warpgroups and library.has("rf_gemv_deferred_mixed_stream")
        return cls(library, geometry) if has else None

    def takes(self, matrices: Iterable[Matrix]) -> bool:
        """Returns whether one launch multiplies so with all of these."""
        return all(
            matrix.format.name in STREAMED and matrix.in_features >= _LEAST_FEATURES
            for matrix in matrices
        )

    def takes_gated(self, matrix: Matrix) -> bool:
        """Returns whether gate and up are multiplied so."""
        return matrix.format.name in _STREAMED_GATED and self.takes((matrix,))

    def takes_deferred(self, matrix: Matrix) -> bool:
        """Returns whether a product is added to the residual so."""
        return self.takes((matrix,)) and matrix.out_features >= _LEAST_FEATURES

    def mixed(self, tiles: int) -> tuple[Kernel[...], tuple[Dim3, int]]:
        """Returns the kernel for up to three matrices, and its grid and threads."""
        return self._mixed, self._launched(tiles, self._mixed_at_once)

    def gated(self, units: int) -> tuple[Kernel[...], tuple[Dim3, int]]:
        """Returns the kernel for gate and up, and its grid and threads."""
        return self._gated, self._launched(units, self._gated_at_once)

    def _launched(self, work: int, at_once: int) -> tuple[Dim3, int]:
        return (min(work, at_once * self._units), 1, 1), GEMV_THREADS
