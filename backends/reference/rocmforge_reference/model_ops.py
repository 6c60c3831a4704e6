"""`models.forward.ops.Ops` over the plain functions of `ops`: adds model, caches, adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from rocmforge.backend.arrays import Float32Array, Int32Array, Int64Array
from rocmforge.backend.step import NO_SLOT, StepInput
from rocmforge.models.blocks import DeltaNet, Embedding, Experts, FeedForward, Mamba, SharedExpert
from rocmforge.models.config import ActivationFunction, ModelConfig, NormKind, alibi_slopes
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.layer_config import ExpertsConfig
from rocmforge.models.rope import RopeTables
from rocmforge.models.weights import present
from rocmforge_reference import ops, recurrent
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
    values: Float32Array  # [blocks, num_kv_heads, block_size, value_dim]; may be a view of keys


class ReferenceOps:
    """Implements `Ops[Float32Array, Weight, Step]`."""

    def __init__(
        self,
        config: ModelConfig,
        tables: RopeTables | None,
        caches: tuple[KvCache, ...] = (),
        states: tuple[tuple[Float32Array, ...], ...] = (),
        hidden: Float32Array | None = None,
        window_groups: tuple[int, ...] = (),
    ) -> None:
        self._config = config
        self._tables = tables
        self._caches = caches
        self._states = states  # of each layer, [num_slots, ...] each
        self._window_groups = window_groups  # of each layer, 0 of those without a window
        self._rows: list[Float32Array] = []  # of a tower, for inner layers of the model beside it
        self._hidden = hidden  # for the predictor, [blocks, 1, block_size, hidden_size]

    @property
    def cache_arrays(self) -> tuple[Float32Array, ...]:
        """The arrays whose rows are the blocks of the cache, of all layers, each once.

        Blocks of layers with a window that release them lie in arrays of the others.
        """
        hidden = () if self._hidden is None else (self._hidden,)
        groups = self._window_groups or (0,) * len(self._caches)
        return hidden + tuple(
            array
            for layer, cache, group in zip(self._config.layers, self._caches, groups, strict=True)
            if layer.cache_of is None and not group
            for array in ((cache.keys, cache.values) if layer.latent is None else (cache.keys,))
        )

    @property
    def state_arrays(self) -> tuple[Float32Array, ...]:
        """The arrays whose rows are the state slots, of all layers."""
        return tuple(array for layer in self._states for array in layer)

    def embed(
        self,
        step: Step,
        tokens: Weight,
        positions: Weight | None,
        types: Weight | None,
        scale: float,
        norm: Weight | None = None,
    ) -> Float32Array:
        x = ops.embed(tokens.values, step.token_ids, scale)
        if positions is not None:
            x = x + positions.values[step.input.positions]
        if types is not None:
            x = x + types.values[0]
        if norm is not None:
            x = self.norm(x, norm, None)
        for places, rows in step.input.embedded:
            x[places] = rows[:, : x.shape[1]]
        return x

    def embed_between(self, step: Step, table: Weight) -> Float32Array:
        rows, shares = table.values[step.input.place_ids], step.input.place_shares
        x: Float32Array = (rows * shares[..., None]).sum(axis=1)
        return x

    def add_embeddings(self, step: Step, x: Float32Array, part: int) -> Float32Array:
        width = x.shape[1]
        for places, rows in step.input.embedded:
            own = rows[:, part * width : (part + 1) * width]
            if own.shape[1]:
                x[places] += own
        return x

    def norm(
        self,
        x: Float32Array,
        weight: Weight | None,
        bias: Weight | None,
        eps: float | None = None,
    ) -> Float32Array:
        eps = self._config.norm_eps if eps is None else eps
        if weight is None:
            return x
        if self._config.norm is NormKind.RMS and bias is None:
            return ops.rms_norm(x, weight.values, eps)
        return ops.layer_norm(x, weight.values, _values(bias), eps)

    def add_norm(
        self,
        residual: Float32Array,
        delta: Float32Array,
        weight: Weight | None,
        bias: Weight | None,
        scale: Weight | None = None,
    ) -> tuple[Float32Array, Float32Array]:
        total = residual + delta
        if scale is not None:
            total = total * scale.values
        return total, self.norm(total, weight, bias)

    def norm_of_sum(
        self, residual: Float32Array, delta: Float32Array, weight: Weight, bias: Weight | None
    ) -> Float32Array:
        return self.norm(residual + delta, weight, bias)

    def two_norms_of_sum(
        self,
        residual: Float32Array,
        delta: Float32Array,
        first: tuple[Weight, Weight | None],
        second: tuple[Weight, Weight | None],
    ) -> Float32Array:
        return self.norm_of_sum(residual, self.norm_of_sum(residual, delta, *first), *second)

    def linear(
        self, step: Step, x: Float32Array, weight: Weight, bias: Weight | None
    ) -> Float32Array:
        y = ops.linear(x, weight.values, _values(bias))
        for adapter, change in weight.changes.items():
            tokens = np.flatnonzero(step.adapters == adapter)
            if len(tokens):
                y[tokens] += ops.linear(ops.linear(x[tokens], change.a), change.b)
        return y

    def qkv(
        self,
        step: Step,
        x: Float32Array,
        weights: Sequence[Weight],
        biases: Sequence[Weight | None],
    ) -> tuple[Float32Array, ...]:
        return tuple(map(partial(self.linear, step, x), weights, biases))

    def bounded_linear(
        self, step: Step, x: Float32Array, weight: Weight, bounds: Weight
    ) -> Float32Array:
        least, most, *of_product = bounds.values
        within = self.linear(step, np.clip(x, least, most), weight, None)
        found: Float32Array = np.clip(within, *of_product)
        return found

    def bounded_gated_linear(
        self,
        step: Step,
        x: Float32Array,
        weights: tuple[Weight, Weight],
        bounds: tuple[Weight, Weight],
        activation: ActivationFunction,
    ) -> Float32Array:
        gate, up = map(partial(self.bounded_linear, step, x), weights, bounds)
        return ops.gated(gate, up, activation)

    def gated_linear(
        self,
        step: Step,
        x: Float32Array,
        gate: Weight | None,
        up: Weight,
        activation: ActivationFunction,
        biases: tuple[Weight | None, Weight | None] = (None, None),
    ) -> Float32Array:
        ups = self.linear(step, x, up, biases[1])
        if gate is None:
            return ops.activate(ups, activation)
        return ops.gated(self.linear(step, x, gate, biases[0]), ups, activation)

    def add_norm_route(
        self,
        residual: Float32Array,
        delta: Float32Array,
        norms: Sequence[Weight],
        experts: Experts[Weight],
        rule: ExpertsConfig,
    ) -> tuple[Float32Array, list[Float32Array], tuple[Any, Float32Array]]:
        total, x = self.add_norm(residual, delta, norms[0], None)
        found = [x, *(self.norm(total, weight, None) for weight in norms[1:])]
        if experts.router_norm is not None:
            x = self.norm(total, experts.router_norm, None)
        return total, found, self._route(x, experts, rule)

    def _route(
        self, x: Float32Array, experts: Experts[Weight], rule: ExpertsConfig
    ) -> tuple[Any, Float32Array]:
        logits = ops.linear(x, experts.router.values, _values(experts.router_bias))
        chosen, weights = ops.route(logits, _values(experts.selection_bias), rule)
        scale = _values(experts.weight_scale)
        return chosen, weights if scale is None else weights * scale[chosen]

    def experts(
        self,
        x: Float32Array,
        chosen: Any,
        weights: Float32Array,
        experts: Experts[Weight],
        activation: ActivationFunction,
    ) -> Float32Array:
        matrices = _values(experts.gate), experts.up.values, experts.down.values
        biases = _values(experts.gate_bias), _values(experts.up_bias), _values(experts.down_bias)
        return ops.mix_experts(x, chosen, weights, matrices, biases, activation)

    def experts_beside(
        self,
        step: Step,
        inputs: tuple[Float32Array, Float32Array],
        chosen: tuple[Any, Float32Array],
        experts: Experts[Weight],
        network: FeedForward[Weight] | SharedExpert[Weight],
        activation: ActivationFunction,
    ) -> tuple[Float32Array, Float32Array]:
        mixed = self.experts(inputs[0], *chosen, experts, activation)
        inner = self.gated_linear(step, inputs[1], network.gate, network.up, activation)
        return mixed, self.linear(step, inner, network.down, None)

    def add_shared(
        self, mixed: Float32Array, shared: Float32Array, x: Float32Array, router: Weight | None
    ) -> Float32Array:
        if router is None:
            return mixed + shared
        weight: Float32Array = ops.sigmoid(ops.linear(x, router.values[None]))
        return mixed + weight * shared

    def per_layer_inputs(
        self, step: Step, x: Float32Array, embedding: Embedding[Weight]
    ) -> Float32Array:
        size = self._config.per_layer_size
        rows = ops.embed(present(embedding.per_layer).values, step.token_ids, math.sqrt(size))
        own = ops.linear(x, present(embedding.per_layer_projection).values)
        own = _heads(own * np.float32(self._config.hidden_size**-0.5), size)
        own = self.norm(own, present(embedding.per_layer_norm), None).reshape(rows.shape)
        inputs: Float32Array = (rows + own) * np.float32(math.sqrt(0.5))
        return inputs

    def gate_per_layer(
        self, step: Step, x: Float32Array, gate: Weight, inputs: Float32Array, layer: int
    ) -> Float32Array:
        size = self._config.per_layer_size
        own = inputs[:, layer * size : (layer + 1) * size]
        gates = self.linear(step, x, gate, None)
        return ops.activate(gates, ActivationFunction.GELU_TANH) * own

    def gelu(self, x: Float32Array, activation: ActivationFunction) -> Float32Array:
        return ops.activate(x, activation)

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
        if layer.joint_head_norms:
            q, k = self.norm(q, present(q_norm), None), self.norm(k, present(k_norm), None)
            q_norm = k_norm = None
        k, v = _heads(k, layer.key_dim), _heads(v, layer.value_dim)
        cache = self._caches[spec.layer]
        if layer.norms_values:
            v = ops.rms_norm(v, np.ones(layer.value_dim, v.dtype), self._config.norm_eps)
        k = self._norm_and_rotate(step, k, k_norm, spec)
        slots, _ = self._places(step.input, spec.layer)
        ops.store(cache.keys, self.stored_keys(k), slots)
        ops.store(cache.values, self.stored_values(v), slots)
        return self.rotate_queries(step, q, q_norm, spec)

    def stored_keys(self, k: Float32Array) -> Float32Array:
        """Returns keys as the cache holds them, [T, heads, key_dim]; latent vectors, too."""
        return k

    def stored_values(self, v: Float32Array) -> Float32Array:
        """Returns values as the cache holds them, [T, heads, value_dim]."""
        return v

    def _places(self, step: StepInput, layer: int) -> tuple[Int64Array, Int32Array]:
        """Returns the slots of new tokens and the block table of a layer."""
        group = self._window_groups[layer] if self._window_groups else 0
        if not group:
            return step.slot_mapping, step.block_table
        return step.window_slots[group - 1], step.window_tables[group - 1]

    def rotate_queries(
        self, step: Step, q: Float32Array, q_norm: Weight | None, spec: AttentionSpec
    ) -> Float32Array:
        q = _heads(q, self._config.layers[spec.layer].key_dim)
        q = self._norm_and_rotate(step, q, q_norm, spec)
        gains = None if self._tables is None else self._tables.query_gains
        if gains is not None:
            q = q * gains[step.input.positions][:, None, None]
        return q.reshape(len(q), -1)

    def _norm_and_rotate(
        self, step: Step, x: Float32Array, norm: Weight | None, spec: AttentionSpec
    ) -> Float32Array:
        rotates_first = self._config.layers[spec.layer].rotates_first
        if rotates_first:
            x = self._rotate(step, x, spec)
        if norm is not None:
            x = self.norm(x, norm, None)
        return x if rotates_first else self._rotate(step, x, spec)

    def attention(
        self, step: Step, q: Float32Array, spec: AttentionSpec, sinks: Weight | None
    ) -> Float32Array:
        cache = self._caches[spec.layer]
        _, block_table = self._places(step.input, spec.layer)
        return ops.paged_attention(
            _heads(q, self._config.layers[spec.layer].key_dim),
            cache.keys,
            cache.values,
            positions=step.input.positions,
            query_start=step.input.query_start,
            context_len=step.input.context_len,
            block_table=block_table,
            scale=spec.scale,
            softcap=spec.softcap,
            window=spec.window,
            sinks=_values(sinks),
            seen_ends=step.input.seen_ends
            if len(step.input.seen_ends) and spec.sees_ahead
            else None,
        ).reshape(len(q), -1)

    def store_latent(self, step: Step, kv: Float32Array, norm: Weight, spec: AttentionSpec) -> None:
        rank = self._config.layers[spec.layer].latent_rank
        latent, rotating = self.norm(kv[:, :rank], norm, None), kv[:, None, rank:]
        rows = np.concatenate([self._rotate(step, rotating, spec), latent[:, None]], axis=-1)
        ops.store(self._caches[spec.layer].keys, self.stored_keys(rows), step.input.slot_mapping)

    def absorb_and_store(
        self,
        step: Step,
        q: Float32Array,
        kv: Float32Array,
        k_b: Weight,
        norm: Weight,
        spec: AttentionSpec,
    ) -> Float32Array:
        self.store_latent(step, kv, norm, spec)
        layer = self._config.layers[spec.layer]
        heads = np.reshape(q, (len(q), layer.num_heads, -1))
        plain, rotating = np.split(heads, [layer.latent_plain_dim], axis=-1)
        absorbed = ops.head_linear(plain, k_b.values)
        rows = np.concatenate([self._rotate(step, rotating, spec), absorbed], axis=-1)
        return rows.reshape(len(q), -1)

    def expand(self, step: Step, x: Float32Array, v_b: Weight, spec: AttentionSpec) -> Float32Array:
        latent = _heads(x, self._config.layers[spec.layer].latent_rank)
        return ops.head_linear(latent, v_b.values).reshape(len(x), -1)

    def short_convolution(
        self, step: Step, x: Float32Array, weight: Weight, layer: int
    ) -> Float32Array:
        def compute(rows: slice, state: Float32Array) -> tuple[Float32Array, Float32Array]:
            return recurrent.short_convolution(x[rows], weight.values, state)

        return _advance(step, self._states[layer][0], compute)

    def delta_net(
        self,
        step: Step,
        x: Float32Array,
        gate: Float32Array,
        rates: tuple[Float32Array, Float32Array],
        delta: DeltaNet[Weight],
        layer: int,
    ) -> Float32Array:
        config, (inputs, states) = present(self._config.layers[layer].delta), self._states[layer]
        (alpha, beta), eps = rates, self._config.norm_eps

        def convolve(rows: slice, state: Float32Array) -> tuple[Float32Array, Float32Array]:
            return recurrent.convolve(x[rows], delta.filter.values, state)

        mixed = ops.activate(_advance(step, inputs, convolve), ActivationFunction.SILU)
        decay = delta.decay.values, delta.time_offset.values

        def compute(rows: slice, state: Float32Array) -> tuple[Float32Array, Float32Array]:
            gates = alpha[rows], beta[rows]
            return recurrent.gated_delta(mixed[rows], gates, decay, state, config, eps)

        results = _advance(step, states, compute)
        return recurrent.gated_norm(results, gate, delta.norm.values, eps)

    def mamba(self, step: Step, x: Float32Array, mamba: Mamba[Weight], layer: int) -> Float32Array:
        config, (inputs, states) = present(self._config.layers[layer].mamba), self._states[layer]
        ends = np.cumsum([config.inner_features, config.mixed_features])
        gate, mixed, dt = np.split(x, ends, axis=1)

        def convolve(rows: slice, state: Float32Array) -> tuple[Float32Array, Float32Array]:
            return recurrent.convolve(mixed[rows], mamba.filter.values, state)

        convolved = _advance(step, inputs, convolve)
        if mamba.filter_bias is not None:
            convolved = convolved + mamba.filter_bias.values
        convolved = ops.activate(convolved, ActivationFunction.SILU)
        vectors = mamba.decay.values, mamba.time_offset.values, mamba.skip.values

        def compute(rows: slice, state: Float32Array) -> tuple[Float32Array, Float32Array]:
            return recurrent.mamba(convolved[rows], dt[rows], vectors, state, config)

        return recurrent.grouped_norm(
            _advance(step, states, compute),
            gate,
            mamba.norm.values,
            config.num_groups,
            config.norm_eps,
        )

    def sigmoid_gate(self, x: Float32Array, gate: Float32Array) -> Float32Array:
        return x * ops.sigmoid(gate)

    def norm_projection(
        self, x: Float32Array, weight: Weight, bias: Weight | None, eps: float | None = None
    ) -> Float32Array:
        return self.norm(x, weight, bias, eps)

    def norm_first(
        self, step: Step, x: Float32Array, weights: tuple[Weight, Weight], norm: Weight
    ) -> tuple[Float32Array, Float32Array]:
        first, second = self.qkv(step, x, weights, (None, None))
        return self.norm(first, norm, None), second

    def rope(
        self,
        step: Step,
        q: Float32Array,
        k: Float32Array,
        q_norm: Weight | None,
        k_norm: Weight | None,
        spec: AttentionSpec,
    ) -> tuple[Float32Array, Float32Array]:
        head_dim = self._config.layers[spec.layer].key_dim
        q, k = (
            self._norm_and_rotate(step, _heads(x, head_dim), norm, spec).reshape(len(x), -1)
            for x, norm in ((q, q_norm), (k, k_norm))
        )
        return q, k

    def _rotate(self, step: Step, x: Float32Array, spec: AttentionSpec) -> Float32Array:
        """Rotates queries or keys [T, heads, head_dim]."""
        if not spec.rotates:
            return x
        assert self._tables is not None
        table = self._tables.local_table if spec.local_rope else self._tables.table
        assert table is not None
        positions, rope = step.input.positions, self._config.rope_of(local=spec.local_rope)
        by_axes = self._tables.by_axes
        if by_axes is not None and len(step.input.axis_positions) and not spec.local_rope:
            rows = by_axes.rows(step.input.axis_positions)
            return ops.rope(x, rows.cos, rows.sin, rope.style)
        return ops.rope(x, table.cos[positions], table.sin[positions], rope.style)

    def attend_all(
        self, step: Step, q: Float32Array, k: Float32Array, v: Float32Array, spec: AttentionSpec
    ) -> Float32Array:
        layer, slopes = self._config.layers[spec.layer], None
        if self._config.has_alibi:
            slopes = np.array(alibi_slopes(layer.num_heads), np.float32)
        return ops.attend_all(
            _heads(q, layer.key_dim),
            _heads(k, layer.key_dim),
            _heads(v, layer.value_dim),
            step.input.tile_windows if spec.tile_windows else step.input.query_start,
            spec.scale,
            reach=None if spec.window is None else spec.window - 1,
            slopes=slopes,
        ).reshape(len(q), -1)

    def store_hidden(self, step: Step, x: Float32Array) -> None:
        ops.store(present(self._hidden), x[:, None], step.input.slot_mapping)

    def beside_hidden(
        self, step: Step, x: Float32Array, embedding_norm: Weight, hidden_norm: Weight
    ) -> Float32Array:
        found, given = np.zeros_like(x), step.input
        kept = present(self._hidden)
        block_size = kept.shape[2]
        for table, (start, stop) in zip(
            given.block_table, pairwise(given.query_start.tolist()), strict=True
        ):
            rows = np.arange(start, stop)[given.positions[start:stop] > 0]
            before = given.positions[rows] - 1
            found[rows] = kept[table[before // block_size], 0, before % block_size]
        return np.concatenate(
            [self.norm(x, embedding_norm, None), self.norm(found, hidden_norm, None)], axis=1
        )

    def project_residual(self, step: Step, x: Float32Array, weight: Weight) -> Float32Array:
        return self.linear(step, x, weight, None)

    def wants_rows(self, step: Step) -> bool:
        """Returns True: what is left out by others is computed here."""
        return True

    def take_wanted(
        self, step: Step, residual: Float32Array, delta: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        """Returns all rows."""
        return residual, delta

    def take_logit_rows(self, step: Step, x: Float32Array) -> Float32Array:
        return x[step.input.logit_rows]

    def logits(self, x: Float32Array, weight: Weight, softcap: float | None) -> Float32Array:
        return ops.softcap(ops.linear(x, weight.values), softcap)

    def sum_hidden(self, step: Step, x: Float32Array) -> Float32Array:
        ranges = step.input.hidden_ranges.tolist()
        return np.stack([x[first:end].sum(axis=0) for first, end in ranges])

    def tanh(self, x: Float32Array) -> Float32Array:
        return np.tanh(x)

    def patches(self, step: Step) -> Float32Array:
        return step.input.patches

    def keep_rows(self, step: Step, rows: Float32Array, part: int) -> None:
        self._rows = [*self._rows[: part - 1], rows]

    def image_rows(self, step: Step, rows: Float32Array) -> Float32Array:
        return np.concatenate([rows, *self._rows], axis=1)

    def merge_rows(self, x: Float32Array, count: int) -> Float32Array:
        rows = len(x) // count
        return x[: rows * count].reshape(rows, -1)

    def norm_sums(
        self,
        x: Float32Array,
        weight: Weight,
        count: int,
        eps: float,
        standard: tuple[Weight, Weight] | None = None,
    ) -> Float32Array:
        if standard is not None:
            shift, scale = standard
            x = (x + shift.values) * scale.values
        return ops.rms_norm(x / count, weight.values, eps)

    def norm_values(self, v: Float32Array, weight: Weight, spec: AttentionSpec) -> Float32Array:
        heads = _heads(v, self._config.layers[spec.layer].value_dim)
        return self.norm(heads, weight, None).reshape(len(v), -1)


def _advance(
    step: Step,
    states: Float32Array,
    compute: Callable[[slice, Float32Array], tuple[Float32Array, Float32Array]],
) -> Float32Array:
    """Returns the results of all sequences, whose states take in their tokens.

    A sequence is cut behind each token whose states are kept.

    Args:
        step: Says where the states are.
        states: [num_slots, ...].
        compute: Makes results and the next state of a sequence's tokens and its state.
    """
    results = []
    bounds = pairwise(step.input.query_start.tolist())
    for (first, end), slot in zip(bounds, step.input.state_reads.tolist(), strict=True):
        begins = step.input.positions[first] == 0
        state = np.zeros_like(states[slot]) if begins else states[slot]
        kept = np.flatnonzero(step.input.state_writes[first:end] != NO_SLOT) + first
        for start, stop in pairwise([first, *(kept + 1).tolist()]):
            result, state = compute(slice(start, stop), state)
            states[step.input.state_writes[stop - 1]] = state
            results.append(result)
    return np.concatenate(results)


def _values(weight: Weight | None) -> Float32Array | None:
    return None if weight is None else weight.values


def _heads(x: Float32Array, head_dim: int) -> Float32Array:
    return np.reshape(x, (len(x), -1, head_dim))
