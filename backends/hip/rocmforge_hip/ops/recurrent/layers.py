"""Layers with states as launches of their kernels."""

from __future__ import annotations

from collections.abc import Iterator

from rocmforge.backend.protocol import MAX_KEPT_STATES
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.linear import LinearKernels, empty, f32_of, vector_of
from rocmforge_hip.ops.recurrent.kernels import RecurrentKernels
from rocmforge_hip.ops.recurrent.sizes import RecurrentBatch
from rocmforge_hip.ops.step import DeviceStep
from rocmforge_hip.weights.formats import Weight


class RecurrentLayers:
    """Launches them.

    Args:
        library: Where the kernels are.
        arena: The arrays of the activations.
        products: What multiplies with the results.
        states: By layer, [slots, ...] each.
    """

    def __init__(
        self,
        library: KernelLibrary,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        states: tuple[tuple[DeviceArray, ...], ...],
    ) -> None:
        self._kernels = RecurrentKernels(library)
        self._arena = arena
        self._products = products
        self._states = states

    def short_convolution(
        self, step: DeviceStep, x: Activation, weight: Weight, layer: int
    ) -> Activation:
        """Does as `Ops.short_convolution` says."""
        state = self._states[layer][0]
        _, others, channels = state.shape
        taps = vector_of(weight, channels * (others + 1)).first(channels, others + 1)
        many = x.rows > self._products.gemv_rows
        out = empty(self._arena.attended, x.rows, channels, half=many)
        if not many and channels % QUANT_BLOCK == 0:
            self._products.give_int8(out)
        b, c, inputs = (_columns(x, part * channels, channels) for part in range(3))
        for batch in _batches(step):
            self._kernels.convolve(
                batch, inputs, taps, None, state, out, before=b, after=c, silu=False
            )
        return out


def on_device(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns how a state of `LayerConfig.state_shapes` lies: inputs as rows, the oldest first."""
    return shape[::-1] if len(shape) == 2 else shape


def _columns(x: Activation, start: int, count: int) -> Activation:
    """Returns columns of an activation, whose rows stay as far apart."""
    part = f32_of(x).columns(start, start + count)
    return Activation(x.arrays, x.rows, count, f32=part, stride=x.stride or x.features)


def _batches(step: DeviceStep) -> Iterator[RecurrentBatch]:
    """Yields the sequences with one new token, those with few, and those that chunks may take."""
    inputs, shape = step.inputs, step.shape
    few = shape.prefills - shape.chunked
    kinds = (
        (inputs.decodes, 0, shape.decodes, 1),
        (inputs.prefills, 0, few, min(shape.longest_prefill, MAX_KEPT_STATES)),
        (inputs.prefills, few, shape.chunked, shape.longest_prefill),
    )
    for sequences, first, count, longest in kinds:
        if count:
            yield RecurrentBatch(
                sequences=sequences.rows(first, first + count),
                query_start=inputs.query_start,
                context_len=inputs.context_len,
                reads=inputs.state_reads,
                writes=inputs.state_writes,
                count=count,
                longest=longest,
            )
