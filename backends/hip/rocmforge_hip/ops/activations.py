"""The activations of a model: which arrays there are, and how large they are at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rocmforge.models.blocks import Fusion, ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import walk
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec
from rocmforge_hip.ops.geometry import MAX_GEMV_ROWS, Geometry
from rocmforge_hip.weights.adapters import AdapterStack, lora_scratch
from rocmforge_hip.weights.placement import Planned, PlannedPart
from rocmforge_hip.weights.products import Product

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

    def float32(self: Forms[DeviceArray], rows: int, features: int) -> DeviceArray:
        """Returns the start of the float32 array, [rows, features]."""
        assert self.f32 is not None, "this activation has no float32 form"
        return self.f32.first(rows, features)

    def float16(self: Forms[DeviceArray], rows: int, features: int) -> DeviceArray:
        """Returns the start of the float16 array, [rows, features]."""
        assert self.f16 is not None, "this activation has no float16 form"
        return self.f16.first(rows, features)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecoderArrays(Generic[X]):
    """Every array that a step of a decoder writes: T tokens, L rows of logits, V the vocabulary."""

    tokens: X  # int32 [T]
    residual: Forms[X]  # [T, hidden_size]
    normed: Forms[X]  # [T, hidden_size], what matrices are multiplied with
    post_normed: Forms[X] | None  # [T, hidden_size], what is added to the residual
    qkv: Forms[X]  # [T, out_features of the stack]
    qkv_2: Forms[X] | None
    qkv_3: Forms[X] | None
    rotated: Forms[X]  # [T, num_heads * head_dim], queries
    attended: Forms[X]  # [T, num_heads * head_dim]
    delta: Forms[X]  # [T, hidden_size]
    intermediate: Forms[X]  # [T, intermediate_size]
    logit_rows: Forms[X]  # [L, hidden_size], taken from `normed`
    logits: Forms[X]  # [L, V]
    gathered: Forms[X] | None  # [L, V], the logits of all ranks
    lora_shrunk: X | None  # float32, products with the A of adapters
    gate_up: Forms[X] | None  # [T, stored_rows]
    attention_partial: X  # float32 [splits, num_heads, head_dim]
    attention_partial_ml: X  # float32 [splits, num_heads, 2]: maximum and sum
    gemm_partial: X  # float32, results of splits of K
    scores: X  # float32 [L, V], changed logits
    highest: X  # [parts] of value and token
    drawn: X  # [parts] of value and token
    limits: X  # uint32 [L], of what may be drawn
    output: X  # the results of a step: see `step_output`

    def product(self, product: Product) -> Forms[X]:
        """Returns the activation that a product is written to."""
        found: Forms[X] | None
        match product:
            case Product.QKV:
                found = self.qkv
            case Product.QKV_2:
                found = self.qkv_2
            case Product.QKV_3:
                found = self.qkv_3
            case Product.DELTA:
                found = self.delta
            case Product.INTERMEDIATE:
                found = self.intermediate
            case Product.GATE_UP:
                found = self.gate_up
            case Product.LOGITS:
                found = self.logits
            case Product.DENSE | Product.SCORES:
                found = None
        assert found is not None, f"no arrays were planned for {product}"
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderArrays(Generic[X]):
    """Every array that a step of an encoder writes: T tokens, P ranges of hidden states."""

    normed: Forms[X]  # [T, hidden_size]
    qkv: Forms[X]  # [T, out_features of the stack]
    qkv_2: Forms[X] | None
    qkv_3: Forms[X] | None
    attended: Forms[X]  # [T, hidden_size]
    delta: Forms[X]  # [T, hidden_size]
    intermediate: Forms[X]  # [T, intermediate_size]
    pooled: Forms[X]  # [P, hidden_size]
    dense: Forms[X] | None  # [P, hidden_size]
    scores: Forms[X] | None  # [P, num_scores]
    gemm_partial: X  # float32, results of splits of K

    def product(self, product: Product) -> Forms[X]:
        """Returns the activation that a product is written to."""
        found: Forms[X] | None
        match product:
            case Product.QKV:
                found = self.qkv
            case Product.QKV_2:
                found = self.qkv_2
            case Product.QKV_3:
                found = self.qkv_3
            case Product.DELTA:
                found = self.delta
            case Product.INTERMEDIATE:
                found = self.intermediate
            case Product.DENSE:
                found = self.dense
            case Product.SCORES:
                found = self.scores
            case Product.GATE_UP | Product.LOGITS:
                found = None
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
    q_lo_offset: int = 0  # elements of q from the high slice to the low one; 0 = one slice
    stride: int = 0  # elements between rows of f32 and f16; 0 = features


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step."""

    tokens: int
    sequences: int
    context: int  # tokens of one sequence
    adapters: int = 0  # that a sequence may have one of

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
) -> DecoderArrays[ArraySpec]:
    """Returns every array that a step of this model writes.

    Matrices that are not quantised are multiplied with float32 for the few rows that GEMV takes.

    Args:
        config: The model.
        weights: What becomes of its tensors.
        limits: The largest step.
        geometry: For the device.
        stacks: The adapters.
    """
    tokens, rows, vocab_size = limits.tokens, limits.rows, config.vocab_size
    hidden_size, layer = config.hidden_size, config.layers[0]
    of_tokens = spec((tokens, hidden_size), "f4")
    of_logits = spec((rows, vocab_size), "f4")
    has_post_norms = weights.layers[0].attention_post_norm is not None
    assert isinstance(weights.output, PlannedPart)
    is_shared = weights.output.out_features < vocab_size  # with other devices
    qkv = {
        product: Forms(f32=spec((tokens, features), "f4"))
        for product, features in qkv_features(weights).items()
    }
    splits = geometry.attention_splits(config, limits.sequences)
    lora_shrunk, gate_up = lora_scratch(stacks, tokens, limits.adapters)
    parts = spec((geometry.most_sampling_parts(rows), 2), "f4")
    results = rows * (2 + 2 * MAX_TOP_LOGPROBS) + 64 + limits.sequences * hidden_size
    return DecoderArrays(
        tokens=spec((tokens,), "i4"),
        residual=Forms(f32=of_tokens),
        normed=_multiplied(tokens, hidden_size, f32=of_tokens),
        post_normed=Forms(f32=of_tokens) if has_post_norms else None,
        qkv=qkv[Product.QKV],
        qkv_2=qkv.get(Product.QKV_2),
        qkv_3=qkv.get(Product.QKV_3),
        rotated=Forms(f16=spec((tokens, layer.query_features), "f2")),
        attended=_multiplied(tokens, layer.attended_features),
        delta=Forms(f32=of_tokens),
        intermediate=_multiplied(tokens, most_intermediate(config)),
        logit_rows=_multiplied(rows, hidden_size, f32=spec((rows, hidden_size), "f4")),
        logits=Forms(f32=of_logits),
        gathered=Forms(f32=of_logits) if is_shared else None,
        lora_shrunk=lora_shrunk,
        gate_up=None if gate_up is None else Forms(f32=gate_up),
        attention_partial=spec((splits, layer.num_heads, layer.value_dim), "f4"),
        attention_partial_ml=spec((splits, layer.num_heads, 2), "f4"),
        gemm_partial=geometry.gemm_scratch(),
        scores=of_logits,
        highest=parts,
        drawn=parts,
        limits=spec((rows,), "u4"),
        output=spec((results,), "i4"),
    )


def most_intermediate(config: ModelConfig) -> int:
    """Returns the features of the widest feed-forward network."""
    return max(layer.intermediate_size for layer in config.layers)


def _multiplied(rows: int, features: int, f32: ArraySpec | None = None) -> Forms[ArraySpec]:
    """Returns the forms of what matrices are multiplied with; f32: if more than a few rows."""
    few = MAX_GEMV_ROWS
    return Forms(
        f32=f32 or spec((few, features), "f4"),
        f16=spec((rows, features), "f2"),
        q=spec((few, features), "i1"),
        q_scale=spec((few, features // QUANT_BLOCK), "u8"),
    )


def qkv_features(weights: ModelWeights[Planned]) -> dict[Product, int]:
    """Returns the features of the activations that query, key and value go to."""
    features: dict[Product, int] = {}
    for place, part in walk(weights):
        if place.declared.group is Fusion.QKV and isinstance(part, PlannedPart):
            assert part.product is not None
            most = max(features.get(part.product, 0), part.matrix.out_features)
            features[part.product] = most
    return features
