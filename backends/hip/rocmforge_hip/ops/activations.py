"""The activations of a model: the arrays that a step writes, and what operations see of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.recurrent import DeltaScratch, MambaScratch
from rocmforge_hip.weights.products import Product

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

    The int8 form is that of rf/activations/act.h, for the few rows that GEMV takes, slices
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
    output: X  # int32, the results of the largest step: see `step/output.py`

    def tokens(self: SamplingArrays[DeviceArray]) -> DeviceArray:
        """Returns the results of rows, which begin with their tokens."""
        count = row_results(self.limits.shape[0])
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

    logits: X  # float32, of the router: [T, num_experts], or as many for each part of a sum
    # int64 [num_experts], zeros between steps: kernels/include/rf/experts/logit_sums.h.
    logit_sums: X
    total: Forms[X]  # [N, hidden_size], the residual where it is not in its own place
    arrived: X  # uint32 [N], zeros between steps: thread blocks that have finished
    chosen: Forms[X]  # [T, num_chosen]; H times that if the experts of H layers are hosted
    weights: Forms[X]  # [T, num_chosen]
    shares: X  # float32 [T], what a network beside the experts counts
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

    normed: Forms[X] | None  # [T, query_rank], what queries are made of
    squares: X | None  # float32 [query_rank / QUANT_BLOCK], of one row: see `NormLater`
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
    arrived: X  # uint32 [B, num_key_heads], zeros between launches: kernels/include/rf/last_block.h
    scratch: DeltaScratch[X] | None  # None: no heads are computed in chunks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MambaArrays(Generic[X]):
    """Every array between the products of a layer with Mamba-2."""

    convolved: X  # float32 [T, mixed_features]
    results: X  # float32 [T, inner_features], not normed
    arrived: X  # uint32 [B, num_groups], as in `DeltaArrays`
    squares: X | None  # float32 [T], of results that are normed together with other devices'
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
    arrived: X  # uint32 [L], zeros between launches: kernels/include/rf/last_block.h
    squares: X | None = None  # float32 [rows of GEMV, hidden_size / QUANT_BLOCK], see `NormLater`
    post_normed: Forms[X] | None = None  # [T, hidden_size], what is added to the residual
    # Of causal models.
    rotated: Forms[X] | None = None  # [T, num_heads * key_dim], queries
    # [L, hidden_size], taken from `normed`, or from `residual` in front of the last network.
    logit_rows: Forms[X] | None = None
    last_delta: Forms[X] | None = None  # [L, hidden_size], taken from `delta` there
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
    bounded: Forms[X] | None = None  # [T, in_features], what is multiplied within bounds

    def product(self, product: Product) -> Forms[X]:
        """Returns the activation that a product is written to."""
        found: Forms[X] | None = getattr(self, product)
        assert found is not None, f"no arrays were planned for {product}"
        return found


@dataclass(slots=True, eq=False)
class Activation:
    """A [rows, features] matrix in one or several forms, those not None.

    `q`, `q_scale` and `q_lo_offset` are the int8 form of kernels/include/rf/activations/act.h.
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


def row_results(rows: int) -> int:
    """Returns the elements of all results of so many rows, with what aligns them."""
    return rows * (2 + 2 * MAX_TOP_LOGPROBS) + 64
