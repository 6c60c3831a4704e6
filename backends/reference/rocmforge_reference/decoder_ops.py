"""`models.forward.ops.Ops` over the plain functions of `ops`: adds model, caches, adapters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from rocmforge.backend.protocol import Float32Array, Int32Array, StepInput
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.rope import RopeTables
from rocmforge_reference import ops
from rocmforge_reference.weights import Weight


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step whose token ids are all known."""

    input: StepInput
    token_ids: Int32Array  # [T]
    adapters: Int32Array  # [T], as `StepInput.token_adapters`


@dataclass(frozen=True, slots=True, eq=False)
class KvCache:
    """Keys and values of one layer."""

    keys: Float32Array  # [blocks, num_kv_heads, block_size, key_dim]
    values: Float32Array  # [blocks, num_kv_heads, block_size, value_dim]


class ReferenceOps:
    """Implements `Ops[Float32Array, Weight, Step]`."""

    def __init__(
        self, config: ModelConfig, tables: RopeTables, caches: tuple[KvCache, ...]
    ) -> None:
        self._config = config
        self._tables = tables
        self._caches = caches

    def embed(self, step: Step, table: Weight, scale: float) -> Float32Array:
        x = ops.embed(table.values, step.token_ids, scale)
        if len(step.input.embedding_tokens):
            x[step.input.embedding_tokens] = step.input.embedding_rows
        return x

    def rms_norm(self, x: Float32Array, weight: Weight) -> Float32Array:
        return ops.rms_norm(x, weight.values, self._config.norm_eps)

    def add_rms_norm(
        self, residual: Float32Array, delta: Float32Array, weight: Weight
    ) -> tuple[Float32Array, Float32Array]:
        residual = residual + delta
        return residual, self.rms_norm(residual, weight)

    def linear(
        self, step: Step, x: Float32Array, weight: Weight, bias: Weight | None
    ) -> Float32Array:
        y = ops.linear(x, weight.values, None if bias is None else bias.values)
        for adapter, change in weight.changes.items():
            tokens = np.flatnonzero(step.adapters == adapter)
            if len(tokens):
                y[tokens] += ops.linear(ops.linear(x[tokens], change.a), change.b)
        return y

    def qkv(
        self,
        step: Step,
        x: Float32Array,
        weights: tuple[Weight, Weight, Weight],
        biases: tuple[Weight | None, Weight | None, Weight | None],
    ) -> tuple[Float32Array, Float32Array, Float32Array]:
        q, k, v = map(partial(self.linear, step, x), weights, biases)
        return q, k, v

    def gated_linear(
        self,
        step: Step,
        x: Float32Array,
        gate: Weight,
        up: Weight,
        activation: ActivationFunction,
    ) -> Float32Array:
        gates = ops.activate(self.linear(step, x, gate, None), activation)
        return gates * self.linear(step, x, up, None)

    def rope_and_store(
        self,
        step: Step,
        q: Float32Array,
        k: Float32Array,
        v: Float32Array,
        q_norm: Weight | None,
        k_norm: Weight | None,
        spec: AttentionSpec,
    ) -> Float32Array:
        layer = self._config.layers[spec.layer]
        q, k, v = _heads(q, layer.key_dim), _heads(k, layer.key_dim), _heads(v, layer.value_dim)
        if q_norm is not None:
            q = self.rms_norm(q, q_norm)
        if k_norm is not None:
            k = self.rms_norm(k, k_norm)
        table = self._tables.local_table if spec.local_rope else self._tables.table
        assert table is not None
        style = self._config.rope_of(local=spec.local_rope).style
        positions = step.input.positions
        cos, sin = table.cos[positions], table.sin[positions]
        cache = self._caches[spec.layer]
        ops.store(cache.keys, ops.rope(k, cos, sin, style), step.input.slot_mapping)
        ops.store(cache.values, v, step.input.slot_mapping)
        return ops.rope(q, cos, sin, style).reshape(len(q), -1)

    def attention(self, step: Step, q: Float32Array, spec: AttentionSpec) -> Float32Array:
        cache = self._caches[spec.layer]
        return ops.paged_attention(
            _heads(q, self._config.layers[spec.layer].key_dim),
            cache.keys,
            cache.values,
            positions=step.input.positions,
            query_start=step.input.query_start,
            context_len=step.input.context_len,
            block_table=step.input.block_table,
            scale=spec.scale,
            softcap=spec.softcap,
            window=spec.window,
        ).reshape(len(q), -1)

    def take_logit_rows(self, step: Step, x: Float32Array) -> Float32Array:
        return x[step.input.logit_rows]

    def logits(self, x: Float32Array, weight: Weight, softcap: float | None) -> Float32Array:
        return ops.softcap(ops.linear(x, weight.values), softcap)


def _heads(x: Float32Array, head_dim: int) -> Float32Array:
    return np.reshape(x, (len(x), -1, head_dim))
