"""Launches that do everything between two products, for one token of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rocmforge.models.layer_config import DeltaConfig, MambaConfig
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.recurrent import RecurrentBatch
from rocmforge_hip.kernels import recurrent as kernels
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.operands import f32_of
from rocmforge_hip.ops.recurrent.kernels import (
    STATE_COLUMNS,
    STATE_THREADS,
    DeltaRates,
    MambaRates,
    gated_norm_threads,
    stride_of,
)
from rocmforge_hip.weights.formats import ceil_div

_PARTS: Final = 4  # of a block, at most
_NOT_NORMED: Final = Activation(Forms(), 0, 0)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupNorm:
    """A norm of what heads have made, which the last of each group to finish makes.

    Attributes:
        gate: [T, heads * head_dim].
        weight: float32 [heads * head_dim].
        out: The same shape as the gate, in any forms.
        eps: Of the norm.
    """

    gate: Activation
    weight: DeviceArray
    out: Activation
    eps: float


class DecodeKernels:
    """Launches them; the results have the bits of those of `RecurrentKernels`."""

    def __init__(self, library: KernelLibrary) -> None:
        self._wave = library.wave_size
        self._delta = library.kernel("rf_gated_delta_step", kernels.rf_gated_delta_step)
        self._mamba = library.kernel("rf_mamba_step", kernels.rf_mamba_step)
        # Asked for now: HIP would be asked again for every layer of every step.
        self._deltas_at_once = _at_once(self._delta)
        self._mambas_at_once = _at_once(self._mamba)

    def takes_delta(self, heads: DeltaConfig, sequences: int, compute_units: int) -> bool:
        """Returns whether a block has room for a head, and the device for all blocks at once.

        A block waits for its convolution. If others are to follow, several launches keep more of
        the states on their way, and take less time (docs/benchmarks/hybrids.md).
        """
        blocks = heads.num_value_heads * sequences
        return _fits(self._deltas_at_once, heads.value_dim, blocks, compute_units)

    def takes_mamba(self, heads: MambaConfig, sequences: int, compute_units: int) -> bool:
        """Returns the same of heads of Mamba-2."""
        blocks = heads.num_heads * sequences
        return _fits(self._mambas_at_once, heads.head_dim, blocks, compute_units)

    def delta_net(
        self,
        batch: RecurrentBatch,
        heads: DeltaConfig,
        x: Activation,
        taps: DeviceArray,
        rates: DeltaRates,
        gate: Activation,
        norm: DeviceArray,
        states: tuple[DeviceArray, DeviceArray],
        arrived: DeviceArray,
        out: Activation,
        eps: float,
    ) -> None:
        """Does what `convolve`, `gated_delta` and `gated_norm` do one after the other.

        Args:
            batch: Whose tokens: one of each sequence, or none.
            heads: Their sizes.
            x: [T, queries, keys and values side by side], not convolved.
            taps: float32 [channels, width].
            rates: Of these tokens.
            gate: [T, value_heads * value_dim].
            norm: float32 [value_dim].
            states: Of the convolution and of the heads.
            arrived: uint32 [sequences, key_heads], zeros.
            out: [T, value_heads * value_dim], in any forms.
            eps: Of all norms.
        """
        inputs, state = states
        channels, width = taps.shape
        assert batch.longest == 1
        assert inputs.shape[1:] == (width - 1, channels)
        assert state.shape[1:] == (heads.num_value_heads, heads.key_dim, heads.value_dim)
        assert arrived.shape[0] >= batch.count * heads.num_key_heads
        self._delta.launch(
            (heads.num_value_heads, batch.count, 1),
            _threads(heads.value_dim),
            x=f32_of(x),
            filter=taps,
            **rates.arguments(),
            z=f32_of(gate),
            norm=norm,
            batch=batch,
            inputs=inputs,
            state=state,
            arrived=arrived,
            out=out,
            x_stride=stride_of(x),
            z_stride=stride_of(gate),
            key_heads=heads.num_key_heads,
            value_heads=heads.num_value_heads,
            key_dim=heads.key_dim,
            value_dim=heads.value_dim,
            width=width,
            tiled_heads=int(heads.is_tiled),
            eps=eps,
        )

    def mamba(
        self,
        batch: RecurrentBatch,
        heads: MambaConfig,
        x: Activation,
        taps: DeviceArray,
        taps_bias: DeviceArray | None,
        rates: MambaRates,
        d: DeviceArray,
        states: tuple[DeviceArray, DeviceArray],
        arrived: DeviceArray,
        out: DeviceArray,
        norm: GroupNorm | None,
    ) -> None:
        """Does what `convolve` and `mamba` do one after the other, and maybe `gated_norm`.

        Args:
            batch: Whose tokens: one of each sequence, or none.
            heads: Their sizes.
            x: [T, x of all heads, B and C of all groups side by side], not convolved.
            taps: float32 [channels, width].
            taps_bias: float32 [channels].
            rates: Of these tokens.
            d: float32 [heads].
            states: Of the convolution and of the heads.
            arrived: uint32 [sequences, groups], zeros.
            out: float32 [T, heads * head_dim].
            norm: Of each group, with the gate first; None: there is none.
        """
        inputs, state = states
        channels, width = taps.shape
        assert batch.longest == 1
        assert inputs.shape[1:] == (width - 1, channels)
        assert state.shape[1:] == (heads.num_heads, heads.head_dim, heads.state_size)
        assert arrived.shape[0] >= batch.count * heads.num_groups
        dim = heads.inner_features // heads.num_groups
        self._mamba.launch(
            (heads.num_heads, batch.count, 1),
            _threads(heads.head_dim),
            x=f32_of(x),
            filter=taps,
            filter_bias=taps_bias,
            **rates.arguments(),
            d=d,
            batch=batch,
            inputs=inputs,
            state=state,
            arrived=arrived,
            out=out,
            x_stride=stride_of(x),
            heads=heads.num_heads,
            head_dim=heads.head_dim,
            groups=heads.num_groups,
            state_size=heads.state_size,
            width=width,
            z=None if norm is None else f32_of(norm.gate),
            norm=None if norm is None else norm.weight,
            normed=_NOT_NORMED if norm is None else norm.out,
            z_stride=0 if norm is None else stride_of(norm.gate),
            norm_threads=0 if norm is None else gated_norm_threads(dim, self._wave),
            eps=0.0 if norm is None else norm.eps,
        )


def _threads(dim: int) -> int:
    """Returns the threads of a block for a head of so many elements."""
    return STATE_THREADS * ceil_div(dim, STATE_COLUMNS)


def _at_once(kernel: Kernel[...]) -> tuple[int, ...]:
    """Returns how many blocks a compute unit runs at once, for heads of one part, of two and so on.

    A part has STATE_COLUMNS elements.
    """
    dims = (STATE_COLUMNS * parts for parts in range(1, _PARTS + 1))
    return tuple(kernel.blocks_at_once(_threads(dim)) for dim in dims)


def _fits(at_once: Sequence[int], dim: int, blocks: int, compute_units: int) -> bool:
    parts = ceil_div(dim, STATE_COLUMNS)
    return parts <= _PARTS and blocks <= at_once[parts - 1] * compute_units
