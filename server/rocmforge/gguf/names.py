"""The names that GGUF gives to tensors, and the weights of ours that each holds.

A file may fuse several weights in one tensor, one after the other by rows. Files of one
architecture may do so in several ways.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

FREQUENCY_FACTORS: Final = "rope_freqs.weight"
LONG_FACTORS: Final = "rope_factors_long.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
"""Divisors of the rope frequencies; see `models.rope`."""
SCORES: Final = "cls.output.weight"
"""The matrix [scores, hidden_size] of a classification head."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """A tensor, and the weights that its rows fill, in this order."""

    name: str  # in the file; in a layer, after "blk.N."
    weights: tuple[str, ...]  # as `Checkpoint.weights` calls them; in a layer, after "layers.N."


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """The tensors of an architecture.

    `variants` are rules that come on top of `layer`, each set with the tensor of the first layer
    that tells it; the first found is taken.
    """

    model: tuple[TensorRule, ...]  # outside the layers
    layer: tuple[TensorRule, ...]
    variants: tuple[tuple[str, tuple[TensorRule, ...]], ...] = ()

    def rules_of_layer(self, tensors: Container[str], layer: int) -> tuple[TensorRule, ...]:
        """Returns the rules of one layer of a file with these tensors, with names as in the file.

        Args:
            tensors: The names of all tensors of the file.
            layer: The index of the layer.
        """
        rules = self.layer
        if self.variants:
            found = [own for name, own in self.variants if f"blk.0.{name}" in tensors]
            rules += (found or [self.variants[-1][1]])[0]
        return tuple(
            TensorRule(
                f"blk.{layer}.{rule.name}",
                tuple(f"layers.{layer}.{weight}" for weight in rule.weights),
            )
            for rule in rules
        )


_DECODER: Final = (
    TensorRule("token_embd.weight", ("embedding.token",)),
    TensorRule("output_norm.weight", ("output_norm",)),
)
_OUTPUT: Final = (TensorRule("output.weight", ("output",)),)
_ATTENTION: Final = (
    TensorRule("attn_norm.weight", ("attention_norm",)),
    TensorRule("attn_q.weight", ("attention.q",)),
    TensorRule("attn_k.weight", ("attention.k",)),
    TensorRule("attn_v.weight", ("attention.v",)),
    TensorRule("attn_output.weight", ("attention.output",)),
)
_FUSED_ATTENTION: Final = (
    TensorRule("attn_norm.weight", ("attention_norm",)),
    TensorRule("attn_qkv.weight", ("attention.q", "attention.k", "attention.v")),
    TensorRule("attn_output.weight", ("attention.output",)),
)
_BIASES: Final = (
    TensorRule("attn_q.bias", ("attention.q_bias",)),
    TensorRule("attn_k.bias", ("attention.k_bias",)),
    TensorRule("attn_v.bias", ("attention.v_bias",)),
    TensorRule("attn_output.bias", ("attention.output_bias",)),
)
_HEAD_NORMS: Final = (
    TensorRule("attn_q_norm.weight", ("attention.q_norm",)),
    TensorRule("attn_k_norm.weight", ("attention.k_norm",)),
)
_FFN: Final = (
    TensorRule("ffn_norm.weight", ("feed_forward_norm",)),
    TensorRule("ffn_gate.weight", ("feed_forward.gate",)),
    TensorRule("ffn_up.weight", ("feed_forward.up",)),
    TensorRule("ffn_down.weight", ("feed_forward.down",)),
)
_FUSED_FFN: Final = (
    TensorRule("ffn_norm.weight", ("feed_forward_norm",)),
    TensorRule("ffn_up.weight", ("feed_forward.gate", "feed_forward.up")),
    TensorRule("ffn_down.weight", ("feed_forward.down",)),
)
_POST_NORMS: Final = (
    TensorRule("post_attention_norm.weight", ("attention_post_norm",)),
    TensorRule("post_ffw_norm.weight", ("feed_forward_post_norm",)),
)


_TOKENS: Final = (
    TensorRule("token_embd.weight", ("embedding.token",)),
    TensorRule("token_embd_norm.weight", ("embedding.norm",)),
)
_BERT_TOKENS: Final = (
    *_TOKENS,
    TensorRule("token_embd_norm.bias", ("embedding.norm_bias",)),
    TensorRule("token_types.weight", ("embedding.type",)),
)
_BERT_ATTENTION: Final = (
    TensorRule("attn_q.weight", ("attention.q",)),
    TensorRule("attn_q.bias", ("attention.q_bias",)),
    TensorRule("attn_k.weight", ("attention.k",)),
    TensorRule("attn_k.bias", ("attention.k_bias",)),
    TensorRule("attn_v.weight", ("attention.v",)),
    TensorRule("attn_v.bias", ("attention.v_bias",)),
    TensorRule("attn_output.weight", ("attention.output",)),
    TensorRule("attn_output.bias", ("attention.output_bias",)),
)
_JINA_CODE_NORMS: Final = (
    TensorRule("attn_q_norm.weight", ("attention.q_norm",)),
    TensorRule("attn_q_norm.bias", ("attention.q_norm_bias",)),
    TensorRule("attn_k_norm.weight", ("attention.k_norm",)),
    TensorRule("attn_k_norm.bias", ("attention.k_norm_bias",)),
    TensorRule("attn_norm_2.weight", ("attention_norm_2",)),
    TensorRule("attn_norm_2.bias", ("attention_norm_2_bias",)),
)
_BERT_NORMS: Final = (
    TensorRule("attn_output_norm.weight", ("attention_norm",)),
    TensorRule("attn_output_norm.bias", ("attention_norm_bias",)),
    TensorRule("layer_output_norm.weight", ("feed_forward_norm",)),
    TensorRule("layer_output_norm.bias", ("feed_forward_norm_bias",)),
)
HEAD: Final = (
    TensorRule(SCORES, ("head.scores",)),
    TensorRule("cls.output.bias", ("head.scores_bias",)),
    TensorRule("cls.weight", ("head.dense",)),
    TensorRule("cls.bias", ("head.dense_bias",)),
)
"""Of models that rank, whatever they are."""

NAMES: Final[Mapping[str, TensorNames]] = MappingProxyType(
    {
        "llama": TensorNames(model=_DECODER + _OUTPUT, layer=_ATTENTION + _BIASES + _FFN),
        "qwen2": TensorNames(model=_DECODER + _OUTPUT, layer=_ATTENTION + _BIASES + _FFN),
        "qwen3": TensorNames(
            model=_DECODER + _OUTPUT, layer=_ATTENTION + _BIASES + _HEAD_NORMS + _FFN
        ),
        "gemma2": TensorNames(model=_DECODER, layer=_ATTENTION + _POST_NORMS + _FFN),
        "gemma3": TensorNames(
            model=_DECODER + _OUTPUT, layer=_ATTENTION + _HEAD_NORMS + _POST_NORMS + _FFN
        ),
        "phi3": TensorNames(model=_DECODER + _OUTPUT, layer=_FUSED_ATTENTION + _FUSED_FFN),
        "glm4": TensorNames(
            model=_DECODER + _OUTPUT, layer=_ATTENTION + _BIASES + _POST_NORMS + _FUSED_FFN
        ),
        "bert": TensorNames(
            model=(*_BERT_TOKENS, TensorRule("position_embd.weight", ("embedding.position",))),
            layer=(
                *_BERT_ATTENTION,
                TensorRule("ffn_up.weight", ("feed_forward.up",)),
                TensorRule("ffn_up.bias", ("feed_forward.up_bias",)),
                TensorRule("ffn_down.weight", ("feed_forward.down",)),
                TensorRule("ffn_down.bias", ("feed_forward.down_bias",)),
                *_BERT_NORMS,
            ),
        ),
        "nomic-bert": TensorNames(
            model=_BERT_TOKENS,
            layer=(
                TensorRule("attn_qkv.weight", ("attention.q", "attention.k", "attention.v")),
                TensorRule("attn_output.weight", ("attention.output",)),
                TensorRule("ffn_gate.weight", ("feed_forward.gate",)),
                TensorRule("ffn_up.weight", ("feed_forward.up",)),
                TensorRule("ffn_down.weight", ("feed_forward.down",)),
                *_BERT_NORMS,
            ),
        ),
        "modern-bert": TensorNames(
            model=(*_TOKENS, TensorRule("output_norm.weight", ("output_norm",))),
            layer=(
                TensorRule("attn_norm.weight", ("attention_norm",)),
                TensorRule("attn_qkv.weight", ("attention.q", "attention.k", "attention.v")),
                TensorRule("attn_output.weight", ("attention.output",)),
                TensorRule("ffn_norm.weight", ("feed_forward_norm",)),
                TensorRule("ffn_up.weight", ("feed_forward.gate", "feed_forward.up")),
                TensorRule("ffn_down.weight", ("feed_forward.down",)),
            ),
        ),
        "jina-bert-v2": TensorNames(
            model=_BERT_TOKENS,
            layer=(
                *_BERT_ATTENTION,
                *_JINA_CODE_NORMS,
                TensorRule("ffn_down.weight", ("feed_forward.down",)),
                TensorRule("ffn_down.bias", ("feed_forward.down_bias",)),
                *_BERT_NORMS,
            ),
            variants=(
                (
                    "ffn_gate.weight",  # files of older converters
                    (
                        TensorRule("ffn_gate.weight", ("feed_forward.gate",)),
                        TensorRule("ffn_up.weight", ("feed_forward.up",)),
                    ),
                ),
                # The model for code has the gate last; llama.cpp takes it to be first there, too.
                (
                    "attn_q_norm.weight",
                    (TensorRule("ffn_up.weight", ("feed_forward.up", "feed_forward.gate")),),
                ),
                (
                    "ffn_up.weight",
                    (TensorRule("ffn_up.weight", ("feed_forward.gate", "feed_forward.up")),),
                ),
            ),
        ),
    }
)
"""By GGUF's `general.architecture`."""
