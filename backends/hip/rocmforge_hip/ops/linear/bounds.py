"""Products within bounds: what they read, and what they give (see `LayerConfig.bounds`)."""

from __future__ import annotations

from typing import Final

from rocmforge.models.layer_config import NUM_BOUNDS
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.ops.activations import Activation, ActivationArrays, Forms
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import empty, f16_of, f32_of, part_of, vector_of
from rocmforge_hip.weights.formats import Weight, ceil_div
from rocmforge_hip.weights.products import Product

_THREADS: Final = 256
_HALVES: Final = 2048  # of a block
_FLOATS: Final = 1024


class BoundedProducts:
    """Multiplies within bounds, of which each matrix has its own.

    Args:
        library: Where the kernels are.
        products: Multiplies.
        arena: The arrays of the activations.
    """

    def __init__(
        self,
        library: KernelLibrary,
        products: LinearKernels,
        arena: ActivationArrays[DeviceArray],
    ) -> None:
        assert arena.bounded is not None, "the model has bounds"
        self._products = products
        self._scratch: Forms[DeviceArray] = arena.bounded
        self._halves = library.kernel("rf_clamp_half", row_kernels.rf_clamp_half)
        self._floats = library.kernel("rf_clamp_float", row_kernels.rf_clamp_float)
        self._gate = library.kernel("rf_gate_clamped_half", row_kernels.rf_gate_clamped_half)

    def linear(self, x: Activation, weight: Weight, bounds: Weight) -> Activation:
        """Returns what `Ops.bounded_linear` does: float32 of what is added next, else halves."""
        out = self._multiply(x, weight, bounds)
        most, count = vector_of(bounds, NUM_BOUNDS).columns(2, NUM_BOUNDS), out.rows * out.features
        if out.f16 is not None:
            self._clamp_halves(out.f16, out.f16, most, count)
        else:
            self._floats.launch(
                (ceil_div(count, _FLOATS), 1, 1), _THREADS, x=f32_of(out), bounds=most, count=count
            )
        return out

    def gated(
        self,
        x: Activation,
        weights: tuple[Weight, Weight],
        bounds: tuple[Weight, Weight],
        activation: int,
    ) -> Activation:
        """Returns what `Ops.bounded_gated_linear` does, in the place of the gate's product."""
        gate, up = map(self._multiply, (x, x), weights, bounds)
        of_gate, of_up = (vector_of(each, NUM_BOUNDS).columns(2, NUM_BOUNDS) for each in bounds)
        count = gate.rows * gate.features
        self._gate.launch(
            (ceil_div(count, _HALVES), 1, 1),
            _THREADS,
            gate=f16_of(gate),
            up=f16_of(up),
            gate_bounds=of_gate,
            up_bounds=of_up,
            count=count,
            activation=activation,
        )
        return gate

    def _multiply(self, x: Activation, weight: Weight, bounds: Weight) -> Activation:
        """Returns the product of x within bounds, without those of the product."""
        part, within = part_of(weight), empty(self._scratch, x.rows, x.features, half=True)
        least = vector_of(bounds, NUM_BOUNDS).first(2)
        halves = self._products.forms.half(x)
        self._clamp_halves(halves, f16_of(within), least, x.rows * x.features)
        return self._products.multiply(within, part, None, half=part.product is not Product.DELTA)

    def _clamp_halves(
        self, x: DeviceArray, out: DeviceArray, bounds: DeviceArray, count: int
    ) -> None:
        self._halves.launch(
            (ceil_div(count, _HALVES), 1, 1), _THREADS, x=x, out=out, bounds=bounds, count=count
        )
