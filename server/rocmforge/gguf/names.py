"""The names that GGUF gives to tensors, and the weights of ours that each holds.

A file may fuse several weights in one tensor, one after the other by rows. Files of one
architecture may do so in several ways.
"""

from __future__ import annotations

import re
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
DENSE: Final = ("dense_2.weight", "dense_3.weight")
"""The matrices behind an encoder's pooling, by the folders of Sentence-Transformers."""

ONE_EXPERT: Final = (
    re.compile(r"(blk\.\d{1,4}\.ffn_(?:gate|up|down))\.(?P<expert>\d{1,4})(\.weight)"),
    r"\1_exps\3",
)
"""The matrix of one expert in older files, and what newer ones call that of all."""

LAYER: Final = re.compile(r"blk\.(\d{1,4})\.")
"""What the names of a layer's tensors begin with."""

PERMUTED: Final = frozenset(
    {"llama", "granitehybrid", "mistral3", "granite", "smollm3", "muse-glimmer"}
)
"""Architectures whose q and k have their rows in pairs that rotate together (`RopeStyle.NORMAL`).

The converter of llama.cpp reorders them. Folders have the halves of a head one after the other.
"""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """A tensor, and the weights that its rows fill, in this order."""

    name: str  # in the file; in a layer, after "blk.N."
    weights: tuple[str, ...]  # as `Checkpoint.weights` calls them; in a layer, after "layers.N."


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """The tensors of a layer of an architecture; it need not have all of them.

    `model` are rules outside the layers that hold instead of those of any architecture.
    `variants` are rules that come on top of `layer`, each set with the tensor of the first layer
    that tells it; the first found is taken.
    """

    layer: tuple[TensorRule, ...]
    model: tuple[TensorRule, ...] = ()
    variants: tuple[tuple[str, tuple[TensorRule, ...]], ...] = ()

    def rules_of_model(self) -> tuple[TensorRule, ...]:
        """Returns the rules outside the layers."""
        own = {rule.name for rule in self.model}
        return (*(rule for rule in MODEL if rule.name not in own), *self.model)

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


def _weights(*names: tuple[str, str]) -> tuple[TensorRule, ...]:
    """Returns rules for `NAME.weight` and, as `OURS_bias`, `NAME.bias`."""
    return tuple(
        TensorRule(f"{theirs}.{kind}", (f"{ours}{suffix}",))
        for theirs, ours in names
        for kind, suffix in (("weight", ""), ("bias", "_bias"))
    )


MODEL: Final = _weights(
    ("token_embd", "embedding.token"),
    ("token_embd_norm", "embedding.norm"),
    ("position_embd", "embedding.position"),
    ("token_types", "embedding.type"),
    ("output_norm", "output_norm"),
    ("output", "output"),
    ("cls", "head.dense"),
    ("cls.output", "head.scores"),
)
"""Tensors outside the layers, of any architecture."""

PREDICTOR: Final = tuple(
    TensorRule(f"nextn.{theirs}.weight", (f"predictor.{ours}",))
    for theirs, ours in (
        ("eh_proj", "projection"),
        ("enorm", "embedding_norm"),
        ("hnorm", "hidden_norm"),
        ("embed_tokens", "embedding"),
        ("shared_head_norm", "output_norm"),
        ("shared_head_head", "output"),
    )
)
"""Tensors of a predictor beside those of its layer, after "blk.N." as those are."""

