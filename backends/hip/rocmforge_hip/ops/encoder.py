"""`EncoderOps` of `rocmforge.backend` by launching kernels, as `decoder.HipOps` for decoders.

All rows go through GEMM with halves, however few they are: so a text has the same vector alone and
in a batch. Query, key and value and the inner activations are halves from one matrix product to the
next; norms read and write float32, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocmforge.backend.encoder_ops import EncoderAttentionSpec
from rocmforge.backend.ops import Activation as GateActivation
from rocmforge.models.config import RopeStyle
from rocmforge.models.encoder_config import EncoderConfig
from rocmforge_hip.device.library import Kernel, KernelLibrary
from rocmforge_hip.device.memory import Arena, DeviceArray
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.decoder import DeviceRopeTable
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear import GATES, LinearKernels, empty, f32_of, part_of, vector_of
from rocmforge_hip.ops.rows import embed_rows, norm_threads, sum_rows
from rocmforge_hip.ops.step import DeviceStep
from rocmforge_hip.weights.formats import UNIT, Weight, ceil_div
from rocmforge_hip.weights.slots import ATTENDED, HIDDEN, NORMED, POOLED, QKV_SLOTS

ENCODER_HEAD_DIMS: Final = (32, 64, 128)
ROPE_MULTIPLE: Final = 16
"""Rotating elements of a head: eight pairs at a time."""

_ATTENTION_ROWS: Final = 128  # tokens of a block
_ROPE_THREADS: Final = 128
_EMBED_THREADS: Final = 64
_ITEM_BYTES: Final = 16  # that a thread of `rf_embed_add` reads
_HALVES: Final = 2048  # of a block of GELU
_THREADS: Final = 256
_UNCAPPED: Final = 1.0  # cap * tanh(x / cap) is tanh(x)


class HipEncoderOps:
    """Implements `EncoderOps[Activation, Weight, DeviceStep]`."""

    def __init__(
        self,
        config: EncoderConfig,
        library: KernelLibrary,
        geometry: Geometry,
        arena: Arena,
        tables: Mapping[bool, DeviceRopeTable],
        slopes: DeviceArray | None,
        formats: frozenset[str],
    ) -> None:
        self._config = config
        self._arena = arena
        self._tables = tables
        self._slopes = slopes
        self._products = LinearKernels(library, geometry, arena, formats, terms=0)
        names = [
            *("rf_layer_norm", "rf_add_layer_norm", "rf_layer_norm_half", "rf_gelu_half"),
            *("rf_rope_half", "rf_sum_rows", "rf_softcap"),
            f"rf_attention_full_d{config.head_dim}",
            f"rf_attention_full_near_d{config.head_dim}",
            *(f"rf_embed_{name}" for name in formats),
            *(f"rf_embed_add_{name}" for name in ("f32", "f16", "bf16")),
        ]
        self._kernels: dict[str, Kernel] = {name: library.kernel(name) for name in names}

    def embed(
        self, step: DeviceStep, tokens: Weight, positions: Weight | None, types: Weight | None
    ) -> Activation:
        matrix, rows = part_of(tokens).matrix, step.shape.tokens
        out = self._arena[f"{NORMED}.f32"].first(rows, matrix.columns)
        kernel = self._kernels[f"rf_embed_{matrix.format.name}"]
        embed_rows(kernel, matrix, step.inputs["token_ids"], 1.0, out)
        if positions is not None or types is not None:
            self._add_rows(step, positions, types, out)
        return Activation(NORMED, rows, matrix.columns, f32=out)

    def _add_rows(
        self, step: DeviceStep, positions: Weight | None, types: Weight | None, x: DeviceArray
    ) -> None:
        """Adds the embedding of positions and of the type to that of tokens."""
        rows, width = x.shape
        table = None if positions is None else part_of(positions).matrix
        name = "f32" if table is None else table.format.name
        items = width * (4 if name == "f32" else 2) // _ITEM_BYTES
        self._kernels[f"rf_embed_add_{name}"].launch(
            None if table is None else table.data,
            step.inputs["positions"],
            None if types is None else vector_of(types, width),
            x,
            0 if table is None else table.width,
            width // UNIT,
            grid=(ceil_div(items, _EMBED_THREADS), rows, 1),
            block=_EMBED_THREADS,
        )

    def layer_norm(self, x: Activation, weight: Weight, bias: Weight | None) -> Activation:
        out = self._normed(x)
        self._norm("rf_layer_norm", (f32_of(x),), weight, bias, (out.f32, out.f16), x)
        return out

    def add_layer_norm(
        self, residual: Activation, delta: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        out = self._normed(residual)
        self._add_norm(residual, delta, weight, bias, (None, out.f32, out.f16))
        return out

    def add_two_norms(
        self,
        residual: Activation,
        delta: Activation,
        first: tuple[Weight, Weight | None],
        second: tuple[Weight, Weight | None],
    ) -> Activation:
        """The first norm takes the place of delta."""
        self._add_norm(residual, delta, *first, (None, f32_of(delta), None))
        return self.add_layer_norm(residual, delta, *second)

    def add_then_norm(
        self, residual: Activation, delta: Activation, weight: Weight
    ) -> tuple[Activation, Activation]:
        """The sum takes the place of the residual."""
        total = f32_of(residual)
        out = empty(self._arena, NORMED, residual.rows, residual.width, half=True)
        self._add_norm(residual, delta, weight, None, (total, None, out.f16))
        return residual, out

    def _normed(self, like: Activation) -> Activation:
        """Where a norm goes: to the place of what it is made of, which nothing else reads."""
        out = empty(self._arena, NORMED, like.rows, like.width, half=False)
        out.f16 = self._arena[f"{NORMED}.f16"].first(like.rows, like.width)
        return out

    def _add_norm(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight,
        bias: Weight | None,
        outputs: tuple[DeviceArray | None, ...],
    ) -> None:
        assert (residual.rows, residual.width) == (delta.rows, delta.width)
        inputs = (f32_of(delta), f32_of(residual))
        self._norm("rf_add_layer_norm", inputs, weight, bias, outputs, residual)

    def _norm(
        self,
        kernel: str,
        inputs: tuple[DeviceArray, ...],
        weight: Weight,
        bias: Weight | None,
        outputs: tuple[DeviceArray | None, ...],
        like: Activation,
    ) -> None:
        self._kernels[kernel].launch(
            *inputs,
            vector_of(weight, like.width),
            None if bias is None else vector_of(bias, like.width),
            *outputs,
            like.width,
            self._config.norm_eps,
            grid=(like.rows, 1, 1),
            block=norm_threads(like.width),
        )

    def linear(
        self, step: DeviceStep, x: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        is_half = part_of(weight).slot in (*QKV_SLOTS, HIDDEN)  # what attention and GELU read
        return self._products.linear(x, weight, bias, half=is_half)

    def gelu(self, x: Activation) -> Activation:
        """In place."""
        assert x.f16 is not None
        count = x.rows * x.width
        self._kernels["rf_gelu_half"].launch(
            x.f16, count, grid=(ceil_div(count, _HALVES), 1, 1), block=_THREADS
        )
        return x

    def gated_linear(
        self,
        step: DeviceStep,
        x: Activation,
        gate: Weight,
        up: Weight,
        activation: GateActivation,
    ) -> Activation:
        assert part_of(gate).matrix is part_of(up).matrix, "gate and up are one matrix"
        return self._products.multiply(x, part_of(gate), None, GATES[activation])

    def norm_projection(self, x: Activation, weight: Weight, bias: Weight | None) -> Activation:
        """In place."""
        self._kernels["rf_layer_norm_half"].launch(
            x.f16,
            vector_of(weight, x.width),
            None if bias is None else vector_of(bias, x.width),
            x.stride or x.width,
            x.width,
            self._config.norm_eps,
            grid=(x.rows, 1, 1),
            block=norm_threads(x.width),
        )
        return x

    def rope(
        self, step: DeviceStep, q: Activation, k: Activation, spec: EncoderAttentionSpec
    ) -> tuple[Activation, Activation]:
        """In place."""
        config, table = self._config, self._tables[spec.local_rope]
        assert config.rope is not None
        assert config.rope.style is RopeStyle.NEOX
        chunks = 2 * config.num_heads * (config.rope.rotary_dim // ROPE_MULTIPLE)
        self._kernels["rf_rope_half"].launch(
            q.f16,
            k.f16,
            table.cos,
            table.sin,
            step.inputs["positions"],
            q.stride or q.width,
            k.stride or k.width,
            config.num_heads,
            config.head_dim,
            config.rope.rotary_dim,
            grid=(q.rows, ceil_div(chunks, _ROPE_THREADS), 1),
            block=_ROPE_THREADS,
        )
        return q, k

    def attend_all(
        self,
        step: DeviceStep,
        q: Activation,
        k: Activation,
        v: Activation,
        spec: EncoderAttentionSpec,
    ) -> Activation:
        config, shape = self._config, step.shape
        out = empty(self._arena, ATTENDED, q.rows, q.width, half=True)
        longest = max(shape.longest_prefill, 1)
        kind = "full"
        distance: tuple[int | DeviceArray | None, ...] = ()
        if spec.reach is not None or self._slopes is not None:
            kind, distance = "full_near", (spec.reach or 0, self._slopes)
        self._kernels[f"rf_attention_{kind}_d{config.head_dim}"].launch(
            *(each.f16 for each in (q, k, v)),
            step.inputs["query_start"],
            out.f32,
            out.f16,
            *(each.stride or each.width for each in (q, k, v)),
            spec.scale,
            *distance,
            grid=(ceil_div(longest, _ATTENTION_ROWS), config.num_heads, shape.sequences),
            block=_THREADS,
        )
        return out

    def sum_hidden(self, step: DeviceStep, x: Activation) -> Activation:
        out = self._arena[f"{POOLED}.f32"].first(step.shape.sums, x.width)
        sum_rows(self._kernels["rf_sum_rows"], step, f32_of(x), out)
        return Activation(POOLED, step.shape.sums, x.width, f32=out)

    def tanh(self, x: Activation) -> Activation:
        """In place."""
        count = x.rows * x.width
        self._kernels["rf_softcap"].launch(
            f32_of(x), _UNCAPPED, count, grid=(ceil_div(count, _THREADS), 1, 1), block=_THREADS
        )
        return x
