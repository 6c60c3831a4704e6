"""`rocmforge.models.forward.encoder_ops.EncoderOps` over the plain functions of `ops`."""

from __future__ import annotations

from functools import partial

import numpy as np

from rocmforge.backend.protocol import Float32Array, StepInput
from rocmforge.models.config import ActivationFunction, ModelConfig, alibi_slopes
from rocmforge.models.forward.encoder_ops import EncoderAttentionSpec
from rocmforge.models.rope import RopeTables
from rocmforge_reference import ops


class ReferenceEncoderOps:
    """Implements `EncoderOps[Float32Array, Float32Array, StepInput]`."""

    def __init__(self, config: ModelConfig, tables: RopeTables | None) -> None:
        self._config = config
        self._tables = tables

    def embed(
        self,
        step: StepInput,
        tokens: Float32Array,
        positions: Float32Array | None,
        types: Float32Array | None,
    ) -> Float32Array:
        x: Float32Array = tokens[step.token_ids]
        if positions is not None:
            x = x + positions[step.positions]
        return x if types is None else x + types[0]

    def layer_norm(
        self, x: Float32Array, weight: Float32Array, bias: Float32Array | None
    ) -> Float32Array:
        return ops.layer_norm(x, weight, bias, self._config.norm_eps)

    def add_layer_norm(
        self,
        residual: Float32Array,
        delta: Float32Array,
        weight: Float32Array,
        bias: Float32Array | None,
    ) -> Float32Array:
        return self.layer_norm(residual + delta, weight, bias)

    def add_two_norms(
        self,
        residual: Float32Array,
        delta: Float32Array,
        first: tuple[Float32Array, Float32Array | None],
        second: tuple[Float32Array, Float32Array | None],
    ) -> Float32Array:
        return self.add_layer_norm(residual, self.add_layer_norm(residual, delta, *first), *second)

    def add_then_norm(
        self, residual: Float32Array, delta: Float32Array, weight: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        total = residual + delta
        return total, self.layer_norm(total, weight, None)

    def linear(
        self, step: StepInput, x: Float32Array, weight: Float32Array, bias: Float32Array | None
    ) -> Float32Array:
        return ops.linear(x, weight, bias)

    def qkv(
        self,
        step: StepInput,
        x: Float32Array,
        weights: tuple[Float32Array, Float32Array, Float32Array],
        biases: tuple[Float32Array | None, Float32Array | None, Float32Array | None],
    ) -> tuple[Float32Array, Float32Array, Float32Array]:
        q, k, v = map(partial(self.linear, step, x), weights, biases)
        return q, k, v

    def gelu(self, x: Float32Array) -> Float32Array:
        return ops.activate(x, ActivationFunction.GELU)

    def gated_linear(
        self,
        step: StepInput,
        x: Float32Array,
        gate: Float32Array,
        up: Float32Array,
        activation: ActivationFunction,
    ) -> Float32Array:
        return ops.gated_linear(x, gate, up, activation)

    def norm_projection(
        self, x: Float32Array, weight: Float32Array, bias: Float32Array | None
    ) -> Float32Array:
        return self.layer_norm(x, weight, bias)

    def rope(
        self, step: StepInput, q: Float32Array, k: Float32Array, spec: EncoderAttentionSpec
    ) -> tuple[Float32Array, Float32Array]:
        tables, head_dim = self._tables, self._config.layers[spec.layer].key_dim
        style = self._config.rope_of(local=spec.local_rope).style
        assert tables is not None
        table = tables.local_table if spec.local_rope else tables.table
        assert table is not None
        cos, sin = table.cos[step.positions], table.sin[step.positions]

        def rotate(x: Float32Array) -> Float32Array:
            return ops.rope(_heads(x, head_dim), cos, sin, style).reshape(len(x), -1)

        return rotate(q), rotate(k)

    def attend_all(
        self,
        step: StepInput,
        q: Float32Array,
        k: Float32Array,
        v: Float32Array,
        spec: EncoderAttentionSpec,
    ) -> Float32Array:
        layer, slopes = self._config.layers[spec.layer], None
        if self._config.has_alibi:
            slopes = np.array(alibi_slopes(layer.num_heads), np.float32)
        attended = ops.attend_all(
            _heads(q, layer.key_dim),
            _heads(k, layer.key_dim),
            _heads(v, layer.value_dim),
            step.query_start,
            spec.scale,
            reach=spec.reach,
            slopes=slopes,
        )
        return attended.reshape(len(q), -1)

    def sum_hidden(self, step: StepInput, x: Float32Array) -> Float32Array:
        return np.stack([x[first:end].sum(axis=0) for first, end in step.hidden_ranges.tolist()])

    def tanh(self, x: Float32Array) -> Float32Array:
        return np.tanh(x)


def _heads(x: Float32Array, head_dim: int) -> Float32Array:
    return np.reshape(x, (len(x), -1, head_dim))