_HEAD_NORMS: Final = _weights(
    ("attn_q_norm", "attention.q_norm"),
    ("attn_k_norm", "attention.k_norm"),
)
_ATTENTION: Final = _HEAD_NORMS + _weights(
    ("attn_q", "attention.q"),
    ("attn_k", "attention.k"),
    ("attn_v", "attention.v"),
    ("attn_output", "attention.output"),
)
_SINKS: Final = (TensorRule("attn_sinks.weight", ("attention.sinks",)),)
_FUSED_ATTENTION: Final = (
    TensorRule("attn_qkv.weight", ("attention.q", "attention.k", "attention.v")),
    *_weights(("attn_output", "attention.output")),
)
_LATENT: Final = (
    TensorRule("attn_kv_b.weight", ("latent.k_b", "latent.v_b")),  # of older converters
    *_weights(
        ("attn_q", "latent.q"),
        ("attn_q_a", "latent.q_a"),
        ("attn_q_a_norm", "latent.q_norm"),
        ("attn_q_b", "latent.q_b"),
        ("attn_kv_a_mqa", "latent.kv_a"),
        ("attn_kv_a_norm", "latent.kv_norm"),
        ("attn_k_b", "latent.k_b"),
        ("attn_v_b", "latent.v_b"),
        ("attn_output", "latent.output"),
    ),
)
_GATE_UP: Final = ("feed_forward.gate", "feed_forward.up")
_DOWN: Final = _weights(("ffn_down", "feed_forward.down"))
_FFN: Final = _weights(("ffn_gate", _GATE_UP[0]), ("ffn_up", _GATE_UP[1])) + _DOWN
_FUSED_FFN: Final = (TensorRule("ffn_up.weight", _GATE_UP), *_DOWN)
_EXPERTS: Final = (
    TensorRule("ffn_gate_up_exps.weight", ("experts.gate", "experts.up")),
    TensorRule("ffn_gate_up_exps.bias", ("experts.gate_bias", "experts.up_bias")),
    *_weights(
        ("ffn_gate_inp", "experts.router"),
        ("ffn_gate_exps", "experts.gate"),
        ("ffn_up_exps", "experts.up"),
        ("ffn_down_exps", "experts.down"),
        ("ffn_gate_shexp", "experts.shared.gate"),
        ("ffn_up_shexp", "experts.shared.up"),
        ("ffn_down_shexp", "experts.shared.down"),
        ("ffn_gate_inp_shexp", "experts.shared.router"),
        ("ffn_latent_down", "experts.latent_down"),
        ("ffn_latent_up", "experts.latent_up"),
    ),
    TensorRule("exp_probs_b.bias", ("experts.selection_bias",)),
)
_NORMS: Final = _weights(
    ("attn_norm", "attention_norm"),
    ("post_attention_norm", "attention_post_norm"),
    ("ffn_norm", "feed_forward_norm"),
    ("post_ffw_norm", "feed_forward_post_norm"),
)
_LATE_NORMS: Final = _weights(
    ("attn_norm", "attention_norm"),
    ("post_attention_norm", "feed_forward_norm"),
)
_BERT_NORMS: Final = _weights(
    ("attn_output_norm", "attention_norm"),
    ("attn_norm_2", "attention_norm_2"),
    ("layer_output_norm", "feed_forward_norm"),
)
_PLAIN: Final = TensorNames(layer=_NORMS + _ATTENTION + _FFN + _EXPERTS)
_CONVOLUTION: Final = _weights(
    ("shortconv.in_proj", "convolution.input"),
    ("shortconv.conv", "convolution.filter"),
    ("shortconv.out_proj", "convolution.output"),
)
_LIQUID: Final = TensorNames(
    layer=_NORMS + _ATTENTION + _CONVOLUTION + _FFN + _EXPERTS,
    model=_weights(("token_embd_norm", "output_norm")),  # it stands behind the last layer
)
_DELTA: Final = (
    *_weights(
        ("attn_qkv", "delta.mixed"),
        ("attn_gate", "delta.gate"),
        ("ssm_alpha", "delta.alpha"),
        ("ssm_beta", "delta.beta"),
        ("ssm_conv1d", "delta.filter"),
        ("ssm_norm", "delta.norm"),
        ("ssm_out", "delta.output"),
    ),
    TensorRule("ssm_in.weight", ("delta.mixed", "delta.gate")),  # of older converters
    TensorRule("ssm_ba.weight", ("delta.beta", "delta.alpha")),
    TensorRule("ssm_a", ("delta.decay",)),
    TensorRule("ssm_dt.bias", ("delta.time_offset",)),
)
_MAMBA: Final = (
    *_weights(
        ("ssm_in", "mamba.input"),
        ("ssm_conv1d", "mamba.filter"),
        ("ssm_norm", "mamba.norm"),
        ("ssm_out", "mamba.output"),
    ),
    TensorRule("ssm_a", ("mamba.decay",)),
    TensorRule("ssm_d", ("mamba.skip",)),
    TensorRule("ssm_dt.bias", ("mamba.time_offset",)),
)
_GATED_ATTENTION: Final = (
    *(rule for rule in _ATTENTION if rule.name != "attn_q.weight"),
    TensorRule("attn_q.weight", ("attention.q", "attention.gate")),
)
_GEMMA4: Final = TensorNames(
    layer=(
        *_NORMS,
        *_ATTENTION,
        *_FFN,
        *_EXPERTS,
        *_weights(
            ("pre_ffw_norm_2", "experts.norm"),
            ("post_ffw_norm_1", "experts.dense_post_norm"),
            ("post_ffw_norm_2", "experts.post_norm"),
            ("inp_gate", "per_layer.gate"),
            ("proj", "per_layer.output"),
            ("post_norm", "per_layer.norm"),
            ("layer_output_scale", "output_scale"),
        ),
        TensorRule("ffn_gate_inp.scale", ("experts.router_norm",)),
        TensorRule("ffn_down_exps.scale", ("experts.weight_scale",)),
    ),
    model=_weights(
        ("per_layer_token_embd", "embedding.per_layer"),
        ("per_layer_model_proj", "embedding.per_layer_projection"),
        ("per_layer_proj_norm", "embedding.per_layer_norm"),
    ),
)
_FUSED: Final = TensorNames(layer=_NORMS + _FUSED_ATTENTION + _FUSED_FFN)

