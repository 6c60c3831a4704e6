"""Attention of tokens to all of their prompt, whose keys and values the step itself has.

Queries, keys and values are halves, and stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.rope_config import RopeStyle
from rocmforge_hip.device.constants import ATTENTION_ROWS
from rocmforge_hip.device.heads import HeadSize
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import attention as kernels
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.attention.cached import DeviceRopeTable
from rocmforge_hip.ops.operands import f16_of, optional_vector
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.weights.formats import Weight, ceil_div

ROPE_MULTIPLE: Final = 16
"""Rotating elements of a head: eight pairs at a time."""

_ROPE_THREADS: Final = 128
_THREADS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class UnturnedRows:
    """One row of a table of rotations that turns nothing, which all tokens have."""

    table: DeviceRopeTable
    positions: DeviceArray  # int32 [tokens of the largest step], zeros


class FullAttention:
    """Launches it.

    Args:
        config: The model.
        library: Where the kernels are.
        tables: By whether they are for `local_rope`.
        slopes: Of the heads, what a score loses for each token of distance; None for nothing.
        unturned: For values, where they are normed; else None.
    """

    def __init__(
        self,
        config: ModelConfig,
        library: KernelLibrary,
        tables: Mapping[bool, DeviceRopeTable],
        slopes: DeviceArray | None,
        unturned: UnturnedRows | None,
    ) -> None:
        self._config = config
        self._tables = tables
        self._slopes = slopes
        self._unturned = unturned
        self._rope = library.kernel("rf_rope_half", kernels.rf_rope_half)
        layer = config.layers[0]  # the others have the same heads: see `check_sizes`
        head = HeadSize(layer.key_dim, layer.value_dim)
        self._full, self._near = (
            library.kernel(f"rf_attention_{kind}_{head.name}", kernels.rf_attention_full)
            for kind in ("full", "full_near")
        )

    def rope(
        self,
        step: DeviceStep,
        q: Activation,
        k: Activation,
        norms: tuple[Weight | None, Weight | None],
        spec: AttentionSpec,
    ) -> None:
        """Norms heads of queries and keys, if there are norms, and rotates them, in place."""
        table, rope = self._tables[spec.local_rope], self._config.rope_of(local=spec.local_rope)
        assert rope.style is RopeStyle.NEOX
        layer = self._config.layers[spec.layer]
        q_norm, k_norm = (optional_vector(norm, layer.key_dim) for norm in norms)
        heads = layer.num_heads, layer.num_kv_heads
        turned = table, step.rope_rows, rope.rotary_dim
        self._turn((q, q_norm), (k, k_norm), heads, layer.key_dim, turned)

    def norm_values(self, v: Activation, weight: Weight, spec: AttentionSpec) -> None:
        """Norms heads of values in place, as the kernel does that rotates others."""
        assert self._unturned is not None
        layer, unturned = self._config.layers[spec.layer], self._unturned
        size = layer.value_dim
        norm = optional_vector(weight, size)
        positions = unturned.positions.first(v.rows)
        turned = unturned.table, positions, size
        self._turn((v, norm), (v, norm), (layer.num_kv_heads, 0), size, turned)

    def _turn(
        self,
        first: tuple[Activation, DeviceArray | None],
        second: tuple[Activation, DeviceArray | None],
        heads: tuple[int, int],
        head_dim: int,
        turned: tuple[DeviceRopeTable, DeviceArray, int],
    ) -> None:
        """Norms and rotates so many heads of two activations: table, its rows, and elements."""
        (q, q_norm), (k, k_norm), (table, positions, rotary_dim) = first, second, turned
        chunks = sum(heads) * (rotary_dim // ROPE_MULTIPLE)
        self._rope.launch(
            (q.rows, ceil_div(chunks, _ROPE_THREADS), 1),
            _ROPE_THREADS,
            q=f16_of(q),
            k=f16_of(k),
            q_norm=q_norm,
            k_norm=k_norm,
            cosine=table.cos,
            sine=table.sin,
            positions=positions,
            q_stride=q.stride or q.features,
            k_stride=k.stride or k.features,
            heads=heads[0],
            kv_heads=heads[1],
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            eps=self._config.norm_eps,
        )

    def attend(
        self,
        step: DeviceStep,
        q: Activation,
        k: Activation,
        v: Activation,
        spec: AttentionSpec,
        out: Activation,
    ) -> None:
        """Attends as `Ops.attend_all` says."""
        layer, shape = self._config.layers[spec.layer], step.shape
        begins, longest, count = step.inputs.query_start, shape.longest_prefill, shape.sequences
        if spec.tile_windows:
            begins, longest = step.inputs.tile_windows, shape.longest_window
            count = shape.tile_windows
        is_near = spec.window is not None or self._slopes is not None
        reach = 0 if spec.window is None else spec.window - 1
        kernel = self._near if is_near else self._full
        kernel.launch(
            (ceil_div(max(longest, 1), ATTENTION_ROWS), layer.num_heads, count),
            _THREADS,
            q=f16_of(q),
            k=f16_of(k),
            v=f16_of(v),
            query_start=begins,
            out=f16_of(out),
            q_stride=q.stride or q.features,
            k_stride=k.stride or k.features,
            v_stride=v.stride or v.features,
            scale=spec.scale,
            group=layer.num_heads // layer.num_kv_heads,
            reach=reach if is_near else None,
            slopes=self._slopes,
        )
