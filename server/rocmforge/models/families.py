"""The families of models that we serve, and the weights that each has.

A new one is a row here, and a row of the names that a reader's files give its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """The weights that a family has, beside those that every model has, by `WeightPlace.name`."""

    has: frozenset[str]
    may_have: frozenset[str] = frozenset()
    not_in_first_layer: frozenset[str] = frozenset()


_DECODER: Final = frozenset({"attention_norm", "feed_forward.gate", "output_norm"})
_HEAD_NORMS: Final = frozenset({"attention.q_norm", "attention.k_norm"})
_POST_NORMS: Final = frozenset({"attention_post_norm", "feed_forward_post_norm"})
_OUTPUT: Final = frozenset({"output"})
_BIASES: Final = frozenset(f"attention.{part}_bias" for part in ("q", "k", "v", "output"))

_ENCODER: Final = frozenset(
    {
        *("embedding.norm", "embedding.norm_bias"),
        *("attention_norm", "attention_norm_bias", "feed_forward_norm_bias"),
    }
)
_TYPES: Final = frozenset({"embedding.type"})
_HEAD: Final = frozenset({"head.dense", "head.dense_bias", "head.scores", "head.scores_bias"})

FAMILIES: Final[Mapping[str, ModelFamily]] = MappingProxyType(
    {
        "llama": ModelFamily(has=_DECODER, may_have=_BIASES | _OUTPUT),
        "qwen2": ModelFamily(has=_DECODER, may_have=_BIASES | _OUTPUT),
        "qwen3": ModelFamily(has=_DECODER | _HEAD_NORMS, may_have=_BIASES | _OUTPUT),
        "gemma2": ModelFamily(has=_DECODER | _POST_NORMS),
        "gemma3": ModelFamily(has=_DECODER | _POST_NORMS | _HEAD_NORMS, may_have=_OUTPUT),
        "phi3": ModelFamily(has=_DECODER, may_have=_OUTPUT),
        "glm4": ModelFamily(has=_DECODER | _POST_NORMS, may_have=_BIASES | _OUTPUT),
        "bert": ModelFamily(
            has=_ENCODER | {"embedding.position"},
            may_have=_TYPES | _BIASES | _HEAD | {"feed_forward.up_bias", "feed_forward.down_bias"},
        ),
        "nomic-bert": ModelFamily(has=_ENCODER | {"feed_forward.gate"}, may_have=_TYPES | _HEAD),
        "modern-bert": ModelFamily(
            has=frozenset({"embedding.norm", "attention_norm", "feed_forward.gate", "output_norm"}),
            not_in_first_layer=frozenset({"attention_norm"}),  # the embedding's norm is there
        ),
        "jina-bert-v2": ModelFamily(
            has=_ENCODER | {"feed_forward.gate"},
            may_have=_TYPES
            | _BIASES
            | {"feed_forward.down_bias", "attention_norm_2", "attention_norm_2_bias"}
            | {"attention.q_norm", "attention.q_norm_bias"}
            | {"attention.k_norm", "attention.k_norm_bias"},
        ),
    }
)
