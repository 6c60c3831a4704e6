"""`rocmforge.models.forward.ops.Ops` by launching kernels: which ones, on which arrays.

An operation writes to the arrays that the arena has for its result (see `activations`); nothing is
allocated and nothing waits. In a causal model, few rows go through GEMV with int8 activations, more
of them through GEMM with halves. In any other, all rows go through GEMM, however few they are: so a
text has the same vector alone and in a batch. There, query, key and value and the inner activations
are halves from one matrix product to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rocmforge.models.blocks import DeltaNet, Embedding, Experts, FeedForward, Mamba, SharedExpert
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.layer_config import ExpertsConfig
from rocmforge_hip.device.constants import BLOCK_TOKENS, QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import NORMED_TOKENS, Activation, ActivationArrays, Forms
from rocmforge_hip.ops.cached_attention import CachedAttention, DeviceRopeTable, LayerCache
from rocmforge_hip.ops.experts.beside import BesideKernels
from rocmforge_hip.ops.experts.deferred import DeferredExperts
from rocmforge_hip.ops.experts.groups import GroupKernels
from rocmforge_hip.ops.experts.latent import LatentKernels
from rocmforge_hip.ops.experts.pairs import PairKernels, empty_mix
from rocmforge_hip.ops.experts.routing import RouteKernels, UnmadeChoice, UnmadeSum
from rocmforge_hip.ops.experts.shared import SharedKernels
from rocmforge_hip.ops.full_attention import FullAttention, UnturnedRows
from rocmforge_hip.ops.geometry import Geometry, groups_experts
from rocmforge_hip.ops.linear.bounds import BoundedProducts
from rocmforge_hip.ops.linear.mixed_gemv import is_norm_later
from rocmforge_hip.ops.linear.products import GATES, LinearKernels
from rocmforge_hip.ops.lora import DeviceAdapters, Lora
from rocmforge_hip.ops.norms import RmsNorms, norms_of
from rocmforge_hip.ops.operands import empty, f16_of, f32_of, part_of
from rocmforge_hip.ops.recurrent.layers import RecurrentLayers
from rocmforge_hip.ops.rows import HiddenRows, PerLayerRows, RowKernels
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.sums import Sums
from rocmforge_hip.ops.tower import TowerRows
from rocmforge_hip.weights.formats import Matrix, MatrixPart, Weight
from rocmforge_hip.weights.products import QKV_PRODUCTS, Product

_UNCAPPED: Final = 1.0  # cap * tanh(x / cap) is tanh(x)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resources:
    """The things that the operations of a model work with."""

    config: ModelConfig
    library: KernelLibrary
    geometry: Geometry
    arena: ActivationArrays[DeviceArray]
    # Of each layer the number of its block table; none, if all have the same.
    window_groups: tuple[int, ...]
    caches: tuple[LayerCache[DeviceArray], ...]  # by layer; none of a model that is not causal
    states: tuple[tuple[DeviceArray, ...], ...] = ()  # of each layer, [slots, ...] each
    hidden: DeviceArray | None = None  # states kept for the predictor, [slots, hidden_size]
    tables: Mapping[bool, DeviceRopeTable]  # by whether they are for `local_rope`
    query_gains: DeviceArray | None = None  # as `RopeTables.query_gains`
    slopes: DeviceArray | None  # what scores of each head lose for a token of distance
    unturned: UnturnedRows | None = None  # for norms of values in an encoder
    formats: frozenset[str]  # stored types of the matrices
    expert_formats: frozenset[str]  # of those of experts
    adapters: Mapping[Matrix, DeviceAdapters]
    slices: int  # of int8 activations: see `LinearKernels`
    rank: int = 0  # of this device among those that share the model
    add_up: Callable[[DeviceArray], None] | None = None  # an array of theirs, in place
    hosted_routers: Sequence[Weight] = ()  # of layers whose experts are hosted, in their order


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
        self._route = self._pairs = self._groups = self._shared = self._deferred = None
        self._beside: BesideKernels | None = None
        if arena.experts is not None:
            self._route = RouteKernels(
                *(library, geometry, arena, config.norm_eps),
                *(resources.rank, resources.hosted_routers),
            )
            of_experts = library, arena, self.products, resources.expert_formats
            self._pairs, self._groups = PairKernels(*of_experts), GroupKernels(*of_experts)
            self._shared = SharedKernels(*of_experts, self._pairs, self._groups)
            self._deferred = DeferredExperts(
                library, self.products, self._pairs, resources.expert_formats
            )
            if arena.experts.mixed is not None:
                self._beside = BesideKernels(
                    library, arena, self.products, self._pairs, config.norm_eps
                )
        self._sums = Sums(
            *(arena, self.products, self._norms, config.norm_eps),
            *(self._route, self._deferred, self._beside),
        )
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
            heads = config, library, arena, self.products, resources.caches, tables
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
        are_rms = isinstance(self._norms, RmsNorms) and self._resources.config.post_norm_eps is None
        if not are_rms or self._lora.changes(step, part.matrix):
            return None
        if x.rows > self.products.gemv_rows:
            return self.products.multiply(x, part, bias, leaves_splits=True)
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
        assert self._route is not None
        assert self._arena.experts is not None
        rows, features = residual.rows, residual.features
        if (
            self._deferred is not None
            and self._deferred.chooses(delta, norms, experts, rule.num_experts)
            and not self._route.is_hosted(experts)
        ):
            normed = self._sums.add_and_defer(residual, delta, norms[0])
            assert normed is not None
            return residual, [normed], self._route.route_later(residual, norms[0], experts, rule)
        leaves = rows > NORMED_TOKENS and self._sums.adds_splits(delta)
        x, post_norm = (delta, None) if leaves else self._sums.unnormed(delta)
        places = self._arena.normed, self._arena.experts.normed
        outs = [
            self._sums.multiplied(empty(arrays, rows, features, half=False))
            for arrays, _ in zip(places, norms, strict=False)
            if arrays is not None
        ]
        wanted = list(zip(norms, outs, strict=True))
        done = self._route.add_norm_route(residual, x, post_norm, wanted, experts, rule)
        if done is not None:
            total, chosen = done
            return total, outs, chosen
        out, routed = self._sums.normed(residual), experts.router_norm or norms[0]
        if self._sums.adds_splits(x):
            self._sums.add_splits_norm(residual, x, routed, out)
        else:
            self._norms.add_norm(residual, x, routed, None, out, residual.f32, post_norm=post_norm)
        chosen = self._route.route(out, experts, rule)
        for weight, of_sum in wanted if experts.router_norm is not None else ():
            self._norms.norm(residual, weight, None, of_sum)
        return residual, outs, chosen

    def experts(
        self,
        x: Activation,
        chosen: Activation,
        weights: Activation,
        experts: Experts[Weight],
        activation: ActivationFunction,
    ) -> Activation:
        assert self._pairs is not None
        assert self._groups is not None
        if isinstance(chosen, UnmadeChoice):
            assert self._deferred is not None
            assert is_norm_later(x)
            out = empty_mix(self._arena, x.rows, experts)
            return self._deferred.mix(x, chosen, weights, experts, GATES[activation], out)
        if self._shared is not None and self._shared.multiplies(x.rows, experts):
            return self._shared.mix(x, chosen, weights, experts, GATES[activation])
        matrix = part_of(experts.down).matrix
        pairs = x.rows * (chosen.features - matrix.num_shared)
        grouped = groups_experts(
            pairs, matrix.num_experts - matrix.num_shared, self.products.slices
        )
        kernels = self._groups if grouped else self._pairs
        return kernels.mix(x, chosen, weights, experts, GATES[activation])

    def experts_beside(
        self,
        step: DeviceStep,
        inputs: tuple[Activation, Activation],
        chosen: tuple[Activation, Activation],
        experts: Experts[Weight],
        network: FeedForward[Weight] | SharedExpert[Weight],
        activation: ActivationFunction,
    ) -> tuple[Activation, Activation]:
        x, beside = inputs[1], self._beside if step.defers else None
        if beside and beside.multiplies(x, chosen[0], experts, network):
            return beside.mix(inputs, chosen, experts, network, GATES[activation])
        mixed = self.experts(inputs[0], *chosen, experts, activation)
        y = self.gated_linear(step, x, network.gate, network.up, activation)
        return mixed, self.linear(step, y, network.down, None)

    def add_shared(
        self, mixed: Activation, shared: Activation, x: Activation, router: Weight | None
    ) -> Activation:
        """Writes the sum to the place of the shared expert's result, if it is made at all."""
        shared = self._sums.beside_experts(shared)
        return UnmadeSum(
            *(shared.arrays, shared.rows, shared.features),
            first=mixed,
            second=shared,
            x=x,
            router=router,
        )

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
        return self._cached.attend(step, q, spec, sinks)

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

    def norm_queries_and_keys(
        self, q: Activation, k: Activation, q_norm: Weight, k_norm: Weight
    ) -> tuple[Activation, Activation]:
        """Works in place."""
        assert isinstance(self._norms, RmsNorms)
        self._norms.norm_projections((q, q_norm), (k, k_norm))
        return q, k

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

    def take_logit_rows(self, step: DeviceStep, x: Activation) -> Activation:
        rows, result = step.shape.rows, self._arena.logit_rows
        assert result is not None
        out = result.float32(rows, x.features)
        if rows:
            self._rows.take(f32_of(self._sums.completed(x)), step.inputs.logit_rows, out)
        return Activation(result, rows, x.features, f32=out)

    def logits(self, x: Activation, weight: Weight, softcap: float | None) -> Activation:
        part = part_of(weight)
        if x.rows == 0:
            return empty(self._arena.product(Product.LOGITS), 0, part.out_features, half=False)
        out = self.products.multiply(x, part, None)
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
