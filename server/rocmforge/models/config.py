"""The configuration of a model: made once from a file, read by everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from rocmforge.models.pooling import PoolingType

MAX_LAYERS: Final = 1000
"""More than any model has; a number from a file alone must not decide how much is computed."""


class ActivationFunction(StrEnum):
    """The function that a feed-forward network applies to its gate, or without one to its `up`."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU = "gelu"  # with the error function
    QUICK_GELU = "quick_gelu"  # with a sigmoid; of towers whose networks have no gate
    CLAMPED_SWIGLU = "clamped_swiglu"  # of gpt-oss: it changes the other factor, too
    SQUARED_RELU = "squared_relu"  # So et al. 2021; of networks without a gate


ACTIVATIONS: Final[Mapping[str, ActivationFunction]] = MappingProxyType(
    {
        "gelu": ActivationFunction.GELU,
        "gelu_pytorch_tanh": ActivationFunction.GELU_TANH,
        "gelu_new": ActivationFunction.GELU_TANH,
        "silu": ActivationFunction.SILU,
        "swish": ActivationFunction.SILU,
    }
)
"""By the names of Transformers, which files repeat."""


class RopeStyle(StrEnum):
    """The choice of the elements of a head that rotate together in pairs."""

    NORMAL = "normal"  # (0, 1), (2, 3), ...: GGUF's layout for Llama
    NEOX = "neox"  # (i, i + rotary_dim / 2)


class PositionAxes(StrEnum):
    """The order in which the pairs of a head belong to the axes of positions: time, row, column."""

    SECTIONS = (
        "sections"  # all of an axis, then all of the next: Wang et al. 2024, arXiv:2409.12191
    )
    INTERLEAVED = "interleaved"  # in turn, while rows and columns have some; then those of time


