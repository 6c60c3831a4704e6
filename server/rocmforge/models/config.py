"""The configuration of a model: made once from a file, read by everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope_config import RopeConfig

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


class NormKind(StrEnum):
    """The norm of hidden states."""

    RMS = "rms"  # Zhang and Sennrich 2019
    LAYER = "layer"  # Ba et al. 2016


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
    # Of a norm of the features of a row's patches, or of their mean.
    row_norm_eps: float = 1e-5
    patch_norm_eps: float = 0.0  # of a norm of the numbers of a patch, if there is one
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


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Returns the slope of each head (Press et al. 2022).

    Those of a power of two n of heads are 2^(-8/n), 2^(-16/n), ... Heads beyond such a power have
    every other slope of twice as many.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return (*slopes, *between)
