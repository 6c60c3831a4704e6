"""How large each array of activations is, for the largest step of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.weights import walk
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.device.recurrent import DeltaScratch, MambaScratch
from rocmforge_hip.ops.activations import (
    FEW_TOKENS,
    GROUPED_HEADS,
    GROUPED_TOKENS,
    NORMED_TOKENS,
    ActivationArrays,
    DeltaArrays,
    ExpertArrays,
    FetchedExperts,
    Forms,
    GroupArrays,
    LatentArrays,
    MambaArrays,
    PerLayerArrays,
    SamplingArrays,
    SortedPairs,
    StepLimits,
    row_results,
)
from rocmforge_hip.ops.geometry import GEMM_ROWS, MAX_GEMV_ROWS, MAX_INT8_ROWS, Geometry
from rocmforge_hip.weights.adapters import AdapterStack, lora_scratch
from rocmforge_hip.weights.formats import ceil_div
from rocmforge_hip.weights.placement import PLACE, Planned, PlannedMatrix, PlannedPart
from rocmforge_hip.weights.products import QKV_PRODUCTS, Product
from rocmforge_hip.weights.seats import hosted_matrices
from rocmforge_hip.weights.shared import num_logits, num_shared


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
        qkv_3=qkv.get(Product.QKV_3),
        qkv_4=qkv.get(Product.QKV_4),
        rotated=Forms(
            f16=spec((tokens, max(layer.query_features for layer in config.layers)), "f2")
        ),
        attended=_multiplied(tokens, max(map(_attended_features, config.layers))),
        delta=Forms(f32=of_tokens),
        intermediate=_multiplied(tokens, _most_intermediate(config)),
        logit_rows=_multiplied(rows, hidden_size, f32=spec((rows, hidden_size), "f4")),
        last_delta=Forms(f32=spec((rows, hidden_size), "f4")),
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
        arrived=spec((rows,), "u4"),
        squares=spec((MAX_GEMV_ROWS, ceil_div(hidden_size, QUANT_BLOCK)), "f4"),
        experts=_of_experts(config, weights, geometry, tokens),
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
            output=spec((limits.sequences * hidden_size + row_results(rows),), "i4"),
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
    query_rank = max(layer.latent_query_rank for layer in layers)
    return LatentArrays(
        normed=_multiplied(tokens, query_rank) if query_rank else None,
        squares=spec((ceil_div(query_rank, QUANT_BLOCK),), "f4") if query_rank else None,
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
        arrived=spec((limits.sequences * rule.num_key_heads,), "u4"),
        scratch=DeltaScratch.plan(rule, limits.tokens, limits.sequences),
    )


def _of_mamba(config: ModelConfig, limits: StepLimits) -> MambaArrays[ArraySpec] | None:
    """Returns the arrays of Mamba-2, if layers have it; their heads are alike."""
    mamba = next((layer.mamba for layer in config.layers if layer.mamba is not None), None)
    if mamba is None:
        return None
    return MambaArrays(
        convolved=spec((limits.tokens, mamba.mixed_features), "f4"),
        results=spec((limits.tokens, mamba.inner_features), "f4"),
        arrived=spec((limits.sequences * mamba.num_groups,), "u4"),
        squares=spec((limits.tokens,), "f4") if mamba.sharing_devices > 1 else None,
        scratch=MambaScratch.plan(mamba, limits.tokens, limits.sequences),
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
    config: ModelConfig, weights: ModelWeights[Planned], geometry: Geometry, tokens: int
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
    counts = {num_logits(experts) for layer in weights.layers if (experts := layer.experts)}
    most_logits = max(
        count * geometry.most_split_tokens(tokens, count, config.hidden_size) for count in counts
    )
    has_shared = any(
        layer.experts and (layer.experts.shared or layer.feed_forward) for layer in weights.layers
    )
    latent, widest = config.expert_latent_size, max(config.hidden_size, config.expert_hidden_size)
    mixed = Forms(f32=spec((tokens, config.hidden_size), "f4")) if has_shared else None
    if latent:
        mixed = _multiplied(tokens, latent, f32=spec((tokens, latent), "f4"))
    return ExpertArrays(
        logits=spec((most_logits,), "f4"),
        logit_sums=spec((max(counts),), "i8"),
        total=Forms(f32=spec((NORMED_TOKENS, config.hidden_size), "f4")),
        arrived=spec((NORMED_TOKENS,), "u4"),
        chosen=Forms(i32=spec((max(1, len(hosted) // 2) * tokens, chosen), "i4")),
        weights=Forms(f32=spec((tokens, chosen), "f4")),
        shares=spec((tokens,), "f4"),
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
    first = next(iter(weights.layers), None)  # some towers have no layers
    has_post_norms = first is not None and first.attention_post_norm is not None
    has_post_norms |= weights.patches is not None and weights.patches.output_norm is not None
    begins_normed = tower is not None and weights.embedding.norm is not None
    of_tokens = forms(tokens, hidden_size, f32=True)
    attended = max(map(_attended_features, config.layers), default=0)
    inner = _most_intermediate(config)
    has_bounds = any(layer.bounds for layer in config.layers)
    bounded = forms(tokens, max(hidden_size, attended, inner), f16=True) if has_bounds else None
    return ActivationArrays(
        # Else a norm, of merged patches as well, would take the place of the sum that goes on.
        residual=of_tokens if has_post_norms or config.row_parts > 1 or begins_normed else None,
        normed=forms(tokens, hidden_size, f32=True, f16=True),
        post_normed=of_tokens if has_post_norms else None,
        qkv=qkv.get(Product.QKV, Forms()),
        qkv_2=qkv.get(Product.QKV_2),
        qkv_3=qkv.get(Product.QKV_3),
        qkv_4=None,
        attended=forms(tokens, attended, f16=attended > 0),
        delta=of_tokens,
        intermediate=forms(tokens, inner, f16=True),
        gate_up=forms(tokens, inner, f16=True) if has_bounds else None,
        bounded=bounded,
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
        (max(layer.intermediate_size, layer.shared_intermediate_size) for layer in config.layers),
        default=0,
    )
    if config.tower is None:
        return most
    return max(most, ceil_div(config.projected_features, config.tower.merged))


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
