"""The forms of activations that products read: int8 for few rows, halves for many; squared ReLU."""

from __future__ import annotations

from typing import Final

from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.operands import f32_of
from rocmforge_hip.weights.formats import Matrix, ceil_div

_ELEMENTS: Final = 1024  # of a block
_THREADS: Final = 256


class FormKernels:
    """Rounds activations to int8, in `slices` slices (rf/activations/act.h), and to halves."""

    def __init__(self, library: KernelLibrary, slices: int) -> None:
        self.slices: Final = slices
        self._quantize = library.kernel("rf_quantize_act", row_kernels.rf_quantize_act)
        self._halve = library.kernel("rf_half_act", row_kernels.rf_half_act)
        self._square = library.kernel("rf_squared_relu", row_kernels.rf_squared_relu)

    def int8(self, x: Activation) -> tuple[DeviceArray, DeviceArray]:
        """Returns the int8 form, made now if there is none."""
        if x.q is None or x.q_scale is None:
            q, scale = self.give_int8(x)
            count = x.rows * x.features
            self._quantize.launch(
                (ceil_div(count, _ELEMENTS), 1, 1),
                _THREADS,
                x=f32_of(x),
                q=q,
                scale=scale,
                q_lo_offset=x.q_lo_offset,
                count=count,
            )
            return q, scale
        return x.q, x.q_scale

    def give_int8(self, x: Activation) -> tuple[DeviceArray, DeviceArray]:
        """Gives x arrays for the int8 form, which whoever computes the activation then writes."""
        q, scale = x.arrays.q, x.arrays.q_scale
        assert q is not None, "this activation has no int8 form"
        assert scale is not None
        x.q, x.q_scale = q, scale
        x.q_lo_offset = x.rows * x.features if self.slices > 1 else 0
        return q, scale

    def half(self, x: Activation) -> DeviceArray:
        """Returns the float16 form, made now if there is none."""
        if x.f16 is None:
            x.f16 = x.arrays.float16(x.rows, x.features)
            count = x.rows * x.features
            self._halve.launch(
                (ceil_div(count, _ELEMENTS), 1, 1), _THREADS, x=f32_of(x), out=x.f16, count=count
            )
        return x.f16

    def squared_relu(self, x: Activation) -> None:
        """Replaces float32, rounding it to int8 if x has that form, or halves by max(x, 0)^2."""
        count = x.rows * x.features
        self._square.launch((ceil_div(count, _ELEMENTS), 1, 1), _THREADS, x=x, count=count)

    def multiplied(self, x: Activation, matrix: Matrix) -> dict[str, DeviceArray]:
        """Returns the arguments with the form of x that pairs are multiplied in with a matrix."""
        if not matrix.format.is_quantised:
            return {"x": f32_of(x)}
        q, scale = self.int8(x)
        return {"q": q, "scale": scale}