class RopeScalingKind(StrEnum):
    """The method by which a model reaches beyond its training context."""

    LINEAR = "linear"
    YARN = "yarn"  # Peng et al. 2023, arXiv:2309.00071
    LONGROPE = "longrope"  # Ding et al. 2024, arXiv:2402.13753; its factors are tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Context extension from the file's `rope.scaling.*` keys."""

    kind: RopeScalingKind
    factor: float
    original_context: int
    attention_factor: float = 1.0  # multiplies cos and sin
    extrapolation_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    rounds_bounds: bool = True  # YaRN's ramp begins and ends at a pair
    # Queries are multiplied by 1 + temperature * ln(1 + floor(position / original_context)).
    temperature: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021)."""

    style: RopeStyle
    rotary_dim: int  # leading elements of each head that rotate; the rest pass through
    theta: float
    scaling: RopeScaling | None
    # Of each pair, the axis of positions that turns it; empty: a position is one number. To text,
    # all axes are alike.
    axes: tuple[int, ...] = ()
    axes_restart: bool = False  # the pairs of each axis have the frequencies of a head of their own
    # Then the frequencies of an axis are so many pairs further than those of the axis before it.
    axes_shift: float = 0.0


class NormKind(StrEnum):
    """The norm of hidden states."""

    RMS = "rms"  # Zhang and Sennrich 2019
    LAYER = "layer"  # Ba et al. 2016


class RouterFunction(StrEnum):
    """The function that makes probabilities of a router's logits."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SOFTMAX_OF_CHOSEN = "softmax_of_chosen"  # experts are chosen by their logits


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """The experts of a layer, and how those of a token are chosen and weighted."""

    num_experts: int
    num_chosen: int  # by each token
    intermediate_size: int  # of an expert
    shared_intermediate_size: int = 0  # of the network that every token passes; 0: there is none
    latent_size: int = 0  # features that experts read and make; 0: those of the model
    router: RouterFunction
    num_groups: int = 1  # of equally many experts
    num_chosen_groups: int = 1  # a token's experts are of so many
    normalised: bool  # the weights of a token's experts are divided by their sum
    scale: float = 1.0  # then multiplies them

    def share_chosen(self, tokens: int) -> float:
        """Returns the share of experts that so many tokens choose, if each chooses any."""
        return 1 - (1 - self.num_chosen / self.num_experts) ** tokens

    def problem(self) -> tuple[str, str] | None:
        """Returns the field whose number cannot be, and why; None if all can."""
        members, left = divmod(self.num_experts, self.num_groups)
        if left:
            return (
                "num_groups",
                f"{self.num_groups} groups do not divide {self.num_experts} experts",
            )
        if self.num_chosen_groups > self.num_groups:
            return "num_chosen_groups", f"{self.num_chosen_groups} of {self.num_groups} groups"
        if self.num_chosen > self.num_chosen_groups * members:
            candidates = self.num_chosen_groups * members
            return "num_chosen", f"{self.num_chosen} experts of a token, of {candidates}"
        if not 0 < self.scale < math.inf:
            return "scale", f"{self.scale} is no factor"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1).

    A token's cache has one row for all heads: the elements that rotate, then its latent vector. To
    heads this is one key, and the latent vector its value, since what makes keys and values of it
    is multiplied into queries and results instead.
    """

    query_rank: int  # features between the two matrices of queries; 0: there is one matrix
    rank: int  # elements of a latent vector
    rotary_dim: int  # elements that rotate; those of a key are shared by all heads
    plain_dim: int  # elements of a head's query, and of its key before it was absorbed, that do not
    value_dim: int  # elements of a head's value


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionConfig:
    """A causal convolution of each channel for itself, over its last inputs.

    Between steps, a layer remembers all of those but the newest: a state of fixed size.
    """

    channels: int
    width: int  # inputs that a result is of


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464): a matrix for each head of values.

    It maps keys to values, forgets a part with each token, and learns the difference between a
    token's value and what it has for its key.
    """

    num_key_heads: int  # of queries, too
    num_value_heads: int
    key_dim: int
    value_dim: int
    # The key head of value head v: v modulo the key heads, or else each has as many one by one.
    is_tiled: bool = False

    @property
    def key_features(self) -> int:
        """Keys of all heads, or queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_features(self) -> int:
        """Values of all heads."""
        return self.num_value_heads * self.value_dim

    @property
    def mixed_features(self) -> int:
        """Queries, keys and values of all heads, in this order."""
        return 2 * self.key_features + self.value_features

    def problem(self) -> tuple[str, str] | None:
        """Returns the field whose number cannot be, and why; None if all can."""
        if self.num_value_heads % self.num_key_heads:
            return "num_value_heads", f"{self.num_key_heads} key heads do not divide them"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig:
    """Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a matrix for each head, which fades.

    A token adds the product of its input and what it has for all heads of a group (B), and reads
    the sum with something else of this kind (C).
    """

    num_heads: int
    head_dim: int
    num_groups: int  # of as many heads, one after the other
    state_size: int
    norm_eps: float  # of the norm of the results

    @property
    def inner_features(self) -> int:
        """Inputs of all heads, or results."""
        return self.num_heads * self.head_dim

    @property
    def mixed_features(self) -> int:
        """Inputs of all heads, then B and C of all groups: what is convolved."""
        return self.inner_features + 2 * self.num_groups * self.state_size

    @property
    def input_features(self) -> int:
        """Gates, what is convolved, and a step in time of each head."""
        return self.inner_features + self.mixed_features + self.num_heads

    def problem(self) -> str | None:
        """Returns why the number of heads cannot be; None if it can."""
        if self.num_heads % self.num_groups:
            return f"{self.num_groups} groups do not divide {self.num_heads} heads"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """The sizes of one layer, and what its attention sees.

    A layer has attention or something that remembers states in its place; then heads have size 0.
    It may also have one of these and no network, or a network alone.
    """

    num_heads: int  # of queries
    num_kv_heads: int
    key_dim: int  # elements of a head of queries and keys
    value_dim: int  # elements of a head of values
    attention_scale: float  # of query times key
    window: int | None  # a token sees itself and window - 1 before it, unless causal also after it
    tile_windows: bool = False  # of a tower: patches see those of their square of the tile alone
    local_rope: bool  # rotates as `ModelConfig.local_rope` says
    rotates: bool = True  # queries and keys do, if `ModelConfig.rope` says how
    intermediate_size: int  # 0: it has experts only, or no network
    experts: ExpertsConfig | None = None
    joint_head_norms: bool = False  # norms of queries and keys, if any, are of all heads together
    rotates_first: bool = False  # rope comes before those norms
    norms_values: bool = False  # each head, by root mean square, without a weight
    # The layer whose keys and values it reads; then it has none, and no heads of them.
    cache_of: int | None = None
    # Then heads have the sizes with which they attend: keys are rows of the cache, of which values
    # are the end.
    latent: LatentConfig | None = None
    convolution: ConvolutionConfig | None = None
    # Features that rows of embeddings for an inner layer of the model beside a tower are made of;
    # 0: there are none from here.
    merger_features: int = 0
    delta: DeltaConfig | None = None  # behind the convolution
    mamba: MambaConfig | None = None  # behind the convolution

    @property
    def convolved_features(self) -> int:
        """Channels of the convolution, 0 if there is none."""
        return 0 if self.convolution is None else self.convolution.channels

    @property
    def convolution_width(self) -> int:
        """Inputs that a result of the convolution is of."""
        return 0 if self.convolution is None else self.convolution.width

    @property
    def gated_features(self) -> int:
        """The inputs of a short convolution and both of its gates."""
        return 3 * self.convolved_features

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of a sequence's states, which are float32; none of a layer with attention."""
        if self.convolution is None:
            return ()
        inputs = (self.convolution.channels, self.convolution.width - 1)
        if (delta := self.delta) is not None:
            return (inputs, (delta.num_value_heads, delta.key_dim, delta.value_dim))
        if (mamba := self.mamba) is not None:
            return (inputs, (mamba.num_heads, mamba.head_dim, mamba.state_size))
        return (inputs,)

    @property
    def mamba_input_features(self) -> int:
        """Everything that Mamba-2 makes of a token at first, 0 if there is none."""
        return 0 if self.mamba is None else self.mamba.input_features

    @property
    def mamba_inner_features(self) -> int:
        """Results of all of its heads."""
        return 0 if self.mamba is None else self.mamba.inner_features

    @property
    def mamba_heads(self) -> int:
        """Its heads."""
        return 0 if self.mamba is None else self.mamba.num_heads

    @property
    def delta_value_features(self) -> int:
        """Values of all heads of Gated DeltaNet, 0 if there is none."""
        return 0 if self.delta is None else self.delta.value_features

    @property
    def delta_value_heads(self) -> int:
        """Its heads of values."""
        return 0 if self.delta is None else self.delta.num_value_heads

    @property
    def delta_value_dim(self) -> int:
        """Elements of such a head."""
        return 0 if self.delta is None else self.delta.value_dim

    @property
    def query_features(self) -> int:
        """Queries of all heads."""
        return self.num_heads * self.key_dim

    @property
    def key_features(self) -> int:
        """Keys of all heads."""
        return self.num_kv_heads * self.key_dim

    @property
    def value_features(self) -> int:
        """Values of all heads."""
        return self.num_kv_heads * self.value_dim

    @property
    def cached_features(self) -> int:
        """Elements of keys and values that the cache has of a token."""
        return self.key_features + (0 if self.latent else self.value_features)

    @property
    def query_norm_features(self) -> int:
        """The elements that a norm of queries is of."""
        return self.query_features if self.joint_head_norms else self.key_dim

    @property
    def key_norm_features(self) -> int:
        """The elements that a norm of keys is of, 0 if it has no keys."""
        if self.cache_of is not None:
            return 0
        return self.key_features if self.joint_head_norms else self.key_dim

    @property
    def attended_features(self) -> int:
        """Results of attention, of all heads."""
        return self.num_heads * self.value_dim

    @property
    def latent_features(self) -> int:
        """Elements of a row of the cache, 0 if there is no latent vector in it."""
        return self.key_dim if self.latent else 0

    @property
    def latent_rank(self) -> int:
        """Elements of a latent vector, 0 if there is none."""
        return self.latent.rank if self.latent else 0

    @property
    def latent_plain_dim(self) -> int:
        """Elements of a head's query that do not rotate."""
        return self.latent.plain_dim if self.latent else 0

    @property
    def latent_value_dim(self) -> int:
        """Elements of a head's value, of which the latent vector is another form."""
        return self.latent.value_dim if self.latent else 0

    @property
    def latent_query_features(self) -> int:
        """Queries of all heads before they are multiplied into the latent space."""
        return (
            self.num_heads * (self.latent.rotary_dim + self.latent.plain_dim) if self.latent else 0
        )

    @property
    def latent_query_rank(self) -> int:
        """Features between the two matrices of queries, 0 if there is one."""
        return self.latent.query_rank if self.latent else 0

    @property
    def direct_query_features(self) -> int:
        """Queries of all heads from one matrix, 0 if there are two."""
        return 0 if self.latent_query_rank else self.latent_query_features

    @property
    def latent_attended_features(self) -> int:
        """Results of attention of all heads, as values."""
        return self.num_heads * self.latent_value_dim

    @property
    def scalar(self) -> int:
        """The elements of a factor."""
        return 1

    @property
    def num_experts(self) -> int:
        """Experts, 0 if it has none."""
        return 0 if self.experts is None else self.experts.num_experts

    @property
    def expert_intermediate_size(self) -> int:
        """Features within an expert."""
        return 0 if self.experts is None else self.experts.intermediate_size

    @property
    def shared_intermediate_size(self) -> int:
        """Features within the network beside the experts."""
        return 0 if self.experts is None else self.experts.shared_intermediate_size


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig:
    """The ends of a network that makes rows of embeddings of images."""

    patch_features: int  # numbers of a patch
    merged: int  # patches of a row, which follow each other
    averages: bool = False  # a row is made of the mean of their hidden states, not of each
    embedding_size: int  # elements of a row: the hidden size of the model beside it
    # Places of a side of the square that its table of positions is for, between which patches lie;
    # 0: each patch has a row of its own.
    places: int = 0
    row_norm_eps: float = 1e-5  # of a norm of the features of a row's patches
    merges_first: bool = False  # one matrix makes the features of one patch of those of a row
    inner_size: int = 0  # features between the last matrices; 0: those of a row's patches


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything about a transformer except its weights."""

    architecture: str  # GGUF's general.architecture
    name: str
    causal: bool  # a token sees none after it, and has a cache; False: sees its prompt
    hidden_size: int
    vocab_size: int
    num_token_types: int = 0  # rows of the table of types; 0: there is none
    max_context: int  # tokens, as trained (or as extended by rope scaling)
    layers: tuple[LayerConfig, ...]
    norm: NormKind
    norm_eps: float
    post_norm_eps: float | None = None  # of post norms, where it is another one
    pre_norm: bool  # norms are before each part of a layer and after the last, not after each part
    rope: RopeConfig | None  # None: positions are rows of a table, or distances
    local_rope: RopeConfig | None = None  # of the layers that say so; never scaled
    has_alibi: bool = False  # scores lose something for each token between query and key
    activation: ActivationFunction
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_scale: float = 1.0  # multiplies the logits
    embedding_scale: float = 1.0
    per_layer_size: int = 0  # elements of a token's other embedding that a layer has; 0: none
    pooling: PoolingType  # what it was trained for; NONE of decoders whose file does not say
    num_scores: int = 0  # of the classification head
    predicts: bool = False  # the last of the layers is that of its predictor
    # Layers, from the first, behind which rows of images are added that a tower made for them.
    deepstack: int = 0
    tower: TowerConfig | None = None  # then its tokens are the places of patches in their tile

    @property
    def patch_features(self) -> int:
        """Numbers of a patch of an image; 0: it is no tower."""
        return 0 if self.tower is None else self.tower.patch_features

    @property
    def merged_features(self) -> int:
        """Features that a tower makes a row of embeddings of; 0: it is none."""
        if self.tower is None:
            return 0
        return self.hidden_size * (1 if self.tower.averages else self.tower.merged)

    @property
    def projector_inputs(self) -> int:
        """Features that the first of the last matrices of a tower reads; 0: it is none."""
        first = self.tower is not None and self.tower.merges_first
        return self.hidden_size if first else self.merged_features

    @property
    def projected_features(self) -> int:
        """Features that the last matrix of a tower reads; 0: it is none."""
        return (0 if self.tower is None else self.tower.inner_size) or self.merged_features

    @property
    def row_features(self) -> int:
        """Elements of a row of embeddings that a tower makes for one layer; 0: it is none."""
        return 0 if self.tower is None else self.tower.embedding_size

    @property
    def row_parts(self) -> int:
        """Layers of the model beside a tower that its rows of embeddings are for."""
        return 1 + sum(layer.merger_features > 0 for layer in self.layers)

    @property
    def predictor_size(self) -> int:
        """Elements of a hidden state in the predictor; 0: there is none."""
        return self.hidden_size if self.predicts else 0

    @property
    def predictor_inputs(self) -> int:
        """Elements of an embedding and a hidden state side by side, in the predictor."""
        return 2 * self.predictor_size

    @property
    def expert_latent_size(self) -> int:
        """Features that experts read and make in a space of their own; 0: they have none."""
        rules = [layer.experts for layer in self.layers if layer.experts is not None]
        return max((rule.latent_size for rule in rules), default=0)

    @property
    def expert_hidden_size(self) -> int:
        """Features that experts read and make."""
        return self.expert_latent_size or self.hidden_size

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def per_layer_features(self) -> int:
        """Elements of a token's other embedding, of all layers."""
        return self.num_layers * self.per_layer_size

    def kv_heads_read_by(self, layer: int) -> int:
        """Returns the heads of keys and values that a layer attends to, its own or another's."""
        own = self.layers[layer]
        return (own if own.cache_of is None else self.layers[own.cache_of]).num_kv_heads

    def rope_of(self, *, local: bool) -> RopeConfig:
        """Returns the rotation of the layers that say `local_rope`, or of the others."""
        rope = self.local_rope if local else self.rope
        assert rope is not None, "the model has no such layers"
        return rope

    @property
    def has_states(self) -> bool:
        """Whether it remembers states, which cannot be taken back to an earlier token."""
        return any(layer.state_shapes for layer in self.layers)

    @property
    def output_size(self) -> int:
        """Numbers that a step returns for each range of tokens."""
        if self.tower is not None:
            return self.tower.embedding_size * self.row_parts
        return self.num_scores or self.hidden_size


