"""The activations of a model: which arrays there are, and how large they are at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import numpy as np

from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.weights import walk
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec
from rocmforge_hip.device.recurrent import DeltaHeads, DeltaScratch, MambaHeads, MambaScratch
from rocmforge_hip.ops.geometry import GEMM_ROWS, MAX_GEMV_ROWS, MAX_INT8_ROWS, Geometry
from rocmforge_hip.weights.adapters import AdapterStack, lora_scratch
from rocmforge_hip.weights.formats import ceil_div
from rocmforge_hip.weights.placement import PLACE, Planned, PlannedMatrix, PlannedPart
from rocmforge_hip.weights.products import QKV_PRODUCTS, Product
from rocmforge_hip.weights.seats import hosted_matrices
from rocmforge_hip.weights.shared import num_shared

FEW_TOKENS: Final = 256
"""Slices of tokens whose pairs with experts are computed at a time."""
NORMED_TOKENS: Final = 16
"""Tokens that are normed and routed together, at most."""
GROUPED_TOKENS: Final = 4096
"""Tokens whose pairs with experts are grouped at a time."""
GROUPED_HEADS: Final = 8192
"""Pairs of tokens and heads that are multiplied with matrices of heads at a time, at least."""
SCORED_ROWS: Final = 256
"""Rows of logits beyond one for each sequence: prompt tokens that are scored."""
MAX_TOP_LOGPROBS: Final = 32
"""The most top_logprobs that a row may ask for."""

X = TypeVar("X")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forms(Generic[X]):
    """The arrays of one activation, for the most rows that it may have; None: no kernel needs it.

    The int8 form is that of kernels/include/rf/act.h, for the few rows that GEMV takes, slices
    included.
    """

    f32: X | None = None  # float32 [rows, features]
    f16: X | None = None  # float16 [rows, features]
    q: X | None = None  # int8 [rows, features]
    q_scale: X | None = None  # uint64 [rows, features / QUANT_BLOCK]
    i32: X | None = None  # int32 [rows, features], not numbers but names: which experts

    def float32(self: Forms[DeviceArray], rows: int, features: int) -> DeviceArray:
        """Returns the start of the float32 array, [rows, features]."""
        assert self.f32 is not None, "this activation has no float32 form"
        return self.f32.first(rows, features)

    def float16(self: Forms[DeviceArray], rows: int, features: int) -> DeviceArray:
        """Returns the start of the float16 array, [rows, features]."""
        assert self.f16 is not None, "this activation has no float16 form"
        return self.f16.first(rows, features)

    def int32(self: Forms[DeviceArray], rows: int, features: int) -> DeviceArray:
        """Returns the start of the int32 array, [rows, features]."""
        assert self.i32 is not None, "this activation has no int32 form"
        return self.i32.first(rows, features)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingArrays(Generic[X]):
    """Every array that sampling writes: L rows of logits, V the vocabulary."""

    changed: X  # float32 [L, V], logits as penalties, biases and masks change them
    highest: X  # [parts] of value and token
    drawn: X  # [parts] of value and token
    limits: X  # uint32 [L], of what may be drawn
    output: X  # int32, the results of the largest step: see `step_output`

    def tokens(self: SamplingArrays[DeviceArray]) -> DeviceArray:
        """Returns the results of rows, which begin with their tokens."""
        count = _row_results(self.limits.shape[0])
        first = self.output.shape[0] - count
        return DeviceArray(self.output.address + 4 * first, (count,), self.output.dtype)

    def sums(self: SamplingArrays[DeviceArray], count: int, hidden_size: int) -> DeviceArray:
        """Returns the place of sums of hidden states, right before the tokens."""
        address = self.tokens().address - 4 * count * hidden_size
        assert address >= self.output.address
        return DeviceArray(address, (count, hidden_size), np.dtype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SortedPairs(Generic[X]):
    """P pairs of a row and an expert, sorted by expert on the device."""

    rows: X  # int32 [P], the row of the pair at each place
    places: X  # int32 [P], where each pair went
    tiles: X  # int32 [P / smallest tile + num_experts, 4]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FetchedExperts(Generic[X]):
    """The experts of a matrix that were brought from the host's memory for one product."""

    matrices: X  # bytes, with room for all of them
    places: X  # int64 [num_experts], where each is for this product


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupArrays(Generic[X]):
    """Every array of P pairs of tokens and experts that are computed in groups at a time."""

    pairs: SortedPairs[X]
    inner: X  # float16 [P, intermediate_size], sorted
    products: X  # float32 [P, hidden_size], sorted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertArrays(Generic[X]):
    """Every array that experts write: T tokens, of which a few, F, are computed at a time.

    Up to N tokens are normed and routed together.

    Each token has num_chosen pairs with an expert.
    """

    logits: X  # float32 [T, num_experts], of the router
    total: Forms[X]  # [N, hidden_size], the residual where it is not in its own place
    arrived: X  # uint32 [N], zeros between steps: thread blocks that have finished
    chosen: Forms[X]  # [T, num_chosen]; H times that if the experts of H layers are hosted
    weights: Forms[X]  # [T, num_chosen]
    normed: Forms[X] | None  # [T, hidden_size], where a network beside them reads another norm
    multiplied: Forms[X]  # [F, hidden_size]
    inner: Forms[X]  # [F * num_chosen, intermediate_size]
    # [T, hidden_size], where a network's beside them is added to it; in a space of their own, so
    # many features, which are multiplied next.
    mixed: Forms[X] | None
    groups: GroupArrays[X]
    fetched: FetchedExperts[X] | None  # None: all experts are on the device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatentArrays(Generic[X]):
    """Every array around products with matrices of heads: a pair is a token and a head.

    G pairs are computed in groups at a time, as those of experts are.
    """

    chosen: X  # int32 [T * num_heads], the head of each pair
    weights: X  # float32 [T * num_heads], 1 for each
    plain: Forms[X]  # [T * num_heads, plain_dim], of queries
    pairs: SortedPairs[X]  # G, whose heads are the experts
    products: X  # float32 [G, rank or value_dim]
    expanded: Forms[X]  # [T, num_heads * value_dim]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaArrays(Generic[X]):
    """Every array between the products of a layer with Gated DeltaNet."""

    convolved: X  # float32 [T, mixed_features]
    results: X  # float32 [T, num_value_heads * value_dim], not normed
    scratch: DeltaScratch[X] | None  # None: no heads are computed in chunks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MambaArrays(Generic[X]):
    """Every array between the products of a layer with Mamba-2."""

    convolved: X  # float32 [T, mixed_features]
    results: X  # float32 [T, inner_features], not normed
    scratch: MambaScratch[X] | None  # None: no heads are computed in chunks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerLayerArrays(Generic[X]):
    """Every array of the tokens' other embedding, of all layers."""

    rows: X  # float32 [T, per_layer_features], of a table
    gated: Forms[X]  # [T, per_layer_size]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActivationArrays(Generic[X]):
    """Every array that a step writes: T tokens, L rows of logits, V the vocabulary, P sums.

    None is what the model has no use for. Layers may differ: each array suffices for the largest.
    """

    tokens: X | None = None  # int32 [T]; else they are the step's
    residual: Forms[X] | None = None  # [T, hidden_size]; else it is the float32 of `normed`
    normed: Forms[X]  # [T, hidden_size], what matrices are multiplied with
    qkv: Forms[X]  # [T, out_features of the stack]
    qkv_2: Forms[X] | None
    qkv_3: Forms[X] | None
    qkv_4: Forms[X] | None
    attended: Forms[X]  # [T, num_heads * value_dim], or results of a layer with states
    delta: Forms[X]  # [T, hidden_size]
    intermediate: Forms[X]  # [T, intermediate_size]
    gemm_partial: X  # float32, results of splits of K
    arrived: X  # uint32, 0 between launches: kernels/include/rf/last_block.h
    squares: X | None = None  # float32 [rows of GEMV, hidden_size / QUANT_BLOCK], see `NormLater`
    post_normed: Forms[X] | None = None  # [T, hidden_size], what is added to the residual
    # Of causal models.
    rotated: Forms[X] | None = None  # [T, num_heads * key_dim], queries
    logit_rows: Forms[X] | None = None  # [L, hidden_size], taken from `normed`
    logits: Forms[X] | None = None  # [L, V]
    gathered: Forms[X] | None = None  # [L, V], the logits of all ranks
    lora_shrunk: X | None = None  # float32, products with the A of adapters
    gate_up: Forms[X] | None = None  # [T, stored_rows]
    attention_partial: X | None = None  # float32 [splits * num_heads * value_dim]
    attention_partial_ml: X | None = None  # float32 [splits * num_heads, 2]: maximum and sum
    attention_arrived: X | None = None  # uint32, zeros between steps: splits that have finished
    sampling: SamplingArrays[X] | None = None
    experts: ExpertArrays[X] | None = None
    expert_inputs: Forms[X] | None = None  # [T, expert_latent_size]
    expert_results: Forms[X] | None = None  # [T, hidden_size], of experts in such a space
    latent: LatentArrays[X] | None = None
    deepstack: Forms[X] | None = None  # [T, hidden_size], rows that are added behind a layer
    beside_hidden: Forms[X] | None = None  # [T, 2 * hidden_size], what a predictor begins with
    per_layer: Forms[X] | None = None  # [T, per_layer_features]
    per_layer_gate: Forms[X] | None = None  # [T, per_layer_size]
    other_embedding: PerLayerArrays[X] | None = None
    delta_rule: DeltaArrays[X] | None = None
    mamba: MambaArrays[X] | None = None
    # Of other models.
    pooled: Forms[X] | None = None  # [P, hidden_size], sums of hidden states
    dense: Forms[X] | None = None  # [P, hidden_size]
    scores: Forms[X] | None = None  # [P, num_scores], or rows of embeddings of images
    patches: Forms[X] | None = None  # [T, patch_features]

    def product(self, product: Product) -> Forms[X]:
        """Returns the activation that a product is written to."""
        found: Forms[X] | None = getattr(self, product)
        assert found is not None, f"no arrays were planned for {product}"
        return found


