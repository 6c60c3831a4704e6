"""`rocmforge.models.forward.ops.Ops` by launching kernels: which ones, on which arrays.

An operation writes to the arrays that the arena has for its result (see `activations`); nothing is
allocated and nothing waits. In a causal model, few rows go through GEMV with int8 activations, more
of them through GEMM with halves. In any other, all rows go through GEMM, however few they are: so a
text has the same vector alone and in a batch. There, query, key and value and the inner activations
are halves from one matrix product to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from rocmforge.models.blocks import DeltaNet, Embedding, Experts, FeedForward, Mamba, SharedExpert
from rocmforge.models.config import ActivationFunction
from rocmforge.models.families import FAMILIES
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.layer_config import ExpertsConfig, LayerConfig
from rocmforge_hip.device.constants import BLOCK_TOKENS, QUANT_BLOCK
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.attention.cached import CachedAttention, LayerCache
from rocmforge_hip.ops.attention.full import FullAttention
from rocmforge_hip.ops.expert_layers import ExpertKernels, ExpertLayers
from rocmforge_hip.ops.experts.latent import LatentKernels
from rocmforge_hip.ops.linear.bounds import BoundedProducts
from rocmforge_hip.ops.linear.later import is_norm_later
from rocmforge_hip.ops.linear.products import GATES, LinearKernels
from rocmforge_hip.ops.lora import Lora
from rocmforge_hip.ops.norms import RmsNorms, norms_of
from rocmforge_hip.ops.operands import empty, f16_of, f32_of, part_of
from rocmforge_hip.ops.recurrent.layers import RecurrentLayers
from rocmforge_hip.ops.resources import Resources
from rocmforge_hip.ops.rows import HiddenRows, PerLayerRows, RowKernels
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.step.shape import PredictorUse
from rocmforge_hip.ops.sums import Sums
from rocmforge_hip.ops.tower import TowerRows
from rocmforge_hip.weights.formats import MatrixPart, Weight
from rocmforge_hip.weights.products import QKV_PRODUCTS, Product

_UNCAPPED: Final = 1.0  # cap * tanh(x / cap) is tanh(x)


def _layer_of_ends(layers: Sequence[LayerConfig]) -> int | None:
    """Returns the last layer, if it has attention whose other rows an earlier layer has written."""
    features = [layer.attended_features if layer.num_heads else 0 for layer in layers]
    return len(features) - 1 if 0 < features[-1] <= max(features[:-1], default=0) else None


class HipOps:
    """Implements `Ops[Activation, Weight, DeviceStep]`."""

    def __init__(self, resources: Resources) -> None:
        config, library, arena = resources.config, resources.library, resources.arena
        geometry, formats, tables = resources.geometry, resources.formats, resources.tables
        self._causal = config.causal
        self._resources = resources
        self._arena = arena
        # All kernels are loaded now: a module must not be loaded while a graph is captured.
        self.products = LinearKernels(library, geometry, arena, formats, resources.slices)
        has_gates = "attention.gate" in FAMILIES[config.architecture].has
        self._rows = RowKernels(library, formats, adds=not config.causal, gates=has_gates)
        self._norms = norms_of(config, library)
        self._tower = None
        if config.tower is not None and arena.patches is not None:
            self._tower = TowerRows(config, config.tower, library, self._rows, arena, arena.patches)
        self._lora = Lora(library, arena, self.products, resources.adapters)
        experts = None
        if arena.experts is not None:
            experts = ExpertKernels(resources, self.products)
        self._sums = Sums(
            *(arena, self.products, self._norms, config.norm_eps),
            *((experts.route, experts.deferred) if experts else (None, None)),
            *((experts.beside, experts.pair_sums) if experts else (None, None)),
        )
        self._experts = None
        if experts is not None:
            self._experts = ExpertLayers(arena, self._norms, self._sums, experts)
        self._bounded = None
        if arena.bounded is not None:
            self._bounded = BoundedProducts(library, self.products, arena)
        self._per_layer = None
        if arena.other_embedding is not None:
            self._per_layer = PerLayerRows(library, config, self._rows, arena.other_embedding)
        self._hidden = None
        if resources.hidden is not None:
            self._hidden = HiddenRows(library, config.norm_eps, resources.hidden)
        self._recurrent = None
        if config.has_states:
            self._recurrent = RecurrentLayers(
                *(config, library, geometry.compute_units, arena, self.products, resources.states),
                resources.add_up,
            )
        self._cached = self._full = self._latent = None
        if arena.latent is not None:
            heads = config, library, geometry, arena, self.products, resources.caches, tables
            self._latent = LatentKernels(*heads, resources.expert_formats)
        if config.causal:
            self._cached = CachedAttention(
                config,
                library,
                geometry,
                arena,
                self.products,
                resources.caches,
                tables,
                resources.query_gains,
                resources.window_groups,
            )
            self._layer_of_ends = _layer_of_ends(config.layers)
        elif config.layers:  # some towers have none
            self._full = FullAttention(
                config, library, tables, resources.slopes, resources.unturned
            )

    @property
    def caches(self) -> tuple[LayerCache[DeviceArray], ...]:
        """Keys and values, by layer."""
        return () if self._cached is None else self._cached.caches

    @property
    def most_of_team(self) -> int:
        """Decodes that may read the front of their contexts together; 0 = they never do."""
        return 0 if self._cached is None else self._cached.most_of_team

    @property
    def cache_arrays(self) -> list[DeviceArray]:
        """All that is kept of the tokens of a block, [blocks, ...] each.

        Layers may share a cache, and those with a window lie in that of others.
        """
        arrays = [
            array
            for cache in dict.fromkeys(self.caches)
            for array in (cache.keys, cache.values, cache.key_scale, cache.value_scale)
            if array is not None
        ]
        found: list[DeviceArray] = []
        for array in sorted(arrays, key=lambda array: -array.nbytes):
            if not any(array.is_within(other) for other in found):
                found.append(array)
        hidden = self._resources.hidden
        if hidden is not None:
            slots, features = hidden.shape
            found.append(hidden.first(slots // BLOCK_TOKENS, BLOCK_TOKENS, features))
        return found

    @property
    def state_arrays(self) -> list[DeviceArray]:
        """All states of a sequence, [state slots, ...] each."""
        return [array for layer in self._resources.states for array in layer]

    def embed(
        self,
        step: DeviceStep,
        tokens: Weight,
        positions: Weight | None,
        types: Weight | None,
        scale: float,
        norm: Weight | None = None,
    ) -> Activation:
        arena, rows, table = self._arena, step.shape.tokens, part_of(tokens).matrix
        ids = self._token_ids(step)
        result = arena.residual or arena.normed
        out = result.float32(rows, table.in_features)
        self._rows.embed(table, ids, scale, out)
        if positions is not None or types is not None:
            self._rows.add(step, positions, types, out)
        found = Activation(result, rows, table.in_features, f32=out)
        if norm is not None:  # in place, as that of projections is
            self._norms.norm_projection(found, norm, None)
        if step.embeddings is not None:
            step.embeddings.copy_to(out)
        return found

    def norm(
        self,
        x: Activation,
        weight: Weight | None,
        bias: Weight | None,
        eps: float | None = None,
    ) -> Activation:
        return self._sums.norm(x, weight, bias, eps)

    def add_norm(
        self,
        residual: Activation,
        delta: Activation,
        weight: Weight | None,
        bias: Weight | None,
        scale: Weight | None = None,
    ) -> tuple[Activation, Activation]:
        """Writes the sum to the place of the residual."""
        return self._sums.add_norm(residual, delta, weight, bias, scale)

    def norm_of_sum(
        self, residual: Activation, delta: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        return self._sums.norm_of_sum(residual, delta, weight, bias)

    def two_norms_of_sum(
        self,
        residual: Activation,
        delta: Activation,
        first: tuple[Weight, Weight | None],
        second: tuple[Weight, Weight | None],
    ) -> Activation:
        """Writes the first norm to the place of delta."""
        return self._sums.two_norms_of_sum(residual, delta, first, second)

    def linear(
        self, step: DeviceStep, x: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        part = part_of(weight)
        if is_norm_later(x) and part.product in QKV_PRODUCTS:
            return self.qkv(step, x, (weight,), (bias,))[0]
        self._sums.completed(x)
        later = self._later(step, x, part, bias) if part.product is Product.DELTA else None
        if later is not None:
            return later
        # What follows in a feed-forward network without a gate is GELU, which reads halves; and
        # behind the matrix that merges patches of a tower, another one.
        half = part.product is Product.INTERMEDIATE
        half = half or (part.product is Product.QKV and not self._causal)
        out = self.products.multiply(x, part, bias, half=half)
        if step.shape.lora_tiles:
            self._lora.add(step, x, part.matrix, out)
        return out

    def _later(
        self, step: DeviceStep, x: Activation, part: MatrixPart, bias: Weight | None
    ) -> Activation | None:
        """Returns what is added to the residual next, if the launch that makes it can do that.

        All norms of that launch have the same eps.
        """
        norms, post_norm_eps = self._norms, self._resources.config.post_norm_eps
        if not isinstance(norms, RmsNorms) or post_norm_eps is not None:
            return None
        if self._lora.changes(step, part.matrix):
            return None
        if x.rows > self.products.gemv_rows:
            leaves = norms.adds_splits(part.matrix.out_features)
            return self.products.multiply(x, part, bias, leaves_splits=leaves)
        if not (step.defers or step.variant.norms_products):
            return None
        return self.products.later(x, part, bias, defers=step.defers)

    def qkv(
        self,
        step: DeviceStep,
        x: Activation,
        weights: Sequence[Weight],
        biases: Sequence[Weight | None],
    ) -> tuple[Activation, ...]:
        if not self.products.completes(x, weights):
            self._sums.completed(x)
        add = partial(self._lora.add, step, x)
        return self.products.qkv(x, weights, biases, half=not self._causal, then=add)

    def bounded_linear(
        self, step: DeviceStep, x: Activation, weight: Weight, bounds: Weight
    ) -> Activation:
        assert self._bounded is not None
        return self._bounded.linear(x, weight, bounds)

    def bounded_gated_linear(
        self,
        step: DeviceStep,
        x: Activation,
        weights: tuple[Weight, Weight],
        bounds: tuple[Weight, Weight],
        activation: ActivationFunction,
    ) -> Activation:
        assert self._bounded is not None
        return self._bounded.gated(x, weights, bounds, GATES[activation])

    def gated_linear(
        self,
        step: DeviceStep,
        x: Activation,
        gate: Weight | None,
        up: Weight,
        activation: ActivationFunction,
        biases: tuple[Weight | None, Weight | None] = (None, None),
    ) -> Activation:
        if gate is None:
            return self._squared_linear(step, x, part_of(up))
        assert part_of(gate).matrix is part_of(up).matrix, "gate and up are one matrix"
        if self._lora.changes(step, part_of(gate).matrix):
            return self._lora.gated(step, x, part_of(gate), GATES[activation])
        if step.variant.rounds_products:
            rounded = self.products.gated_int8(x, part_of(gate), GATES[activation])
            if rounded is not None:
                return rounded
        if not self.products.completes_gated(x, part_of(gate)):
            self._sums.completed(x)
        bias, up_bias = biases
        return self.products.multiply(x, part_of(gate), bias, GATES[activation], up_bias=up_bias)

    def _squared_linear(self, step: DeviceStep, x: Activation, up: MatrixPart) -> Activation:
        """Returns the squared ReLU of a product, in the forms that the next one reads."""
        assert not self._lora.changes(step, up.matrix), "such adapters are refused"
        self._sums.completed(x)
        out = self.products.multiply(x, up, None, half=True)
        if out.f32 is not None and out.features % QUANT_BLOCK == 0:
            self.products.forms.give_int8(out)
        self.products.forms.squared_relu(out)
        return out

    def add_norm_route(
        self,
        residual: Activation,
        delta: Activation,
        norms: Sequence[Weight],
        experts: Experts[Weight],
        rule: ExpertsConfig,
    ) -> tuple[Activation, list[Activation], tuple[Activation, Activation]]:
        """Writes the sum to another place than the residual's, if there are few tokens."""
        assert self._experts is not None
        return self._experts.add_norm_route(residual, delta, norms, experts, rule)

    def experts(
        self,
        x: Activation,
        chosen: Activation,
        weights: Activation,
        experts: Experts[Weight],
        activation: ActivationFunction,
    ) -> Activation:
        assert self._experts is not None
        return self._experts.mix(x, chosen, weights, experts, activation)

    def experts_beside(
        self,
        step: DeviceStep,
        inputs: tuple[Activation, Activation],
        chosen: tuple[Activation, Activation],
        experts: Experts[Weight],
        network: FeedForward[Weight] | SharedExpert[Weight],
        activation: ActivationFunction,
    ) -> tuple[Activation, Activation]:
        assert self._experts is not None
        if step.defers and self._experts.multiplies_beside(inputs[1], chosen[0], experts, network):
            return self._experts.mix_beside(inputs, chosen, experts, network, activation)
        mixed = self.experts(inputs[0], *chosen, experts, activation)
        y = self.gated_linear(step, inputs[1], network.gate, network.up, activation)
        return mixed, self.linear(step, y, network.down, None)

    def add_shared(
        self, mixed: Activation, shared: Activation, x: Activation, router: Weight | None
    ) -> Activation:
        """Writes the sum to the place of the shared expert's result, if it is made at all."""
        assert self._experts is not None
        return self._experts.add_shared(mixed, shared, router)

    def per_layer_inputs(
        self, step: DeviceStep, x: Activation, embedding: Embedding[Weight]
    ) -> Activation:
        assert self._per_layer is not None
        x = replace(x, arrays=self._arena.normed)  # nobody needs its forms yet
        projected = self.products.multiply(x, part_of(embedding.per_layer_projection), None)
        table, norm = part_of(embedding.per_layer).matrix, embedding.per_layer_norm
        assert norm is not None
        self._per_layer.prepare(table, self._token_ids(step), projected, norm)
        return projected

    def gate_per_layer(
        self, step: DeviceStep, x: Activation, gate: Weight, inputs: Activation, layer: int
    ) -> Activation:
        assert self._per_layer is not None
        part, own = part_of(gate), self._per_layer.own(inputs, layer)
        out = self._sums.to_multiply(self._per_layer.gated, x.rows, part.out_features)
        if step.variant.rounds_products and self.products.gates_per_layer(x, part):
            self.products.gate_per_layer(x, part, own, out)
        else:
            self._per_layer.gate(self.linear(step, x, gate, None), own, out)
        return out

    def _token_ids(self, step: DeviceStep) -> DeviceArray:
        return step.inputs.token_ids if self._arena.tokens is None else self._arena.tokens

    def gelu(self, x: Activation, activation: ActivationFunction) -> Activation:
        """Works in place."""
        self._rows.gelu(f16_of(x), x.rows * x.features, activation)
        return x

    def embed_between(self, step: DeviceStep, table: Weight) -> Activation:
        assert self._tower is not None
        return self._tower.embed_between(step, table)

    def add_embeddings(self, step: DeviceStep, x: Activation, part: int) -> Activation:
        """Works in place."""
        staged = step.embeddings
        if staged is None or part >= staged.parts:
            return x
        assert self._arena.deepstack is not None
        x = self._sums.made(x)
        arrays, features = self._arena.deepstack, x.features
        rows = arrays.float32(len(staged.tokens), features)
        staged.copy_part(part, rows)
        for first, end, token in staged.runs():
            own, to = rows.rows(first, end), f32_of(x).rows(token, token + end - first)
            delta = Activation(arrays, end - first, features, f32=own)
            self._rows.add_rows(delta, Activation(x.arrays, end - first, features, f32=to))
        return x

    def keep_rows(self, step: DeviceStep, rows: Activation, part: int) -> None:
        assert self._tower is not None
        self._tower.keep_rows(rows, part)

    def image_rows(self, step: DeviceStep, rows: Activation) -> Activation:
        assert self._tower is not None
        return self._tower.image_rows(rows)

    def patches(self, step: DeviceStep) -> Activation:
        assert self._tower is not None
        return self._tower.patches(step)

    def merge_rows(self, x: Activation, count: int) -> Activation:
        assert self._tower is not None
        return self._tower.merge_rows(x, count)

    def norm_sums(
        self,
        x: Activation,
        weight: Weight,
        count: int,
        eps: float,
        standard: tuple[Weight, Weight] | None = None,
    ) -> Activation:
        assert self._tower is not None
        return self._tower.norm_sums(x, weight, count, eps, standard)

    def norm_values(self, v: Activation, weight: Weight, spec: AttentionSpec) -> Activation:
        """Works in place."""
        assert self._full is not None
        self._full.norm_values(v, weight, spec)
        return v

    def rope_and_store(
        self,
        step: DeviceStep,
        q: Activation,
        k: Activation,
        v: Activation,
        q_norm: Weight | None,
        k_norm: Weight | None,
        spec: AttentionSpec,
    ) -> Activation:
        assert self._cached is not None
        has_joint_norms = self._resources.config.layers[spec.layer].joint_head_norms
        if has_joint_norms and not self._cached.norms_rows(step, spec):
            assert isinstance(self._norms, RmsNorms)
            assert q_norm is not None
            assert k_norm is not None
            self._norms.norm_projections((q, q_norm), (k, k_norm))
            q_norm = k_norm = None
        return self._cached.rope_and_store(step, q, k, v, q_norm, k_norm, spec)

    def rotate_queries(
        self, step: DeviceStep, q: Activation, q_norm: Weight | None, spec: AttentionSpec
    ) -> Activation:
        assert self._cached is not None
        return self._cached.rotate_queries(step, q, q_norm, spec)

    def attention(
        self, step: DeviceStep, q: Activation, spec: AttentionSpec, sinks: Weight | None
    ) -> Activation:
        assert self._cached is not None
        is_last = spec.layer == self._layer_of_ends
        ends_alone = is_last and step.shape.reads_ends and self.leaves_rows_out(step)
        return self._cached.attend(step, q, spec, sinks, ends_alone=ends_alone)

    def store_latent(
        self, step: DeviceStep, kv: Activation, norm: Weight, spec: AttentionSpec
    ) -> None:
        assert self._latent is not None
        self._latent.store(step, kv, norm, spec)

    def absorb_and_store(
        self,
        step: DeviceStep,
        q: Activation,
        kv: Activation,
        k_b: Weight,
        norm: Weight,
        spec: AttentionSpec,
    ) -> Activation:
        assert self._latent is not None
        return self._latent.absorb_and_store(step, q, kv, k_b, norm, spec)

    def expand(
        self, step: DeviceStep, x: Activation, v_b: Weight, spec: AttentionSpec
    ) -> Activation:
        assert self._latent is not None
        return self._latent.expand(step, x, v_b, spec)

    def short_convolution(
        self, step: DeviceStep, x: Activation, weight: Weight, layer: int
    ) -> Activation:
        assert self._recurrent is not None
        return self._recurrent.short_convolution(step, x, weight, layer)

    def delta_net(
        self,
        step: DeviceStep,
        x: Activation,
        gate: Activation,
        rates: tuple[Activation, Activation],
        delta: DeltaNet[Weight],
        layer: int,
    ) -> Activation:
        assert self._recurrent is not None
        return self._recurrent.delta_net(step, x, gate, rates, delta, layer)

    def mamba(
        self, step: DeviceStep, x: Activation, mamba: Mamba[Weight], layer: int
    ) -> Activation:
        assert self._recurrent is not None
        return self._recurrent.mamba(step, x, mamba, layer)

    def sigmoid_gate(self, x: Activation, gate: Activation) -> Activation:
        """Works in place."""
        self._rows.sigmoid_gate(x, gate)
        return x

    def store_hidden(self, step: DeviceStep, x: Activation) -> None:
        assert self._hidden is not None
        self._hidden.store(step, self._sums.completed(x))

    def beside_hidden(
        self, step: DeviceStep, x: Activation, embedding_norm: Weight, hidden_norm: Weight
    ) -> Activation:
        assert self._hidden is not None
        assert self._arena.beside_hidden is not None
        out = self._sums.to_multiply(self._arena.beside_hidden, x.rows, 2 * x.features)
        self._hidden.beside(step, x, (embedding_norm, hidden_norm), out)
        return out

    def project_residual(self, step: DeviceStep, x: Activation, weight: Weight) -> Activation:
        """Writes to the place of the residual."""
        return self.products.multiply(x, part_of(weight), None)

    def norm_projection(
        self, x: Activation, weight: Weight, bias: Weight | None, eps: float | None = None
    ) -> Activation:
        """Works in place."""
        self._norms.norm_projection(x, weight, bias, eps)
        return x

    def norm_first(
        self, step: DeviceStep, x: Activation, weights: tuple[Weight, Weight], norm: Weight
    ) -> tuple[Activation, Activation]:
        if step.defers:
            found = self.products.norm_first(x, weights, norm, self._resources.config.norm_eps)
            if found is not None:
                return found
        first, second = self.qkv(step, x, weights, (None, None))
        assert self._arena.latent is not None
        assert self._arena.latent.normed is not None
        out = self._sums.to_multiply(self._arena.latent.normed, first.rows, first.features)
        self._norms.norm(first, norm, None, out)
        return out, second

    def rope(
        self,
        step: DeviceStep,
        q: Activation,
        k: Activation,
        q_norm: Weight | None,
        k_norm: Weight | None,
        spec: AttentionSpec,
    ) -> tuple[Activation, Activation]:
        """Works in place."""
        assert self._full is not None
        self._full.rope(step, q, k, (q_norm, k_norm), spec)
        return q, k

    def attend_all(
        self,
        step: DeviceStep,
        q: Activation,
        k: Activation,
        v: Activation,
        spec: AttentionSpec,
    ) -> Activation:
        assert self._full is not None
        out = empty(self._arena.attended, q.rows, q.features, half=True)
        self._full.attend(step, q, k, v, spec, out)
        return out

    def wants_rows(self, step: DeviceStep) -> bool:
        return step.shape.rows > 0 or not self.leaves_rows_out(step)

    def take_wanted(
        self, step: DeviceStep, residual: Activation, delta: Activation
    ) -> tuple[Activation, Activation]:
        if not self.leaves_rows_out(step):
            return residual, delta
        arena, delta = self._arena, self._sums.made(delta)
        return (
            self._taken(step, residual, arena.logit_rows),
            self._taken(step, delta, arena.last_delta),
        )

    def leaves_rows_out(self, step: DeviceStep) -> bool:
        """Returns whether logits alone are read of the last layer's network, and not of all tokens.

        Adapters, a predictor and another embedding know all tokens by their places in the step.
        Steps without prompts have few, and fewer launches.
        """
        shape = step.shape
        return (
            shape.prefills > 0
            and shape.rows < shape.tokens
            and not shape.sums
            and not shape.lora_tiles
            and shape.predictor is PredictorUse.NONE
            and self._per_layer is None
        )

    def take_logit_rows(self, step: DeviceStep, x: Activation) -> Activation:
        if step.shape.reads_all:
            return x
        if x.rows < step.shape.tokens:  # they were taken in front of the last network
            return self._sums.completed(x)
        return self._taken(step, x, self._arena.logit_rows)

    def _taken(
        self, step: DeviceStep, x: Activation, arrays: Forms[DeviceArray] | None
    ) -> Activation:
        """Returns the step's logit rows of x, in these arrays."""
        assert arrays is not None
        out = empty(arrays, step.shape.rows, x.features, half=False)
        if out.rows:
            self._rows.take(f32_of(self._sums.completed(x)), step.inputs.logit_rows, f32_of(out))
        return out

    def logits(self, x: Activation, weight: Weight, softcap: float | None) -> Activation:
        part = part_of(weight)
        if x.rows == 0:
            return empty(self._arena.product(Product.LOGITS), 0, part.out_features, half=False)
        # Where so large a matrix completed a norm, that took longer than a launch for it.
        out = self.products.multiply(self._sums.completed(x), part, None)
        if softcap is not None:
            self._rows.softcap(f32_of(out), softcap)
        return out

    def sum_hidden(self, step: DeviceStep, x: Activation) -> Activation:
        count, pooled, sampling = step.shape.sums, self._arena.pooled, self._arena.sampling
        if sampling is not None:  # they travel with the tokens
            pooled = Forms(f32=sampling.sums(count, x.features))
        assert pooled is not None
        out = empty(pooled, count, x.features, half=False)
        self._rows.sum(step, f32_of(self._sums.completed(x)), f32_of(out))
        return out

    def tanh(self, x: Activation) -> Activation:
        """Works in place."""
        self._rows.softcap(f32_of(x), _UNCAPPED)
        return x
