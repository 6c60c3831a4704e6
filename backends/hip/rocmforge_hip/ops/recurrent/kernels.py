"""Launches of kernels with a state for each sequence, and of the norms behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rocmforge.backend.step import MAX_KEPT_STATES
from rocmforge.models.layer_config import DeltaConfig, MambaConfig
from rocmforge_hip.device.constants import (
    NARROW_STATE_COLUMNS,
    STATE_CHUNK,
    STATE_CHUNK_COLUMNS,
    STATE_CHUNK_DIM,
)
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.recurrent import DeltaScratch, MambaScratch, RecurrentBatch
from rocmforge_hip.kernels import recurrent as kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.operands import f32_of
from rocmforge_hip.weights.formats import ceil_div, round_up

_CONV_THREADS: Final = 64
_CONV_TOKENS: Final = 8  # of a block
_ELEMENTS: Final = 4  # of a thread
CHANNEL_MULTIPLE: Final = _ELEMENTS
MAX_WIDTH: Final = 4  # of a filter
MAX_STATE_DIM: Final = 128  # of a state, over which a block sums
STATE_THREADS: Final = 128
STATE_COLUMNS: Final = 32  # of a block: values of the delta rule, elements of a head of Mamba
_CHUNK_WAVES: Final = 4
_LEAST_CHUNKED: Final = MAX_KEPT_STATES + 1  # tokens, below which one after the other is faster
_NORM_STEPS: Final = 4
_MAX_NORM_THREADS: Final = 1024
_NORM_WAVES: Final = 8  # of a block, where each norms a group


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRates:
    """How much of a state the gated delta rule keeps, and how strong its updates are."""

    alpha: Activation  # [T, value_heads]: exp(decay * softplus(alpha + dt_bias)) is kept
    beta: Activation  # [T, value_heads]: sigmoid(beta) is the strength
    decay: DeviceArray  # float32 [value_heads], negative
    dt_bias: DeviceArray  # float32 [value_heads]

    def arguments(self) -> dict[str, Any]:
        """Returns those of kernels."""
        return {
            "alpha": f32_of(self.alpha),
            "beta": f32_of(self.beta),
            "decay": self.decay,
            "dt_bias": self.dt_bias,
            "alpha_stride": stride_of(self.alpha),
            "beta_stride": stride_of(self.beta),
        }


@dataclass(frozen=True, slots=True, eq=False)
class MambaRates:
    """How long the steps of Mamba-2 are, and how fast its states decay."""

    dt: Activation  # [T, heads], of which softplus(dt + dt_bias) is the length of a step
    a: DeviceArray  # float32 [heads], negative
    dt_bias: DeviceArray  # float32 [heads]

    def arguments(self) -> dict[str, Any]:
        """Returns those of kernels."""
        dt = f32_of(self.dt)
        return {"dt": dt, "a": self.a, "dt_bias": self.dt_bias, "dt_stride": stride_of(self.dt)}


class RecurrentKernels:
    """Launches them.

    States are read and written where `RecurrentBatch` says, but chunks keep the last state of a
    sequence alone. Activations that are read are float32, with any stride between their rows, and
    begin at a multiple of 16 bytes. Rows of no sequence stay as they are.

    Args:
        library: Where the kernels are.
        compute_units: Of the device.
    """

    def __init__(self, library: KernelLibrary, compute_units: int) -> None:
        self._compute_units = compute_units
        self._conv = library.kernel("rf_short_conv", kernels.rf_short_conv)
        self._wave = library.wave_size
        self._delta = library.kernel("rf_gated_delta", kernels.rf_gated_delta)
        self._solve = library.kernel("rf_gated_delta_solve", kernels.rf_gated_delta_solve)
        self._delta_chunks = {
            STATE_CHUNK_COLUMNS: library.kernel(
                "rf_gated_delta_chunks", kernels.rf_gated_delta_chunks
            ),
            NARROW_STATE_COLUMNS: library.kernel(
                "rf_gated_delta_chunks_c16", kernels.rf_gated_delta_chunks
            ),
        }
        self._mamba = library.kernel("rf_mamba", kernels.rf_mamba)
        self._scores = library.kernel("rf_mamba_scores", kernels.rf_mamba_scores)
        self._mamba_chunks = {
            STATE_CHUNK_COLUMNS: library.kernel("rf_mamba_chunks", kernels.rf_mamba_chunks),
            NARROW_STATE_COLUMNS: library.kernel("rf_mamba_chunks_c16", kernels.rf_mamba_chunks),
        }
        self._norm = library.kernel("rf_gated_norm", kernels.rf_gated_norm)

    def convolve(
        self,
        batch: RecurrentBatch,
        x: Activation,
        weight: DeviceArray,
        bias: DeviceArray | None,
        state: DeviceArray,
        out: Activation,
        *,
        before: Activation | None = None,
        after: Activation | None = None,
        silu: bool,
    ) -> None:
        """Convolves each channel of `before * x`, then applies SiLU, if asked, and `* after`.

        Args:
            batch: Whose tokens.
            x: [T, channels].
            weight: float32 [channels, width], the tap of the current token last.
            bias: float32 [channels].
            state: float32 [slots, width - 1, channels], the last inputs, oldest first.
            out: [T, channels], in any forms.
            before: As x, with the same stride.
            after: As x, with the same stride.
            silu: Whether there is this activation.
        """
        channels, width = weight.shape
        assert 2 <= width <= MAX_WIDTH
        assert state.shape[1:] == (width - 1, channels)
        assert channels == x.features == out.features
        for gate in (before, after):
            assert gate is None or stride_of(gate) == stride_of(x)
        self._conv.launch(
            (
                ceil_div(channels, _ELEMENTS * _CONV_THREADS),
                ceil_div(batch.longest, _CONV_TOKENS),
                batch.count,
            ),
            _CONV_THREADS,
            x=f32_of(x),
            before=None if before is None else f32_of(before),
            after=None if after is None else f32_of(after),
            weight=weight,
            bias=bias,
            batch=batch,
            state=state,
            out=out,
            stride=stride_of(x),
            channels=channels,
            width=width,
            silu=int(silu),
        )

    def gated_delta(
        self,
        batch: RecurrentBatch,
        heads: DeltaConfig,
        qkv: Activation,
        rates: DeltaRates,
        state: DeviceArray,
        out: DeviceArray,
        eps: float,
        scratch: DeltaScratch[DeviceArray] | None = None,
    ) -> None:
        """Applies the gated delta rule (Yang et al. 2024) to the tokens of each sequence.

        Args:
            batch: Whose tokens.
            heads: Their sizes.
            qkv: [T, queries, keys and values side by side], not normed.
            rates: Of these tokens.
            state: float32 [slots, value_heads, key_dim, value_dim].
            out: float32 [T, value_heads * value_dim].
            eps: Of the norms of queries and keys, within the root.
            scratch: Of `DeltaScratch.plan`, for long sequences to be taken in chunks.
        """
        assert heads.key_dim <= MAX_STATE_DIM
        assert state.shape[1:] == (heads.num_value_heads, heads.key_dim, heads.value_dim)
        of_all: dict[str, Any] = {
            "qkv": f32_of(qkv),
            "batch": batch,
            "qkv_stride": stride_of(qkv),
            "key_heads": heads.num_key_heads,
            "value_heads": heads.num_value_heads,
            "tiled_heads": int(heads.is_tiled),
        }
        if scratch is not None and batch.longest >= _LEAST_CHUNKED:
            assert heads.key_dim == heads.value_dim == STATE_CHUNK_DIM
            assert scratch.scores.shape[0] >= qkv.rows // STATE_CHUNK + batch.count
            self._solve.launch(
                (heads.num_value_heads, ceil_div(batch.longest, STATE_CHUNK), batch.count),
                _CHUNK_WAVES * self._wave,
                **of_all,
                **rates.arguments(),
                chunks=scratch,
                eps=eps,
            )
            columns = self._columns(heads.value_dim, heads.num_value_heads * batch.count)
            self._delta_chunks[columns].launch(
                (heads.value_dim // columns, heads.num_value_heads, batch.count),
                _CHUNK_WAVES * self._wave,
                **of_all,
                chunks=scratch,
                state=state,
                out=out,
            )
            return
        self._delta.launch(
            (ceil_div(heads.value_dim, STATE_COLUMNS), heads.num_value_heads, batch.count),
            STATE_THREADS,
            **of_all,
            **rates.arguments(),
            state=state,
            out=out,
            key_dim=heads.key_dim,
            value_dim=heads.value_dim,
            eps=eps,
        )

    def mamba(
        self,
        batch: RecurrentBatch,
        heads: MambaConfig,
        x_bc: Activation,
        rates: MambaRates,
        d: DeviceArray,
        state: DeviceArray,
        out: DeviceArray,
        scratch: MambaScratch[DeviceArray] | None = None,
    ) -> None:
        """Applies Mamba-2's recurrence (Dao and Gu 2024) to the tokens of each sequence.

        Args:
            batch: Whose tokens.
            heads: Their sizes.
            x_bc: [T, x of all heads, B and C of all groups side by side].
            rates: Of these tokens.
            d: float32 [heads].
            state: float32 [slots, heads, head_dim, state_size].
            out: float32 [T, heads * head_dim].
            scratch: Of `MambaScratch.plan`, for long sequences to be taken in chunks.
        """
        assert heads.state_size <= MAX_STATE_DIM
        assert state.shape[1:] == (heads.num_heads, heads.head_dim, heads.state_size)
        of_all: dict[str, Any] = {
            "x_bc": f32_of(x_bc),
            "batch": batch,
            "x_stride": stride_of(x_bc),
            "heads": heads.num_heads,
            "head_dim": heads.head_dim,
            "groups": heads.num_groups,
        }
        if scratch is not None and batch.longest >= _LEAST_CHUNKED:
            assert heads.state_size == STATE_CHUNK_DIM
            assert heads.head_dim % STATE_CHUNK_COLUMNS == 0
            assert scratch.scores.shape[0] >= x_bc.rows // STATE_CHUNK + batch.count
            self._scores.launch(
                (heads.num_heads, ceil_div(batch.longest, STATE_CHUNK), batch.count),
                _CHUNK_WAVES * self._wave,
                **of_all,
                **rates.arguments(),
                chunks=scratch,
            )
            rows = self._columns(heads.head_dim, heads.num_heads * batch.count)
            self._mamba_chunks[rows].launch(
                (heads.head_dim // rows, heads.num_heads, batch.count),
                _CHUNK_WAVES * self._wave,
                **of_all,
                d=d,
                chunks=scratch,
                state=state,
                out=out,
            )
            return
        self._mamba.launch(
            (ceil_div(heads.head_dim, STATE_COLUMNS), heads.num_heads, batch.count),
            STATE_THREADS,
            **of_all,
            **rates.arguments(),
            d=d,
            state=state,
            out=out,
            state_size=heads.state_size,
        )

    def _columns(self, columns: int, states: int) -> int:
        """Returns the columns of a state in a block, of so many of `states` states.

        Half as many make the same product read its other operand twice: that is for devices which
        the larger blocks do not fill.
        """
        blocks = columns // STATE_CHUNK_COLUMNS * states
        return NARROW_STATE_COLUMNS if blocks <= self._compute_units else STATE_CHUNK_COLUMNS

    def gated_norm(
        self,
        x: DeviceArray,
        z: Activation,
        weight: DeviceArray,
        groups: int,
        out: Activation,
        eps: float,
        *,
        gate_first: bool,
    ) -> None:
        """Norms each of the groups of a row by its root mean square, with the gate silu(z).

        Args:
            x: float32 [T, groups * dim].
            z: The same shape.
            weight: float32 [dim], of all groups, or [groups * dim].
            groups: Of a row.
            out: The same shape, in any forms.
            eps: Of the norm.
            gate_first: Whether x times the gate is normed, as in Mamba-2, or the norm is multiplied
                with it, as in Gated DeltaNet.
        """
        dim = out.features // groups
        assert weight.shape[0] in (dim, groups * dim)
        # A wave has a small group to itself; blocks of one wave would leave most places empty.
        of_block = min(_NORM_WAVES, groups) if dim <= _ELEMENTS * self._wave else 1
        self._norm.launch(
            (out.rows, ceil_div(groups, of_block), 1),
            of_block * gated_norm_threads(dim, self._wave),
            x=x,
            z=f32_of(z),
            weight=weight,
            out=out,
            z_stride=stride_of(z),
            groups=groups,
            dim=dim,
            weight_stride=dim if weight.shape[0] > dim else 0,
            gate_first=int(gate_first),
            eps=eps,
        )


def gated_norm_threads(dim: int, wave: int) -> int:
    """Returns the threads of a block that norms a group of so many elements, in such waves."""
    threads = round_up(ceil_div(dim, _ELEMENTS), wave)
    if threads > _MAX_NORM_THREADS // _NORM_STEPS:
        threads = round_up(ceil_div(dim, _ELEMENTS * _NORM_STEPS), wave)
    assert threads <= _MAX_NORM_THREADS
    return threads


def stride_of(x: Activation) -> int:
    """Returns the elements between rows."""
    return x.stride or x.features
