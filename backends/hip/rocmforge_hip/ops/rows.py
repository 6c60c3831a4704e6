"""Launches of kernels on rows that decoders and encoders have in common."""

from __future__ import annotations

import math
from typing import Final

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.ops.step import DeviceStep
from rocmforge_hip.weights.formats import Matrix, ceil_div, round_up

MAX_NORM_DIM: Final = 16 * 1024
_EMBED_THREADS: Final = 64
_SUM_COLUMNS: Final = 32  # of a block
_SUM_THREADS: Final = 1024
_FEW_ROWS: Final = 64  # are added up by fewer threads
_FEW_SUM_THREADS: Final = 256
_SOFTCAP_THREADS: Final = 256


class RowKernels:
    """Launches them.

    Args:
        library: Where the kernels are.
        formats: Stored types of the tables to embed with.
    """

    def __init__(self, library: KernelLibrary, formats: frozenset[str]) -> None:
        self._embed = {
            name: library.kernel(f"rf_embed_{name}", row_kernels.rf_embed) for name in formats
        }
        self._sum = library.kernel("rf_sum_rows", row_kernels.rf_sum_rows)
        self._softcap = library.kernel("rf_softcap", row_kernels.rf_softcap)

    def embed(self, table: Matrix, tokens: DeviceArray, scale: float, out: DeviceArray) -> None:
        """Takes rows of the table, times scale: int32 tokens, float32 out [rows, in_features]."""
        count, features = out.shape
        assert features == table.in_features
        self._embed[table.format.name].launch(
            (ceil_div(table.row_loads, _EMBED_THREADS), count, 1),
            _EMBED_THREADS,
            table=table.data,
            tokens=tokens,
            out=out,
            vocab_size=table.out_features,
            quant_blocks=table.quant_blocks,
            scale=scale,
        )

    def sum(self, step: DeviceStep, x: DeviceArray, out: DeviceArray) -> None:
        """Adds up the rows of x in each range of the step: float32 out [sums, features]."""
        sums, features = out.shape
        assert (sums, features) == (step.shape.sums, x.shape[1])
        self._sum.launch(
            (ceil_div(features, _SUM_COLUMNS), sums, 1),
            _FEW_SUM_THREADS if step.shape.longest_prefill <= _FEW_ROWS else _SUM_THREADS,
            x=x,
            ranges=step.inputs.hidden_ranges,
            out=out,
            hidden_size=features,
        )

    def softcap(self, x: DeviceArray, cap: float) -> None:
        """Makes x cap * tanh(x / cap), in place."""
        count = math.prod(x.shape)
        self._softcap.launch(
            (ceil_div(count, _SOFTCAP_THREADS), 1, 1),
            _SOFTCAP_THREADS,
            x=x,
            cap=cap,
            count=count,
        )


def norm_threads(features: int) -> int:
    """Returns the threads of a block for a row of a norm, which hold up to 16 elements each.

    Few waves have little to wait for each other.
    """
    assert features <= MAX_NORM_DIM, features
    return max(min(round_up(ceil_div(features, 4), 64), 256), round_up(ceil_div(features, 16), 64))
