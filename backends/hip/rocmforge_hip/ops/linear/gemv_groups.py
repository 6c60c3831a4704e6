"""Kernels that hold the code of a group of weight formats, by the group that a matrix needs.

The formats that files mix have kernels of their own, which need fewer registers than those of all
would (`formats` of kernels/kernels.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.kernels import products
from rocmforge_hip.ops.linear.gemv import GEMV_ROWS, GEMV_THREADS, GemvKernels
from rocmforge_hip.ops.linear.streamed_gemv import DeferringKernels
from rocmforge_hip.weights.formats import FORMATS, Matrix

K = TypeVar("K")

_ENOUGH_WAVES: Final = 8  # on a compute unit
_OTHER_ROWS: Final = (1, 2, 4)  # of kernels for formats that files do not mix


@dataclass(frozen=True, slots=True)
class KernelsOfOne:
    """Kernels for one matrix of a group; those for several rows by how many they take."""

    normed: dict[int, Kernel[...]]
    gated: dict[int, Kernel[...]]
    per_layer: dict[int, Kernel[...]]  # none for models without another embedding
    deferred: DeferringKernels
    gated_completing: Kernel[...]  # a norm that was left for later

    @classmethod
    def load(
        cls, library: KernelLibrary, *, is_mixed: bool, has_other_embedding: bool
    ) -> KernelsOfOne:
        """Returns those for the formats that are mixed, or for all others."""
        end, all_rows = ("", GEMV_ROWS) if is_mixed else ("_unmixed", _OTHER_ROWS)
        return cls(
            normed={
                most: library.kernel(f"rf_gemv_norm_r{most}{end}", products.rf_gemv_norm)
                for most in all_rows
            },
            gated={
                most: library.kernel(f"rf_gemv_gated_r{most}{end}", products.rf_gemv_gated)
                for most in all_rows
            },
            per_layer={
                most: library.kernel(f"rf_gemv_per_layer_r{most}{end}", products.rf_gemv_per_layer)
                for most in all_rows
                if has_other_embedding
            },
            deferred=DeferringKernels(
                library.kernel(f"rf_gemv_deferred{end}", products.rf_gemv_deferred),
                library.kernel(f"rf_gemv_deferred_route{end}", products.rf_gemv_deferred_route),
            ),
            gated_completing=library.kernel(
                f"rf_gemv_deferred_gated{end}", products.rf_gemv_deferred_gated
            ),
        )


@dataclass(frozen=True, slots=True)
class KernelsOfSeveral:
    """Kernels for several matrices in one launch: by the rows they take, and completing a norm."""

    by_rows: dict[int, Kernel[...]]
    completing: Kernel[...]

    @classmethod
    def load(
        cls, library: KernelLibrary, gemvs: GemvKernels, *, are_mixed: bool
    ) -> KernelsOfSeveral:
        """Returns those for the formats that are mixed, or for all formats.

        They take the registers of the largest format. Where that leaves too few waves to wait for
        memory in turns, as on gfx906, matrices are multiplied one by one.
        """
        end, by_rows = "" if are_mixed else "_quantised", {}
        for most in GEMV_ROWS if are_mixed else _OTHER_ROWS:
            kernel = library.kernel(f"rf_gemv_mixed_r{most}{end}", products.rf_gemv_mixed)
            blocks = min(
                gemv.blocks_at_once(GEMV_THREADS)
                for (name, rows), gemv in gemvs.quantised.items()
                if rows == most and (FORMATS[name].is_mixed or not are_mixed)
            )
            enough = min(blocks, _ENOUGH_WAVES * library.wave_size // GEMV_THREADS)
            if kernel.blocks_at_once(GEMV_THREADS) >= enough:
                by_rows[most] = kernel
        completing = library.kernel(f"rf_gemv_deferred_mixed{end}", products.rf_gemv_deferred_mixed)
        return cls(by_rows, completing)


class KernelsByGroup(Generic[K]):
    """The kernels of each group of formats that a model needs.

    Args:
        formats: Stored types of the matrices.
        load: Returns the kernels for the formats that files mix, or else those for the others.
    """

    def __init__(self, formats: Iterable[str], load: Callable[[bool], K]) -> None:
        quantised = (FORMATS[name] for name in formats if FORMATS[name].is_quantised)
        groups = {format.is_mixed for format in quantised}
        self._kernels = {are_mixed: load(are_mixed) for are_mixed in groups}

    def of(self, *matrices: Matrix) -> K:
        """Returns the kernels for quantised matrices in one launch."""
        return self._kernels[all(matrix.format.is_mixed for matrix in matrices)]
