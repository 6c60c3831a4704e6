"""The configuration of a layer: its sizes, and those of what it may have in place of attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

NUM_BOUNDS: Final = 4
"""Numbers around a product: see `LayerConfig.bounds`."""


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
    # That have heads of the one group, of whose results all together the norm is.
    sharing_devices: int = 1

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
    # A token sees itself and window - 1 tokens before it, unless causal also after it.
    window: int | None = None
    tile_windows: bool = False  # of a tower: patches see those of their square of the tile alone
    local_rope: bool = False  # rotates as `ModelConfig.local_rope` says
    rotates: bool = True  # queries and keys do, if `ModelConfig.rope` says how
    intermediate_size: int  # 0: it has experts only, or no network
    experts: ExpertsConfig | None = None
    joint_head_norms: bool = False  # norms of queries and keys, if any, are of all heads together
    rotates_first: bool = False  # rope comes before those norms
    # Rows of an image that see those behind them, as `VisionConfig.both_ways` says, do so here.
    sees_ahead: bool = True
    norms_values: bool = False  # each head, by root mean square, without a weight
    # The layer whose keys and values it reads; then it has none, and no heads of them.
    cache_of: int | None = None
    # Numbers around each product, `NUM_BOUNDS` or 0 for none: the least and the most that it reads,
    # then of what it gives; beyond them, these are taken.
    bounds: int = 0
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
