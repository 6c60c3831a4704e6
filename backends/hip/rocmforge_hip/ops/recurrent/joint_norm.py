"""The norm of results that several devices have parts of, as those of a group of Mamba-2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import recurrent as kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.operands import f32_of
from rocmforge_hip.weights.formats import ceil_div, round_up

_ELEMENTS: Final = 4  # of a thread
_STEPS: Final = 4
_MOST_THREADS: Final = 1024


class JointNorm:
    """Launches its kernels.

    Args:
        library: Where they are.
        add_up: Adds up an array over all devices, in place.
    """

    def __init__(self, library: KernelLibrary, add_up: Callable[[DeviceArray], None]) -> None:
        self._wave = library.wave_size
        self._squares = library.kernel("rf_gated_squares", kernels.rf_gated_squares)
        self._norm = library.kernel("rf_joint_norm", kernels.rf_joint_norm)
        self._add_up = add_up

    def gated_norm(
        self,
        x: DeviceArray,
        z: Activation,
        weight: DeviceArray,
        squares: DeviceArray,
        out: Activation,
        features: int,
        eps: float,
    ) -> None:
        """Norms x * silu(z) by the root mean square of what all devices have of a row.

        Args:
            x: float32 [T, dim], this device's part.
            z: The same shape.
            weight: float32 [dim].
            squares: float32 [T], written.
            out: The same shape as x, in any forms.
            features: Of a row, on all devices.
            eps: Of the norm.
        """
        dim = out.features
        threads = round_up(ceil_div(dim, _ELEMENTS), self._wave)
        if threads > _MOST_THREADS // _STEPS:
            threads = round_up(ceil_div(dim, _ELEMENTS * _STEPS), self._wave)
        assert threads <= _MOST_THREADS
        gate, stride = f32_of(z), z.stride or z.features
        grid = out.rows, 1, 1
        self._squares.launch(grid, threads, x=x, z=gate, squares=squares, z_stride=stride, dim=dim)
        self._add_up(squares)
        self._norm.launch(
            grid,
            threads,
            x=x,
            z=gate,
            weight=weight,
            squares=squares,
            out=out,
            z_stride=stride,
            dim=dim,
            features=features,
            eps=eps,
        )
