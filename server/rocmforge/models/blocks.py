"""The blocks that models are made of, with every weight declared once.

A weight is a field of its block, and what is said about it stands there and nowhere else: its
shape, how it is cut for several devices, what it is stored with, whether adapters change it. The
rest is folded over these declarations (see `weights`): taking a model from a file, planning memory,
placing, sharding, adapters, counting bytes, random weights. `W` is what a weight is at the time: a
tensor of a file, a place on the device, an array. None stands for a weight that a model lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Generic, Literal, TypeVar

from rocmforge.models.config import ModelConfig

W = TypeVar("W")

Size = Literal[
    # Of a model.
    "hidden_size",
    "vocab_size",
    "max_context",
    "num_token_types",
    "num_scores",
    "predictor_size",
    "predictor_inputs",
    "patch_features",
    "merged_features",
    "projector_inputs",
    "projected_features",
    "row_features",
    "expert_latent_size",
    "expert_hidden_size",
    # Of a layer.
    "num_heads",
    "query_features",
    "key_features",
    "value_features",
    "attended_features",
    "query_norm_features",
    "key_norm_features",
    "value_dim",
    "latent_features",
    "latent_rank",
    "latent_plain_dim",
    "latent_value_dim",
    "latent_query_features",
    "latent_query_rank",
    "direct_query_features",
    "latent_attended_features",
    "convolved_features",
    "convolution_width",
    "gated_features",
    "delta_value_features",
    "delta_value_heads",
    "delta_value_dim",
    "mamba_input_features",
    "mamba_inner_features",
    "mamba_heads",
    "merger_features",
    "per_layer_size",
    "per_layer_features",
    "scalar",
    "bounds",
    "intermediate_size",
    "num_experts",
    "expert_intermediate_size",
    "shared_intermediate_size",
]
"""Numbers of `ModelConfig` and `LayerConfig` that shapes consist of."""

WEIGHT: Final = "weight"
BLOCK: Final = "block"
LAYERS: Final = "layers"


class Role(Enum):
    """The part of a weight that each of several devices has (Shoeybi et al. 2019)."""

    REPLICATED = auto()  # all of it
    COLUMN = auto()  # some of the outputs, which are the first axis
    ROW = auto()  # some of the inputs, the last axis: results are added up, with the bias of one
    EXPERT = auto()  # some of the experts, which are the first axis: results are added up


class Fusion(Enum):
    """Weights that are multiplied with the same activation, so that they may be stored as one."""

    QKV = auto()  # queries, keys, values and gates, or what they are made of
    GATE_UP = auto()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A weight as it is known before there is a model."""

    # Matrices are [out_features, in_features], those of experts [experts, out_, in_features]. A
    # weight of which a size is 0 is none.
    shape: tuple[Size, ...]
    role: Role
    group: Fusion | None
    adaptable: bool  # LoRA adapters may change it


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """A weight's place in a model."""

    name: str  # of the fields, joined by dots: within its layer, or within the model
    layer: int | None
    declared: Declaration
    is_optional: bool  # models may lack it

    @property
    def path(self) -> str:
        """The name within the model, as "layers.3.attention.q"."""
        return self.name if self.layer is None else f"layers.{self.layer}.{self.name}"

    def shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Returns the shape that the weight has in a model."""
        layer = None if self.layer is None else config.layers[self.layer]
        return tuple(
            getattr(layer if hasattr(layer, size) else config, size) for size in self.declared.shape
        )


def whole(*shape: Size, group: Fusion | None = None) -> Mapping[str, Any]:
    """Declares a weight that every device has all of."""
    return {WEIGHT: Declaration(shape, Role.REPLICATED, group, adaptable=False)}


def column(*shape: Size, group: Fusion | None = None, adaptable: bool = False) -> Mapping[str, Any]:
    """Declares a weight that is cut by its outputs."""
    return {WEIGHT: Declaration(shape, Role.COLUMN, group, adaptable)}


def row(*shape: Size, adaptable: bool = False) -> Mapping[str, Any]:
    """Declares a matrix that is cut by its inputs, or its bias."""
    return {WEIGHT: Declaration(shape, Role.ROW, None, adaptable)}


def expert(*shape: Size, group: Fusion | None = None) -> Mapping[str, Any]:
    """Declares the matrices or biases of all experts, which are cut by experts."""
    return {WEIGHT: Declaration(("num_experts", *shape), Role.EXPERT, group, adaptable=False)}


def optional(declared: Mapping[str, Any]) -> Any:
    """Returns the field of a weight, or a block, that models may lack."""
    return field(default=None, metadata=declared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Generic[W]):
    """Queries, keys and values of all heads, and the matrix behind them."""

    q: W = field(metadata=column("query_features", "hidden_size", group=Fusion.QKV, adaptable=True))
    # None of layers that read the keys and values of another.
    k: W | None = optional(column("key_features", "hidden_size", group=Fusion.QKV, adaptable=True))
    v: W | None = optional(
        column("value_features", "hidden_size", group=Fusion.QKV, adaptable=True)
    )
    q_bias: W | None = optional(column("query_features", group=Fusion.QKV))
    k_bias: W | None = optional(column("key_features", group=Fusion.QKV))
    v_bias: W | None = optional(column("value_features", group=Fusion.QKV))
    q_norm: W | None = optional(whole("query_norm_features"))
    q_norm_bias: W | None = optional(whole("query_norm_features"))
    k_norm: W | None = optional(whole("key_norm_features"))
    k_norm_bias: W | None = optional(whole("key_norm_features"))
    v_norm: W | None = optional(whole("value_dim"))  # of towers
    # Of each head, a score that takes its part of the softmax and has no value (Xiao et al. 2024).
    sinks: W | None = optional(column("num_heads"))
    # Its sigmoids multiply the results of all heads.
    gate: W | None = optional(column("attended_features", "hidden_size", group=Fusion.QKV))
    output: W = field(metadata=row("hidden_size", "attended_features", adaptable=True))
    output_bias: W | None = optional(row("hidden_size"))
    # Of towers: see `LayerConfig.bounds`.
    q_bounds: W | None = optional(whole("bounds"))
    k_bounds: W | None = optional(whole("bounds"))
    v_bounds: W | None = optional(whole("bounds"))
    output_bounds: W | None = optional(whole("bounds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Generic[W]):
    """The matrices of multi-head latent attention; see `LatentConfig`.

    Queries are made by `q`, or by `q_a`, a norm and `q_b`: of each head the elements that do not
    rotate, then those that do. `kv_a` makes a latent vector, then the elements that rotate.
    """

    q: W | None = optional(
        column("direct_query_features", "hidden_size", group=Fusion.QKV, adaptable=True)
    )
    q_a: W | None = optional(whole("latent_query_rank", "hidden_size", group=Fusion.QKV))
    q_norm: W | None = optional(whole("latent_query_rank"))
    q_b: W | None = optional(column("latent_query_features", "latent_query_rank", adaptable=True))
    kv_a: W = field(metadata=whole("latent_features", "hidden_size", group=Fusion.QKV))
    kv_norm: W = field(metadata=whole("latent_rank"))
    # Of each head: what takes a query into the latent space, and a result out of it.
    k_b: W = field(metadata=column("num_heads", "latent_rank", "latent_plain_dim"))
    v_b: W = field(metadata=column("num_heads", "latent_value_dim", "latent_rank"))
    output: W = field(metadata=row("hidden_size", "latent_attended_features", adaptable=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(Generic[W]):
    """A convolution between two gates (Liquid AI 2025, arXiv:2511.23404).

    With b, c and x of `input`, one after the other by rows, it gives output(c * filter(b * x)).
    """

    input: W = field(metadata=column("gated_features", "hidden_size"))
    # Of each channel, the last for the newest input.
    filter: W = field(metadata=column("convolved_features", "convolution_width"))
    output: W = field(metadata=row("hidden_size", "convolved_features"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet(Generic[W]):
    """Gated DeltaNet; see `DeltaConfig`."""

    # Queries, keys and values.
    mixed: W = field(metadata=column("convolved_features", "hidden_size", group=Fusion.QKV))
    gate: W = field(metadata=column("delta_value_features", "hidden_size", group=Fusion.QKV))
    # How much is forgotten, and how much is learnt.
    alpha: W = field(metadata=column("delta_value_heads", "hidden_size", group=Fusion.QKV))
    beta: W = field(metadata=column("delta_value_heads", "hidden_size", group=Fusion.QKV))
    decay: W = field(metadata=column("delta_value_heads"))  # below 0
    time_offset: W = field(metadata=column("delta_value_heads"))
    filter: W = field(metadata=column("convolved_features", "convolution_width"))
    norm: W = field(metadata=whole("delta_value_dim"))
    output: W = field(metadata=row("hidden_size", "delta_value_features"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba(Generic[W]):
    """Mamba-2; see `MambaConfig`."""

    # Gates, inputs of all heads, B and C of all groups, and steps in time, one after the other.
    input: W = field(metadata=column("mamba_input_features", "hidden_size"))
    filter: W = field(metadata=column("convolved_features", "convolution_width"))
    filter_bias: W | None = optional(column("convolved_features"))
    decay: W = field(metadata=column("mamba_heads"))  # below 0
    time_offset: W = field(metadata=column("mamba_heads"))
    skip: W = field(metadata=column("mamba_heads"))  # what of an input is added to its result
    norm: W = field(metadata=column("mamba_inner_features"))
    output: W = field(metadata=row("hidden_size", "mamba_inner_features"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward(Generic[W]):
    """A network of two matrices, or of three where it is gated."""

    gate: W | None = optional(
        column("intermediate_size", "hidden_size", group=Fusion.GATE_UP, adaptable=True)
    )
    up: W = field(
        metadata=column("intermediate_size", "hidden_size", group=Fusion.GATE_UP, adaptable=True)
    )
    # Of towers, and of networks without a gate.
    gate_bias: W | None = optional(column("intermediate_size"))
    up_bias: W | None = optional(column("intermediate_size"))
    down: W = field(metadata=row("hidden_size", "intermediate_size", adaptable=True))
    down_bias: W | None = optional(row("hidden_size"))
    # Of towers: see `LayerConfig.bounds`.
    gate_bounds: W | None = optional(whole("bounds"))
    up_bounds: W | None = optional(whole("bounds"))
    down_bounds: W | None = optional(whole("bounds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExpert(Generic[W]):
    """The network beside the experts, which every token passes; files may call it several."""

    gate: W | None = optional(
        column("shared_intermediate_size", "hidden_size", group=Fusion.GATE_UP, adaptable=True)
    )
    up: W = field(
        metadata=column(
            "shared_intermediate_size", "hidden_size", group=Fusion.GATE_UP, adaptable=True
        )
    )
    down: W = field(metadata=row("hidden_size", "shared_intermediate_size", adaptable=True))
    # Its product with what the network reads is, after a sigmoid, the weight of the result.
    router: W | None = optional(whole("hidden_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Generic[W]):
    """Networks of which each token passes a few, and what chooses them.

    Where a layer has a feed-forward network, too, each of the two has norms of its own before and
    behind it, and so has the router before it. Files have that of the router times
    sqrt(hidden_size).
    """

    norm: W | None = optional(whole("hidden_size"))
    post_norm: W | None = optional(whole("hidden_size"))
    dense_post_norm: W | None = optional(whole("hidden_size"))
    router_norm: W | None = optional(whole("hidden_size"))
    router: W = field(metadata=whole("num_experts", "hidden_size"))
    router_bias: W | None = optional(whole("num_experts"))
    # Added to the probabilities to choose experts, not to weight them (Wang et al. 2024).
    selection_bias: W | None = optional(whole("num_experts"))
    weight_scale: W | None = optional(whole("num_experts"))  # of an expert's
    gate: W | None = optional(
        expert("expert_intermediate_size", "expert_hidden_size", group=Fusion.GATE_UP)
    )
    gate_bias: W | None = optional(expert("expert_intermediate_size"))
    up: W = field(
        metadata=expert("expert_intermediate_size", "expert_hidden_size", group=Fusion.GATE_UP)
    )
    up_bias: W | None = optional(expert("expert_intermediate_size"))
    down: W = field(metadata=expert("expert_hidden_size", "expert_intermediate_size"))
    down_bias: W | None = optional(expert("expert_hidden_size"))
    # What takes a token into the space that experts read and make, and their results out of it.
    latent_down: W | None = optional(whole("expert_latent_size", "hidden_size"))
    latent_up: W | None = optional(whole("hidden_size", "expert_latent_size"))
    shared: SharedExpert[W] | None = field(metadata={BLOCK: SharedExpert})


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer(Generic[W]):
    """The matrices that bring a token's other embedding into a layer (Gemma 3n and 4).

    It adds norm(output(GELU(gate(x)) * the part of the embedding that is the layer's)).
    """

    gate: W = field(metadata=whole("per_layer_size", "hidden_size"))
    output: W = field(metadata=whole("hidden_size", "per_layer_size"))
    norm: W = field(metadata=whole("hidden_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Merger(Generic[W]):
    """A projector behind an inner layer of a tower (Meng et al. 2024, arXiv:2406.04334).

    Its rows are for an inner layer of the model beside it. The norm is of several patches together.
    """

    norm: W = field(metadata=whole("merger_features"))
    norm_bias: W = field(metadata=whole("merger_features"))
    inner: W = field(metadata=whole("merger_features", "merger_features"))
    inner_bias: W = field(metadata=whole("merger_features"))
    matrix: W = field(metadata=whole("row_features", "merger_features"))
    matrix_bias: W = field(metadata=whole("row_features"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(Generic[W]):
    """Attention or states, a feed-forward network or experts, and the norms around them.

    `attention_norm` and `feed_forward_norm` stand before their part or, unless
    `ModelConfig.pre_norm`, behind it; the post norms behind parts that have a norm before them, or
    none at all. Where all layers have one part only, its norm is `attention_norm`.
    """

    attention_norm: W | None = optional(whole("hidden_size"))
    attention_norm_bias: W | None = optional(whole("hidden_size"))
    attention: Attention[W] | None = optional({BLOCK: Attention})
    latent: LatentAttention[W] | None = optional({BLOCK: LatentAttention})
    convolution: ShortConvolution[W] | None = optional({BLOCK: ShortConvolution})
    delta: DeltaNet[W] | None = optional({BLOCK: DeltaNet})
    mamba: Mamba[W] | None = optional({BLOCK: Mamba})
    # Of what the layer reads plus the other norm.
    attention_norm_2: W | None = optional(whole("hidden_size"))
    attention_norm_2_bias: W | None = optional(whole("hidden_size"))
    attention_post_norm: W | None = optional(whole("hidden_size"))
    feed_forward_norm: W | None = optional(whole("hidden_size"))
    feed_forward_norm_bias: W | None = optional(whole("hidden_size"))
    feed_forward: FeedForward[W] | None = field(metadata={BLOCK: FeedForward})
    experts: Experts[W] | None = field(metadata={BLOCK: Experts})
    feed_forward_post_norm: W | None = optional(whole("hidden_size"))
    per_layer: PerLayer[W] | None = optional({BLOCK: PerLayer})
    # Of what attention and the network add (Touvron et al. 2021, arXiv:2103.17239): see `folding`.
    attention_scale: W | None = optional(whole("hidden_size"))
    feed_forward_scale: W | None = optional(whole("hidden_size"))
    output_scale: W | None = optional(whole("scalar"))  # of all it results in
    merger: Merger[W] | None = optional({BLOCK: Merger})


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Generic[W]):
    """The tables whose rows are added up for a token, and the norm of the sum."""

    token: W = field(metadata=whole("vocab_size", "hidden_size"))
    # Of a tower, what stands for a patch that is none, which belongs to the table's first row: see
    # `folding`.
    class_token: W | None = optional(whole("hidden_size"))
    position: W | None = optional(whole("max_context", "hidden_size"))
    type: W | None = optional(whole("num_token_types", "hidden_size"))
    norm: W | None = optional(whole("hidden_size"))
    norm_bias: W | None = optional(whole("hidden_size"))
    # A token's other embedding, a part for each layer: of a table, and of the usual embedding.
    per_layer: W | None = optional(whole("vocab_size", "per_layer_features"))
    per_layer_projection: W | None = optional(whole("per_layer_features", "hidden_size"))
    per_layer_norm: W | None = optional(whole("per_layer_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Generic[W]):
    """The classification head: scores(tanh(dense(state))) of the first token's hidden state."""

    dense: W | None = optional(whole("hidden_size", "hidden_size"))
    dense_bias: W | None = optional(whole("hidden_size"))
    scores: W = field(metadata=whole("num_scores", "hidden_size"))
    scores_bias: W | None = optional(whole("num_scores"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor(Generic[W]):
    """The part of a model that guesses further tokens, beside the last of its layers.

    That layer reads projection([norm of a token's embedding, norm of the hidden state before it])
    (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2).
    """

    embedding: W | None = optional(whole("vocab_size", "predictor_size"))
    embedding_norm: W = field(metadata=whole("predictor_size"))
    hidden_norm: W = field(metadata=whole("predictor_size"))
    projection: W = field(metadata=whole("hidden_size", "predictor_inputs"))
    output_norm: W | None = optional(whole("predictor_size"))
    output: W | None = optional(column("vocab_size", "predictor_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches(Generic[W]):
    """The matrix that a tower multiplies patches of images with, perhaps between two norms."""

    norm: W | None = optional(whole("patch_features"))
    norm_bias: W | None = optional(whole("patch_features"))
    matrix: W = field(metadata=whole("hidden_size", "patch_features"))
    bias: W | None = optional(whole("hidden_size"))
    output_norm: W | None = optional(whole("hidden_size"))
    output_norm_bias: W | None = optional(whole("hidden_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector(Generic[W]):
    """The end of a tower: the way from its hidden states to the embeddings of the model beside it.

    It multiplies those of several patches side by side, perhaps with a matrix and GELU before it
    and with another one or a norm before that, or the norm by root mean square of their mean.
    """

    norm: W | None = optional(whole("hidden_size"))
    # Of sums that are standardised before that norm: what is added, and what multiplies them then.
    shift: W | None = optional(whole("hidden_size"))
    scale: W | None = optional(whole("hidden_size"))
    row_norm: W | None = optional(whole("merged_features"))
    row_norm_bias: W | None = optional(whole("merged_features"))
    merger: W | None = optional(whole("hidden_size", "merged_features"))
    inner: W | None = optional(whole("projected_features", "projector_inputs"))
    inner_bias: W | None = optional(whole("projected_features"))
    matrix: W = field(metadata=whole("row_features", "projected_features"))
    matrix_bias: W | None = optional(whole("row_features"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights(Generic[W]):
    """All weights of a model."""

    # Of a tower: its tokens are the places of patches in their tile.
    embedding: Embedding[W] = field(metadata={BLOCK: Embedding})
    patches: Patches[W] | None = optional({BLOCK: Patches})
    layers: tuple[Layer[W], ...] = field(metadata={LAYERS: Layer})
    output_norm: W | None = optional(whole("hidden_size"))
    output_norm_bias: W | None = optional(whole("hidden_size"))
    # That of a model without a matrix of its own is `embedding.token` itself.
    output: W | None = optional(column("vocab_size", "hidden_size"))
    # Makes what embeddings are of, of the hidden states of an encoder that has more behind them.
    dense: W | None = optional(whole("hidden_size", "hidden_size"))
    head: Head[W] | None = optional({BLOCK: Head})
    predictor: Predictor[W] | None = optional({BLOCK: Predictor})
    projector: Projector[W] | None = optional({BLOCK: Projector})