def with_predictor(config: ModelConfig) -> ModelConfig:
    """Returns the model with a predictor, whose layer is like the last one.

    Where that layer remembers states the model is returned as it is: no predictor does.
    """
    last = config.layers[-1]
    if last.state_shapes:
        return config
    return replace(config, layers=(*config.layers, last), predicts=True)


def without_predictor(config: ModelConfig) -> ModelConfig:
    """Returns the model without its predictor, if it has one."""
    if not config.predicts:
        return config
    return replace(config, layers=config.layers[:-1], predicts=False)


def layer_without_attention(
    convolution: ConvolutionConfig | None = None,
    *,
    delta: DeltaConfig | None = None,
    mamba: MambaConfig | None = None,
) -> LayerConfig:
    """Returns a layer that has states instead of attention, or nothing, without its network."""
    return LayerConfig(
        num_heads=0,
        num_kv_heads=0,
        key_dim=0,
        value_dim=0,
        attention_scale=0.0,
        window=None,
        local_rope=False,
        intermediate_size=0,
        convolution=convolution,
        delta=delta,
        mamba=mamba,
    )


def share_caches(
    layers: list[LayerConfig], windows: Sequence[int | None], count: int
) -> str | None:
    """Lets the last layers read the cache of the last one before them of their kind, in place.

    Kinds are layers with a window and without one.

    Returns:
        Why that cannot be; None if it can.
    """
    first = len(layers) - count
    if not 0 <= count < len(layers):
        return f"{count} of {len(layers)} layers"
    for index in range(first, len(layers)):
        is_local = windows[index] is not None
        before = [n for n in range(first) if (windows[n] is not None) is is_local]
        if not before:
            return f"no layer has keys and values for layer {index}"
        own = layers[index]
        if (own.key_dim, own.value_dim) != (
            layers[before[-1]].key_dim,
            layers[before[-1]].value_dim,
        ):
            return f"the heads of layer {index} are not those of layer {before[-1]}"
        layers[index] = replace(own, num_kv_heads=0, cache_of=before[-1])
    return None


def axes_of_pairs(sections: Sequence[int], order: PositionAxes) -> tuple[int, ...]:
    """Returns the axis of each pair of a head.

    Args:
        sections: Pairs of each axis.
        order: In which they stand.
    """
    if order is PositionAxes.SECTIONS:
        return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    count, axes = len(sections), [0] * sum(sections)
    for axis, pairs in enumerate(sections[1:], start=1):
        for pair in range(axis, min(pairs * count, len(axes)), count):
            axes[pair] = axis
    return tuple(axes)


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Returns the slope of each head (Press et al. 2022).

    Those of a power of two n of heads are 2^(-8/n), 2^(-16/n), ... Heads beyond such a power have
    every other slope of twice as many.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return (*slopes, *between)
