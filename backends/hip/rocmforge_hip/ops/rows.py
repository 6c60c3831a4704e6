"""Launches of kernels on rows that decoders and encoders have in common."""

from __future__ import annotations

from typing import Final

from rocmforge_hip.device.library import Kernel
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.step import DeviceStep
from rocmforge_hip.weights.formats import Matrix, ceil_div, round_up

MAX_NORM_DIM: Final = 16 * 1024
_EMBED_THREADS: Final = 64
_SUM_COLUMNS: Final = 32  # of a block
_SUM_THREADS: Final = 1024
_FEW_ROWS: Final = 64  # are added up by fewer threads
_FEW_SUM_THREADS: Final = 256


def embed_rows(
    kernel: Kernel, table: Matrix, tokens: DeviceArray, scale: float, out: DeviceArray
) -> None:
    """Rows of the table, times scale: int32 tokens, float32 out [rows, columns of the table]."""
    rows, columns = out.shape
    assert columns == table.columns
    loads = int(table.units * table.format.loads_per_unit)
    kernel.launch(
        table.data,
        tokens,
        out,
        table.width,
        table.units,
        scale,
        grid=(ceil_div(loads, _EMBED_THREADS), rows, 1),
        block=_EMBED_THREADS,
    )


def sum_rows(kernel: Kernel, step: DeviceStep, x: DeviceArray, out: DeviceArray) -> None:
    """Sums of the rows of x in each range of the step: float32 out [sums, width]."""
    sums, width = out.shape
    assert (sums, width) == (step.shape.sums, x.shape[1])
    kernel.launch(
        x,
        step.inputs["hidden_ranges"],
        out,
        width,
        grid=(ceil_div(width, _SUM_COLUMNS), sums, 1),
        block=_FEW_SUM_THREADS if step.shape.longest_prefill <= _FEW_ROWS else _SUM_THREADS,
    )


def norm_threads(dim: int) -> int:
    """Threads of a block for a row of a norm, which hold up to 16 elements each.

    Few waves have little to wait for each other.
    """
    assert dim <= MAX_NORM_DIM, dim
    return max(min(round_up(ceil_div(dim, 4), 64), 256), round_up(ceil_div(dim, 16), 64))