@dataclass(slots=True, eq=False)
class Activation:
    """A [rows, features] matrix in one or several forms, those not None.

    `q`, `q_scale` and `q_lo_offset` are the int8 form of kernels/include/rf/act.h.
    """

    arrays: Forms[DeviceArray]  # where each form is written
    rows: int
    features: int
    f32: DeviceArray | None = None
    f16: DeviceArray | None = None
    q: DeviceArray | None = None
    q_scale: DeviceArray | None = None
    i32: DeviceArray | None = None
    q_lo_offset: int = 0  # elements of q from the high slice to the low one; 0 = one slice
    stride: int = 0  # elements between rows of f32 and f16; 0 = features


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step."""

    tokens: int
    sequences: int
    context: int  # tokens of one sequence
    adapters: int = 0  # that a sequence may have one of
    merged: int = 0  # patches of a row of embeddings, of a tower

    @property
    def sums(self) -> int:
        """Ranges of hidden states."""
        return self.tokens // self.merged if self.merged else self.sequences

    @property
    def rows(self) -> int:
        """Rows of logits."""
        return self.sequences + SCORED_ROWS


def plan_activations(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    limits: StepLimits,
    geometry: Geometry,
    stacks: Sequence[AdapterStack[Any]] = (),
) -> ActivationArrays[ArraySpec]:
    """Returns every array that a step of this model writes.

    Args:
        config: The model.
        weights: What becomes of its tensors.
        limits: The largest step.
        geometry: For the device.
        stacks: The adapters.
    """
    if config.causal:
        return _of_causal(config, weights, limits, geometry, stacks)
    return _without_cache(config, weights, limits, geometry)


def _of_causal(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    limits: StepLimits,
    geometry: Geometry,
    stacks: Sequence[AdapterStack[Any]],
) -> ActivationArrays[ArraySpec]:
    """Matrices that are not quantised are multiplied with float32 for the rows that GEMV takes."""
    tokens, rows, vocab_size = limits.tokens, limits.rows, config.vocab_size
    hidden_size, size = config.hidden_size, config.per_layer_size
    latent = config.expert_latent_size
    of_tokens = spec((tokens, hidden_size), "f4")
    of_logits = spec((rows, vocab_size), "f4")
    has_post_norms = weights.layers[0].attention_post_norm is not None
    assert isinstance(weights.output, PlannedPart)
    is_shared = weights.output.out_features < vocab_size  # with other devices
    qkv = {
        product: Forms(f32=spec((tokens, features), "f4"))
        for product, features in _qkv_features(weights).items()
    }
    rank = max(layer.latent_query_rank for layer in config.layers)
    of_rank = spec((tokens, rank), "f4")
    partials = [  # results of splits, and what each has
        (max(geometry.prefill_results(), splits * layer.num_heads), layer)
        for index, layer in enumerate(config.layers)
        if layer.num_heads
        for splits in [geometry.attention_splits(config.kv_heads_read_by(index), limits.sequences)]
    ]
    lora_shrunk, gate_up = lora_scratch(stacks, tokens, limits.adapters)
    parts = spec((geometry.most_sampling_parts(rows), 2), "f4")
    return ActivationArrays(
        tokens=spec((tokens,), "i4"),
        residual=Forms(f32=of_tokens),
        deepstack=Forms(f32=of_tokens) if config.deepstack else None,
        normed=_multiplied(tokens, hidden_size, f32=of_tokens),
        post_normed=Forms(f32=of_tokens) if has_post_norms else None,
        qkv=qkv[Product.QKV],
        qkv_2=qkv.get(Product.QKV_2),
        qkv_3=qkv.get(Product.QKV_3) if not rank else _multiplied(tokens, rank, of_rank),
        qkv_4=qkv.get(Product.QKV_4),
        rotated=Forms(
            f16=spec((tokens, max(layer.query_features for layer in config.layers)), "f2")
        ),
        attended=_multiplied(tokens, max(map(_attended_features, config.layers))),
        delta=Forms(f32=of_tokens),
        intermediate=_multiplied(tokens, _most_intermediate(config)),
        logit_rows=_multiplied(rows, hidden_size, f32=spec((rows, hidden_size), "f4")),
        logits=Forms(f32=of_logits),
        gathered=Forms(f32=of_logits) if is_shared else None,
        lora_shrunk=lora_shrunk,
        gate_up=None if gate_up is None else Forms(f32=gate_up),
        attention_partial=spec((max(n * layer.value_dim for n, layer in partials),), "f4"),
        attention_partial_ml=spec((max(n for n, _ in partials), 2), "f4"),
        # Several heads share a counter.
        attention_arrived=spec(
            (limits.sequences * max(layer.num_heads for layer in config.layers),), "u4"
        ),
        gemm_partial=geometry.gemm_scratch(),
        arrived=spec((1,), "u4"),
        squares=spec((MAX_GEMV_ROWS, ceil_div(hidden_size, QUANT_BLOCK)), "f4"),
        experts=_of_experts(config, weights, tokens),
        expert_inputs=_multiplied(tokens, latent, f32=spec((tokens, latent), "f4"))
        if latent
        else None,
        expert_results=Forms(f32=of_tokens) if latent else None,
        latent=_of_latent(config, tokens),
        beside_hidden=_multiplied(tokens, config.predictor_inputs) if config.predicts else None,
        per_layer=Forms(f32=spec((tokens, config.per_layer_features), "f4")) if size else None,
        per_layer_gate=Forms(f32=spec((tokens, size), "f4")) if size else None,
        other_embedding=PerLayerArrays(
            rows=spec((tokens, config.per_layer_features), "f4"), gated=_multiplied(tokens, size)
        )
        if size
        else None,
        delta_rule=_of_delta_rule(config, limits),
        mamba=_of_mamba(config, limits),
        sampling=SamplingArrays(
            changed=of_logits,
            highest=parts,
            drawn=parts,
            limits=spec((rows,), "u4"),
            output=spec((limits.sequences * hidden_size + _row_results(rows),), "i4"),
        ),
    )


def _of_latent(config: ModelConfig, tokens: int) -> LatentArrays[ArraySpec] | None:
    """Returns the arrays of latent attention, if layers have it."""
    layers = [layer for layer in config.layers if layer.latent is not None]
    if not layers:
        return None
    heads = max(layer.num_heads for layer in layers)
    plain_dim = max(layer.latent_plain_dim for layer in layers)
    grouped = max(min(tokens * heads, GROUPED_HEADS), MAX_GEMV_ROWS * heads)
    widest = max(max(layer.latent_rank, layer.latent_value_dim) for layer in layers)
    few = _quantised(MAX_GEMV_ROWS * heads, plain_dim)
    return LatentArrays(
        chosen=spec((tokens * heads,), "i4"),
        weights=spec((tokens * heads,), "f4"),
        plain=replace(
            few,
            f32=spec((MAX_GEMV_ROWS * heads, plain_dim), "f4"),
            f16=spec((tokens * heads, plain_dim), "f2"),
        ),
        pairs=_sorted_pairs(grouped, heads),
        products=spec((grouped, widest), "f4"),
        expanded=_multiplied(tokens, max(layer.latent_attended_features for layer in layers)),
    )


def _of_delta_rule(config: ModelConfig, limits: StepLimits) -> DeltaArrays[ArraySpec] | None:
    """Returns the arrays of Gated DeltaNet, if layers have it; their heads are alike."""
    rule = next((layer.delta for layer in config.layers if layer.delta is not None), None)
    if rule is None:
        return None
    return DeltaArrays(
        convolved=spec((limits.tokens, rule.mixed_features), "f4"),
        results=spec((limits.tokens, rule.value_features), "f4"),
        scratch=DeltaScratch.plan(DeltaHeads.of(rule), limits.tokens, limits.sequences),
    )


def _of_mamba(config: ModelConfig, limits: StepLimits) -> MambaArrays[ArraySpec] | None:
    """Returns the arrays of Mamba-2, if layers have it; their heads are alike."""
    mamba = next((layer.mamba for layer in config.layers if layer.mamba is not None), None)
    if mamba is None:
        return None
    return MambaArrays(
        convolved=spec((limits.tokens, mamba.mixed_features), "f4"),
        results=spec((limits.tokens, mamba.inner_features), "f4"),
        scratch=MambaScratch.plan(MambaHeads.of(mamba), limits.tokens, limits.sequences),
    )


def _attended_features(layer: LayerConfig) -> int:
    """Returns the features of what a layer's last matrix before its network reads."""
    if layer.delta is not None:
        return layer.delta_value_features
    if layer.mamba is not None:
        return layer.mamba_inner_features
    return max(layer.attended_features, layer.convolved_features)


