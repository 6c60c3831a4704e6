"""The norm of results that several devices have parts of, as those of a group of Mamba-2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import recurrent as kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.operands import f32_of
from rocmforge_hip.ops.recurrent.kernels import gated_norm_threads, stride_of


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
        grid, threads = (out.rows, 1, 1), gated_norm_threads(dim, self._wave)
        gated: dict[str, Any] = {"x": x, "z": f32_of(z), "z_stride": stride_of(z), "dim": dim}
        self._squares.launch(grid, threads, **gated, squares=squares)
        self._add_up(squares)
        self._norm.launch(
            *(grid, threads),
            **gated,
            weight=weight,
            squares=squares,
            out=out,
            features=features,
            eps=eps,
        )
