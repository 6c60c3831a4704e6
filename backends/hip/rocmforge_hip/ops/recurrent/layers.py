"""Layers with states as launches of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rocmforge.models.blocks import DeltaNet, Mamba
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import present
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.recurrent import RecurrentBatch
from rocmforge_hip.ops.activations import Activation, ActivationArrays, Forms
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import empty, f32_of, optional_vector, vector_of
from rocmforge_hip.ops.recurrent.decodes import DecodeKernels, GroupNorm
from rocmforge_hip.ops.recurrent.joint_norm import JointNorm
from rocmforge_hip.ops.recurrent.kernels import DeltaRates, MambaRates, RecurrentKernels
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.step.shape import StateLaunch
from rocmforge_hip.weights.formats import Weight

_NO_FORMS: Final[Forms[DeviceArray]] = Forms()


class RecurrentLayers:
    """Launches them.

    Args:
        config: The model.
        library: Where the kernels are.
        compute_units: Of the device.
        arena: The arrays of the activations.
        products: What multiplies with the results.
        states: By layer, [slots, ...] each.
        add_up: Adds up an array over the devices that share the model; None: there is one.
    """

    def __init__(
        self,
        config: ModelConfig,
        library: KernelLibrary,
        compute_units: int,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        states: tuple[tuple[DeviceArray, ...], ...],
        add_up: Callable[[DeviceArray], None] | None = None,
    ) -> None:
        self._config = config
        self._kernels = RecurrentKernels(library, compute_units)
        self._decodes = DecodeKernels(library)
        self._compute_units = compute_units
        self._arena = arena
        self._products = products
        self._states = states
        self._joint_norm = None
        if arena.mamba is not None and arena.mamba.squares is not None and add_up is not None:
            self._joint_norm = JointNorm(library, add_up)

    def short_convolution(
        self, step: DeviceStep, x: Activation, weight: Weight, layer: int
    ) -> Activation:
        """Does as `Ops.short_convolution` says."""
        state, channels = self._states[layer][0], x.features // 3
        taps, out = _taps(weight, state), self._multiplied(x.rows, channels, channels)
        b, c, inputs = (_columns(x, part * channels, channels) for part in range(3))
        for batch in _batches(step):
            self._kernels.convolve(
                batch, inputs, taps, None, state, out, before=b, after=c, silu=False
            )
        return out

    def delta_net(
        self,
        step: DeviceStep,
        x: Activation,
        gate: Activation,
        rates: tuple[Activation, Activation],
        delta: DeltaNet[Weight],
        layer: int,
    ) -> Activation:
        """Does as `Ops.delta_net` says."""
        rule, arrays = present(self._config.layers[layer].delta), self._arena.delta_rule
        assert arrays is not None, "the model has no Gated DeltaNet"
        inputs, state = self._states[layer]
        eps = self._config.norm_eps
        taps, norm = _taps(delta.filter, inputs), vector_of(delta.norm, rule.value_dim)
        heads = rule.num_value_heads
        decay, offset = (vector_of(vector, heads) for vector in (delta.decay, delta.time_offset))
        of_states = DeltaRates(*rates, decay, offset)
        out = self._multiplied(x.rows, rule.value_features, rule.value_dim)
        batches = list(_batches(step))
        takes = self._decodes.takes_delta(rule, step.shape.sequences, self._compute_units)
        if takes and self._in_one_launch(step, batches):
            for batch in batches:
                self._decodes.delta_net(
                    *(batch, rule, x, taps, of_states, gate, norm, (inputs, state)),
                    *(arrays.arrived, out, eps),
                )
            return out
        convolved = Activation(_NO_FORMS, x.rows, x.features)
        convolved.f32 = arrays.convolved.first(x.rows, x.features)
        results = arrays.results.first(x.rows, rule.value_features)
        for batch in batches:
            self._kernels.convolve(batch, x, taps, None, inputs, convolved, silu=True)
            self._kernels.gated_delta(
                *(batch, rule, convolved, of_states, state, results, eps, arrays.scratch)
            )
        self._kernels.gated_norm(results, gate, norm, heads, out, eps, gate_first=False)
        return out

    def mamba(
        self, step: DeviceStep, x: Activation, mamba: Mamba[Weight], layer: int
    ) -> Activation:
        """Does as `Ops.mamba` says."""
        config, arrays = present(self._config.layers[layer].mamba), self._arena.mamba
        assert arrays is not None, "the model has no Mamba-2"
        inputs, state = self._states[layer]
        inner, mixed, heads = config.inner_features, config.mixed_features, config.num_heads
        gate, dt = _columns(x, 0, inner), _columns(x, inner + mixed, heads)
        results = arrays.results.first(x.rows, inner)
        taps, bias = _taps(mamba.filter, inputs), optional_vector(mamba.filter_bias, mixed)
        own, batches = _columns(x, inner, mixed), list(_batches(step))
        decay, offset, skip = (
            vector_of(vector, heads) for vector in (mamba.decay, mamba.time_offset, mamba.skip)
        )
        rates = MambaRates(dt, decay, offset)
        groups, norm = config.num_groups, vector_of(mamba.norm, inner)
        out = self._multiplied(x.rows, inner, inner // groups)
        takes = self._decodes.takes_mamba(config, step.shape.sequences, self._compute_units)
        if takes and self._in_one_launch(step, batches):
            of_groups = None
            if step.variant.norms_states and arrays.squares is None:
                of_groups = GroupNorm(gate=gate, weight=norm, out=out, eps=config.norm_eps)
            for batch in batches:
                self._decodes.mamba(
                    *(batch, config, own, taps, bias, rates, skip),
                    *((inputs, state), arrays.arrived, results, of_groups),
                )
            if of_groups is not None:
                return out
        else:
            convolved = Activation(_NO_FORMS, x.rows, mixed)
            convolved.f32 = arrays.convolved.first(x.rows, mixed)
            for batch in batches:
                self._kernels.convolve(batch, own, taps, bias, inputs, convolved, silu=True)
                self._kernels.mamba(
                    *(batch, config, convolved, rates, skip, state, results, arrays.scratch)
                )
        if arrays.squares is not None:
            assert self._joint_norm is not None, "other devices have the rest of each row"
            self._joint_norm.gated_norm(
                *(results, gate, norm, arrays.squares.first(x.rows), out),
                *(inner * config.sharing_devices, config.norm_eps),
            )
            return out
        self._kernels.gated_norm(results, gate, norm, groups, out, config.norm_eps, gate_first=True)
        return out

    def _in_one_launch(self, step: DeviceStep, batches: Sequence[RecurrentBatch]) -> bool:
        """Returns whether the variant wants that, of a step with a token of each sequence."""
        return step.variant.fuses_states and all(batch.longest == 1 for batch in batches)

    def _multiplied(self, rows: int, features: int, written: int) -> Activation:
        """Returns the place of what is multiplied next, of which so many are written at once."""
        many = rows > self._products.gemv_rows
        out = empty(self._arena.attended, rows, features, half=many)
        if not many and written % QUANT_BLOCK == 0:
            self._products.forms.give_int8(out)
        return out


def on_device(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns how a state of `LayerConfig.state_shapes` lies: inputs as rows, the oldest first."""
    return shape[::-1] if len(shape) == 2 else shape


