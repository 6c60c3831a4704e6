"""`EncoderOps` of `rocmforge.backend` by launching kernels, as `decoder.HipOps` for decoders.

All rows go through GEMM with halves, however few they are: so a text has the same vector alone and
in a batch. Query, key and value and the inner activations are halves from one matrix product to the
next; norms read and write float32, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocmforge.models.config import ActivationFunction, ModelConfig, RopeStyle
from rocmforge.models.forward.encoder_ops import EncoderAttentionSpec
from rocmforge_hip.device.constants import ATTENTION_ROWS, QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import encoders
from rocmforge_hip.ops.activations import Activation, EncoderArrays
from rocmforge_hip.ops.decoder import DeviceRopeTable
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear import GATES, LinearKernels, empty, f16_of, f32_of, part_of, vector_of
from rocmforge_hip.ops.rows import RowKernels, norm_threads
from rocmforge_hip.ops.step import DeviceStep
from rocmforge_hip.weights.formats import FLOAT_FORMATS, Weight, ceil_div
from rocmforge_hip.weights.products import Product

ENCODER_HEAD_DIMS: Final = (32, 64, 128)
ROPE_MULTIPLE: Final = 16
"""Rotating elements of a head: eight pairs at a time."""

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
        config: ModelConfig,
        library: KernelLibrary,
        geometry: Geometry,
        arena: EncoderArrays[DeviceArray],
        tables: Mapping[bool, DeviceRopeTable],
        slopes: DeviceArray | None,
        formats: frozenset[str],
    ) -> None:
        self._config = config
        self._arena = arena
        self._tables = tables
        self._slopes = slopes
        self._products = LinearKernels(library, geometry, arena, formats, slices=0)
        self._rows = RowKernels(library, formats)
        self._layer_norm = library.kernel("rf_layer_norm", encoders.rf_layer_norm)
        self._add_layer_norm = library.kernel("rf_add_layer_norm", encoders.rf_add_layer_norm)
        self._layer_norm_half = library.kernel("rf_layer_norm_half", encoders.rf_layer_norm_half)
        self._gelu_half = library.kernel("rf_gelu_half", encoders.rf_gelu_half)
        self._rope_half = library.kernel("rf_rope_half", encoders.rf_rope_half)
        self._full, self._near = (
            library.kernel(
                f"rf_attention_{kind}_d{config.layers[0].key_dim}", encoders.rf_attention_full
            )
            for kind in ("full", "full_near")
        )
        self._embed_add = {
            name: library.kernel(f"rf_embed_add_{name}", encoders.rf_embed_add)
            for name in FLOAT_FORMATS
        }

    def embed(
        self, step: DeviceStep, tokens: Weight, positions: Weight | None, types: Weight | None
    ) -> Activation:
        matrix, rows = part_of(tokens).matrix, step.shape.tokens
        out = self._arena.normed.float32(rows, matrix.in_features)
        self._rows.embed(matrix, step.inputs.token_ids, 1.0, out)
        if positions is not None or types is not None:
            self._add_rows(step, positions, types, out)
        return Activation(self._arena.normed, rows, matrix.in_features, f32=out)

    def _add_rows(
        self, step: DeviceStep, positions: Weight | None, types: Weight | None, x: DeviceArray
    ) -> None:
        """Adds the embedding of positions and of the type to that of tokens."""
        rows, features = x.shape
        table = None if positions is None else part_of(positions).matrix
        name = "f32" if table is None else table.format.name
        items = features * (4 if name == "f32" else 2) // _ITEM_BYTES
        self._embed_add[name].launch(
            (ceil_div(items, _EMBED_THREADS), rows, 1),
            _EMBED_THREADS,
            table=None if table is None else table.data,
            positions=step.inputs.positions,
            type=None if types is None else vector_of(types, features),
            x=x,
            table_rows=0 if table is None else table.out_features,
            quant_blocks=features // QUANT_BLOCK,
        )

    def layer_norm(self, x: Activation, weight: Weight, bias: Weight | None) -> Activation:
        out = self._normed(x)
        self._layer_norm.launch(
            (x.rows, 1, 1),
            norm_threads(x.features),
            x=f32_of(x),
            weight=vector_of(weight, x.features),
            bias=None if bias is None else vector_of(bias, x.features),
            out=out,
            hidden_size=x.features,
            eps=self._config.norm_eps,
        )
        return out

    def add_layer_norm(
        self, residual: Activation, delta: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        out = self._normed(residual)
        self._add_norm(residual, delta, weight, bias, out)
        return out

    def add_two_norms(
        self,
        residual: Activation,
        delta: Activation,
        first: tuple[Weight, Weight | None],
        second: tuple[Weight, Weight | None],
    ) -> Activation:
        """Writes the first norm to the place of delta."""
        out = Activation(delta.arrays, delta.rows, delta.features, f32=f32_of(delta))
        self._add_norm(residual, delta, *first, out)
        return self.add_layer_norm(residual, delta, *second)

    def add_then_norm(
        self, residual: Activation, delta: Activation, weight: Weight
    ) -> tuple[Activation, Activation]:
        """Writes the sum to the place of the residual."""
        out = empty(self._arena.normed, residual.rows, residual.features, half=True)
        self._add_norm(residual, delta, weight, None, out, total=f32_of(residual))
        return residual, out

    def _normed(self, like: Activation) -> Activation:
        """Returns the place of a norm: that of what it is made of, which nothing else reads."""
        out = empty(self._arena.normed, like.rows, like.features, half=False)
        out.f16 = self._arena.normed.float16(like.rows, like.features)
        return out

    def _add_norm(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight,
        bias: Weight | None,
        out: Activation,
        total: DeviceArray | None = None,
    ) -> None:
        """Norms the sum to the forms that out has; total: where the sum itself goes."""
        assert (residual.rows, residual.features) == (delta.rows, delta.features)
        self._add_layer_norm.launch(
            (residual.rows, 1, 1),
            norm_threads(residual.features),
            delta=f32_of(delta),
            residual=f32_of(residual),
            weight=vector_of(weight, residual.features),
            bias=None if bias is None else vector_of(bias, residual.features),
            out_sum=total,
            out=out,
            hidden_size=residual.features,
            eps=self._config.norm_eps,
        )

    def linear(
        self, step: DeviceStep, x: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        part = part_of(weight)
        # GELU reads halves.
        return self._products.multiply(x, part, bias, half=part.product is Product.INTERMEDIATE)

    def qkv(
        self,
        step: DeviceStep,
        x: Activation,
        weights: tuple[Weight, Weight, Weight],
        biases: tuple[Weight | None, Weight | None, Weight | None],
    ) -> tuple[Activation, Activation, Activation]:
        return self._products.qkv(x, weights, biases, half=True)

    def gelu(self, x: Activation) -> Activation:
        """Works in place."""
        count = x.rows * x.features
        self._gelu_half.launch((ceil_div(count, _HALVES), 1, 1), _THREADS, x=f16_of(x), count=count)
        return x

    def gated_linear(
        self,
        step: DeviceStep,
        x: Activation,
        gate: Weight,
        up: Weight,
        activation: ActivationFunction,
    ) -> Activation:
        assert part_of(gate).matrix is part_of(up).matrix, "gate and up are one matrix"
        return self._products.multiply(x, part_of(gate), None, GATES[activation])

    def norm_projection(self, x: Activation, weight: Weight, bias: Weight | None) -> Activation:
        """Works in place."""
        self._layer_norm_half.launch(
            (x.rows, 1, 1),
            norm_threads(x.features),
            x=f16_of(x),
            weight=vector_of(weight, x.features),
            bias=None if bias is None else vector_of(bias, x.features),
            stride=x.stride or x.features,
            hidden_size=x.features,
            eps=self._config.norm_eps,
        )
        return x

    def rope(
        self, step: DeviceStep, q: Activation, k: Activation, spec: EncoderAttentionSpec
    ) -> tuple[Activation, Activation]:
        """Works in place."""
        table, rope = self._tables[spec.local_rope], self._config.rope_of(local=spec.local_rope)
        assert rope.style is RopeStyle.NEOX
        layer = self._config.layers[spec.layer]
        chunks = 2 * layer.num_heads * (rope.rotary_dim // ROPE_MULTIPLE)
        self._rope_half.launch(
            (q.rows, ceil_div(chunks, _ROPE_THREADS), 1),
            _ROPE_THREADS,
            q=f16_of(q),
            k=f16_of(k),
            cosine=table.cos,
            sine=table.sin,
            positions=step.inputs.positions,
            q_stride=q.stride or q.features,
            k_stride=k.stride or k.features,
            heads=layer.num_heads,
            head_dim=layer.key_dim,
            rotary_dim=rope.rotary_dim,
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
        layer, shape = self._config.layers[spec.layer], step.shape
        out = empty(self._arena.attended, q.rows, q.features, half=True)
        longest = max(shape.longest_prefill, 1)
        is_near = spec.reach is not None or self._slopes is not None
        kernel = self._near if is_near else self._full
        kernel.launch(
            (ceil_div(longest, ATTENTION_ROWS), layer.num_heads, shape.sequences),
            _THREADS,
            q=f16_of(q),
            k=f16_of(k),
            v=f16_of(v),
            query_start=step.inputs.query_start,
            out=f16_of(out),
            q_stride=q.stride or q.features,
            k_stride=k.stride or k.features,
            v_stride=v.stride or v.features,
            scale=spec.scale,
            reach=(spec.reach or 0) if is_near else None,
            slopes=self._slopes,
        )
        return out

    def sum_hidden(self, step: DeviceStep, x: Activation) -> Activation:
        out = self._arena.pooled.float32(step.shape.sums, x.features)
        self._rows.sum(step, f32_of(x), out)
        return Activation(self._arena.pooled, step.shape.sums, x.features, f32=out)

    def tanh(self, x: Activation) -> Activation:
        """Works in place."""
        self._rows.softcap(f32_of(x), _UNCAPPED)
        return x