NAMES: Final[Mapping[str, TensorNames]] = MappingProxyType(
    {
        **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3"), _PLAIN),
        "gemma-embedding": _PLAIN,
        **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe"), _PLAIN),
        **dict.fromkeys(("qwen2moe", "olmoe", "ernie4_5-moe", "dots1", "minimax-m2"), _PLAIN),
        **dict.fromkeys(("hunyuan-moe", "mistral3", "granite", "smollm3", "olmo2"), _PLAIN),
        **dict.fromkeys(("lfm2", "lfm2moe"), _LIQUID),
        **dict.fromkeys(
            ("qwen35", "qwen35moe", "qwen3next"),
            TensorNames(layer=_LATE_NORMS + _GATED_ATTENTION + _DELTA + _FFN + _EXPERTS),
        ),
        **dict.fromkeys(
            ("granitehybrid", "nemotron_h", "nemotron_h_moe"),
            TensorNames(layer=_NORMS + _ATTENTION + _MAMBA + _FFN + _EXPERTS),
        ),
        "bailingmoe2": TensorNames(layer=_NORMS + _FUSED_ATTENTION + _HEAD_NORMS + _FFN + _EXPERTS),
        "gemma4": _GEMMA4,
        "muse-glimmer": TensorNames(
            layer=(*_PLAIN.layer, TensorRule("attn_gate.weight", ("attention.gate",)))
        ),
        "gpt-oss": TensorNames(layer=_LATE_NORMS + _ATTENTION + _SINKS + _EXPERTS),
        "glm4moe": TensorNames(layer=_LATE_NORMS + _ATTENTION + _FFN + _EXPERTS),
        "deepseek2": TensorNames(layer=_NORMS + _LATENT + _FFN + _EXPERTS),
        **dict.fromkeys(("phi3", "modern-bert"), _FUSED),
        "glm4": TensorNames(layer=_NORMS + _ATTENTION + _FUSED_FFN),
        "bert": TensorNames(layer=_BERT_NORMS + _ATTENTION + _FFN),
        "nomic-bert": TensorNames(layer=_BERT_NORMS + _FUSED_ATTENTION + _FFN),
        "jina-bert-v2": TensorNames(
            layer=_BERT_NORMS + _ATTENTION + _DOWN,
            variants=(
                ("ffn_gate.weight", _FFN[:4]),  # files of older converters
                # The model for code has the gate last; llama.cpp takes it to be first there, too.
                ("attn_q_norm.weight", (TensorRule("ffn_up.weight", _GATE_UP[::-1]),)),
                ("ffn_up.weight", (TensorRule("ffn_up.weight", _GATE_UP),)),
            ),
        ),
    }
)
"""By GGUF's `general.architecture`."""