def _taps(weight: Weight, state: DeviceArray) -> DeviceArray:
    """Returns the filter of a convolution with such states, [channels, width]."""
    _, others, channels = state.shape
    return vector_of(weight, channels * (others + 1)).first(channels, others + 1)


def _columns(x: Activation, start: int, count: int) -> Activation:
    """Returns columns of an activation, whose rows stay as far apart."""
    part = f32_of(x).columns(start, start + count)
    return Activation(x.arrays, x.rows, count, f32=part, stride=x.stride or x.features)


def _batches(step: DeviceStep) -> Iterator[RecurrentBatch]:
    """Yields the sequences of each launch."""
    inputs, shape = step.inputs, step.shape
    if shape.checked:  # sequences are numbered as the rows of decodes are
        yield RecurrentBatch(
            sequences=inputs.decodes.rows(0, shape.checked),
            query_start=inputs.checked_start,
            context_len=inputs.checked_context,
            reads=inputs.state_reads,
            writes=inputs.state_writes,
            count=shape.checked,
            longest=shape.longest_checked,
        )
        return
    sequences = inputs.in_turn if shape.state_launches else inputs.decodes
    first = 0
    for count, longest in shape.state_launches or (StateLaunch(shape.decodes, 1),):
        yield RecurrentBatch(
            sequences=sequences.rows(first, first + count),
            query_start=inputs.query_start,
            context_len=inputs.context_len,
            reads=inputs.state_reads,
            writes=inputs.state_writes,
            count=count,
            longest=longest,
        )
        first += count