def _fetched(hosted: Sequence[PlannedMatrix]) -> FetchedExperts[ArraySpec] | None:
    if not hosted:
        return None
    return FetchedExperts(
        matrices=spec((max(matrix.storage.nbytes for matrix in hosted),), "u1"),
        places=spec((max(matrix.num_experts for matrix in hosted),), PLACE),
    )


def _of_experts(
    config: ModelConfig, weights: ModelWeights[Planned], tokens: int
) -> ExpertArrays[ArraySpec] | None:
    """Returns the arrays of experts, if a layer has some."""
    rules = [rule for layer in config.layers if (rule := layer.experts) is not None]
    if not rules:
        return None
    hosted, shared = hosted_matrices(weights), num_shared(weights)
    chosen = shared + max(rule.num_chosen for rule in rules)
    few, pairs = min(tokens, FEW_TOKENS), min(tokens, GROUPED_TOKENS) * chosen
    inner_size = max(rule.intermediate_size for rule in rules)
    most_experts = shared + max(rule.num_experts for rule in rules)
    has_shared = any(
        layer.experts and (layer.experts.shared or layer.feed_forward) for layer in weights.layers
    )
    latent, widest = config.expert_latent_size, max(config.hidden_size, config.expert_hidden_size)
    mixed = Forms(f32=spec((tokens, config.hidden_size), "f4")) if has_shared else None
    if latent:
        mixed = _multiplied(tokens, latent, f32=spec((tokens, latent), "f4"))
    return ExpertArrays(
        logits=spec((tokens, most_experts), "f4"),
        total=Forms(f32=spec((NORMED_TOKENS, config.hidden_size), "f4")),
        arrived=spec((NORMED_TOKENS,), "u4"),
        chosen=Forms(i32=spec((max(1, len(hosted) // 2) * tokens, chosen), "i4")),
        weights=Forms(f32=spec((tokens, chosen), "f4")),
        normed=_multiplied(tokens, config.hidden_size, f32=spec((tokens, config.hidden_size), "f4"))
        if any(layer.experts and layer.experts.norm for layer in weights.layers)
        else None,
        multiplied=_quantised(FEW_TOKENS, widest),
        inner=_quantised(
            FEW_TOKENS * chosen, inner_size, f32=spec((few * chosen, inner_size), "f4")
        ),
        mixed=mixed,
        groups=GroupArrays(
            pairs=_sorted_pairs(pairs, most_experts),
            inner=spec((pairs, inner_size), "f2"),
            products=spec((pairs, widest), "f4"),
        ),
        fetched=_fetched(hosted),
    )


def _sorted_pairs(pairs: int, num_experts: int) -> SortedPairs[ArraySpec]:
    return SortedPairs(
        rows=spec((pairs,), "i4"),
        places=spec((pairs,), "i4"),
        tiles=spec((pairs // min(GEMM_ROWS) + num_experts, 4), "i4"),
    )


def _without_cache(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    limits: StepLimits,
    geometry: Geometry,
) -> ActivationArrays[ArraySpec]:
    hidden_size = config.hidden_size

    def forms(
        rows: int, features: int, *, f32: bool = False, f16: bool = False
    ) -> Forms[ArraySpec]:
        return Forms(
            f32=spec((rows, features), "f4") if f32 else None,
            f16=spec((rows, features), "f2") if f16 else None,
        )

    tokens, pools, tower = limits.tokens, limits.sums, config.tower
    has_dense, has_scores = config.num_scores > 0, config.num_scores > 0 or tower is not None
    qkv = {
        product: forms(tokens, features, f16=True)
        for product, features in _qkv_features(weights).items()
    }
    has_post_norms = weights.layers[0].attention_post_norm is not None
    begins_normed = tower is not None and weights.embedding.norm is not None
    of_tokens = forms(tokens, hidden_size, f32=True)
    return ActivationArrays(
        # Else a norm, of merged patches as well, would take the place of the sum that goes on.
        residual=of_tokens if has_post_norms or config.row_parts > 1 or begins_normed else None,
        normed=forms(tokens, hidden_size, f32=True, f16=True),
        post_normed=of_tokens if has_post_norms else None,
        qkv=qkv[Product.QKV],
        qkv_2=qkv.get(Product.QKV_2),
        qkv_3=qkv.get(Product.QKV_3),
        qkv_4=None,
        attended=forms(tokens, max(map(_attended_features, config.layers)), f16=True),
        delta=of_tokens,
        intermediate=forms(tokens, _most_intermediate(config), f16=True),
        pooled=forms(pools, hidden_size, f32=True, f16=has_scores),
        dense=forms(pools, hidden_size, f32=True, f16=True) if has_dense else None,
        scores=forms(pools, config.output_size, f32=True) if has_scores else None,
        patches=forms(tokens, config.patch_features, f16=True) if tower is not None else None,
        gemm_partial=geometry.gemm_scratch(),
        arrived=spec((1,), "u4"),
    )


def _most_intermediate(config: ModelConfig) -> int:
    """Returns the features of the widest feed-forward network."""
    most = max(
        max(layer.intermediate_size, layer.shared_intermediate_size) for layer in config.layers
    )
    if config.tower is None:
        return most
    return max(most, ceil_div(config.projected_features, config.tower.merged))


def _row_results(rows: int) -> int:
    """Returns the elements of all results of so many rows, with what aligns them."""
    return rows * (2 + 2 * MAX_TOP_LOGPROBS) + 64


def _multiplied(rows: int, features: int, f32: ArraySpec | None = None) -> Forms[ArraySpec]:
    """Returns the forms of what matrices are multiplied with; f32: if more than a few rows."""
    quantised = _quantised(MAX_INT8_ROWS, features)
    return replace(
        quantised,
        f32=f32 or spec((MAX_GEMV_ROWS, features), "f4"),
        f16=spec((rows, features), "f2"),
    )


def _quantised(rows: int, features: int, f32: ArraySpec | None = None) -> Forms[ArraySpec]:
    """Returns the int8 form, and a float32 one if there is to be one."""
    return Forms(
        f32=f32, q=spec((rows, features), "i1"), q_scale=spec((rows, features // QUANT_BLOCK), "u8")
    )


def _qkv_features(weights: ModelWeights[Planned]) -> dict[Product, int]:
    """Returns the features of the activations that query, key and value go to."""
    features: dict[Product, int] = {}
    for _, part in walk(weights):
        if isinstance(part, PlannedPart) and part.product in QKV_PRODUCTS:
            most = max(features.get(part.product, 0), part.matrix.out_features)
            features[part.product] = most
    return features
