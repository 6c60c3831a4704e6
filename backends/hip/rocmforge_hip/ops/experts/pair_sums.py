"""Sums of what experts made of a token's pairs: alone, or added to the residual and normed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import groups as kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.norms import norm_threads, sum_threads
from rocmforge_hip.ops.operands import f32_of, vector_of
from rocmforge_hip.weights.formats import Weight, ceil_div

_MIX_THREADS: Final = 256
_MIX_COLUMNS: Final = 4 * _MIX_THREADS
_MOST_NORMED: Final = 128
"""Tokens, beyond which a launch for the sums alone was measured to be faster: a block that norms a
row, too, holds as many registers as let one of them run on a multiprocessor."""


@dataclass(slots=True, eq=False, kw_only=True)
class UnmadePairs(Activation):
    """A weighted sum of what experts made of pairs, which what adds it to the residual adds up.

    The arrays are those of the layer: they are read before the next one with experts begins.
    """

    products: DeviceArray  # float32 [pairs, features]
    # int32 [pairs], the row of each pair; if not is_sorted, only which there are. kElsewhere: none.
    places: DeviceArray
    weights: DeviceArray  # float32 [rows, num_chosen]
    is_sorted: bool  # by expert, and not in the order of pairs


class PairSums:
    """Launches what adds up pairs.

    Args:
        library: Where the kernels are.
        eps: Of norms.
    """

    def __init__(self, library: KernelLibrary, eps: float) -> None:
        self._eps = eps
        self._mix = library.kernel("rf_mix_experts", kernels.rf_mix_experts)
        self._add_norm = library.kernel("rf_add_pairs_rms_norm", kernels.rf_add_pairs_rms_norm)

    def make(self, pairs: UnmadePairs) -> Activation:
        """Returns the sum, in float32."""
        out = pairs.arrays.float32(pairs.rows, pairs.features)
        self.add_up(pairs, out)
        return Activation(pairs.arrays, pairs.rows, pairs.features, f32=out)

    def add_up(self, pairs: UnmadePairs, out: DeviceArray) -> None:
        """Writes the sum to float32 [rows, features]."""
        self._mix.launch(
            (ceil_div(pairs.features, _MIX_COLUMNS), pairs.rows, 1),
            _MIX_THREADS,
            y=pairs.products,
            places=pairs.places,
            weights=pairs.weights,
            out=out,
            num_chosen=pairs.weights.shape[1],
            hidden_size=pairs.features,
            is_sorted=int(pairs.is_sorted),
        )

    def adds_and_norms(self, rows: int, features: int) -> bool:
        """Returns whether `add_and_norm` takes rows of so many features, and is the fastest."""
        return rows <= _MOST_NORMED and norm_threads(features) <= self._add_norm.max_threads

    def add_and_norm(
        self,
        residual: Activation,
        pairs: UnmadePairs,
        weight: Weight,
        out: Activation,
    ) -> None:
        """Adds the sum to the residual and norms that, as `RmsNorms.add_norm` does."""
        features = pairs.features
        self._add_norm.launch(
            (pairs.rows, 1, 1),
            sum_threads(features, self._add_norm.max_threads),
            y=pairs.products,
            places=pairs.places,
            weights=pairs.weights,
            residual=f32_of(residual),
            weight=vector_of(weight, features),
            out=out,
            num_chosen=pairs.weights.shape[1],
            is_sorted=int(pairs.is_sorted),
            hidden_size=features,
            eps=self._eps,
        )
