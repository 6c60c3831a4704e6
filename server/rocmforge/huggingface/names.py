"""Names of the tensors of decoders in folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rocmforge.huggingface.name_table import ATTENTION, NameTable, weights_and_biases
from rocmforge.models.config import ModelConfig

_LATENT: Final = {
    **weights_and_biases(
        ("self_attn.q_proj", "latent.q"),
        ("self_attn.q_a_proj", "latent.q_a"),
        ("self_attn.q_a_layernorm", "latent.q_norm"),
        ("self_attn.q_b_proj", "latent.q_b"),
        ("self_attn.kv_a_proj_with_mqa", "latent.kv_a"),
        ("self_attn.kv_a_layernorm", "latent.kv_norm"),
        ("self_attn.o_proj", "latent.output"),
    ),
    "self_attn.kv_b_proj.weight": ("latent.k_b", "latent.v_b"),
}
_DECODER_PARTS: Final = {
    **ATTENTION,
    **weights_and_biases(
        ("self_attn.q_norm", "attention.q_norm"),
        ("self_attn.k_norm", "attention.k_norm"),
        ("self_attn.query_layernorm", "attention.q_norm"),
        ("self_attn.key_layernorm", "attention.k_norm"),
        ("mlp.gate_proj", "feed_forward.gate"),
        ("mlp.up_proj", "feed_forward.up"),
        ("mlp.down_proj", "feed_forward.down"),
        ("input_layernorm", "attention_norm"),
        bias=False,
    ),
    "self_attn.qkv_proj.weight": ("attention.q", "attention.k", "attention.v"),
    "mlp.gate_up_proj.weight": ("feed_forward.gate", "feed_forward.up"),
    # Experts: of Qwen, as their makers publish them and as Transformers 5 has them; of Mixtral.
    **weights_and_biases(
        ("mlp.gate", "experts.router"),
        ("mlp.gate.wg", "experts.router"),  # of Hunyuan
        ("mlp.experts.gate_proj", "experts.gate"),
        ("mlp.experts.up_proj", "experts.up"),
        ("mlp.experts.down_proj", "experts.down"),
        ("block_sparse_moe.gate", "experts.router"),
        ("block_sparse_moe.experts.w1", "experts.gate"),
        ("block_sparse_moe.experts.w3", "experts.up"),
        ("block_sparse_moe.experts.w2", "experts.down"),
        bias=False,
    ),
    # The network beside the experts, as Qwen 2 calls it, as Hunyuan, and as all others do.
    **weights_and_biases(
        ("mlp.shared_expert.gate_proj", "experts.shared.gate"),
        ("mlp.shared_expert.up_proj", "experts.shared.up"),
        ("mlp.shared_expert.down_proj", "experts.shared.down"),
        ("mlp.shared_expert_gate", "experts.shared.router"),
        ("mlp.shared_mlp.gate_proj", "experts.shared.gate"),
        ("mlp.shared_mlp.up_proj", "experts.shared.up"),
        ("mlp.shared_mlp.down_proj", "experts.shared.down"),
        ("mlp.shared_experts.gate_proj", "experts.shared.gate"),
        ("mlp.shared_experts.up_proj", "experts.shared.up"),
        ("mlp.shared_experts.down_proj", "experts.shared.down"),
        bias=False,
    ),
    "mlp.gate.e_score_correction_bias": ("experts.selection_bias",),
    "mlp.moe_statics.e_score_correction_bias": ("experts.selection_bias",),
    "block_sparse_moe.e_score_correction_bias": ("experts.selection_bias",),
    "mlp.experts.gate_up_proj": ("experts.gate", "experts.up"),
    "mlp.experts.down_proj": ("experts.down",),
}
# The norms around the feed-forward network, by those who have one before it and those with four.
_ONE_NORM: Final = weights_and_biases(("post_attention_layernorm", "feed_forward_norm"), bias=False)
_GEMMA_NORMS: Final = weights_and_biases(
    ("post_attention_layernorm", "attention_post_norm"),
    ("pre_feedforward_layernorm", "feed_forward_norm"),
    ("post_feedforward_layernorm", "feed_forward_post_norm"),
    bias=False,
)
_GLM_NORMS: Final = weights_and_biases(
    ("post_self_attn_layernorm", "attention_post_norm"),
    ("post_attention_layernorm", "feed_forward_norm"),
    ("post_mlp_layernorm", "feed_forward_post_norm"),
    bias=False,
)


_GPT_OSS_PARTS: Final = MappingProxyType(
    {
        **ATTENTION,
        **_ONE_NORM,
        **weights_and_biases(("mlp.router", "experts.router")),
        "input_layernorm.weight": ("attention_norm",),
        "self_attn.sinks": ("attention.sinks",),
        # Experts as `unpack_experts` leaves them.
        **{
            f"mlp.experts.{part}_proj{kind}": (f"experts.{part}{kind}",)
            for part in ("gate", "up", "down")
            for kind in ("", "_bias")
        },
    }
)


def _decoder(norms: Mapping[str, tuple[str, ...]]) -> NameTable:
    return NameTable(
        # With images: first as Transformers 4 wrote them, then as since then.
        prefixes=(
            *("language_model.model.", "model.language_model.", "language_model."),
            *("model.text_model.", "model."),
        ),
        layer=re.compile(r"layers\.(\d{1,4})\."),
        parts=MappingProxyType({**_DECODER_PARTS, **norms}),
        model=MappingProxyType(
            {
                "embed_tokens.weight": "embedding.token",
                "norm.weight": "output_norm",
                "lm_head.weight": "output",
            }
        ),
        left_out=re.compile(
            r"^(model\.)?(vision_tower|multi_modal_projector|visual|mtp)\."
            r"|^(model\.)?(vision_adapter|vision_projection)\."
            r"|^(model\.)?(vision_model|connector)\."
            r"|^(model\.)?(audio_tower|embed_vision|embed_audio|vision_embedder)\."
            r"|\.rotary_emb\.inv_freq$"
        ),
    )


_LIQUID_PARTS: Final = MappingProxyType(
    {
        **_DECODER_PARTS,
        **weights_and_biases(
            ("conv.in_proj", "convolution.input"),
            ("conv.conv", "convolution.filter"),
            ("conv.out_proj", "convolution.output"),
            ("self_attn.out_proj", "attention.output"),
            ("self_attn.q_layernorm", "attention.q_norm"),
            ("self_attn.k_layernorm", "attention.k_norm"),
            ("operator_norm", "attention_norm"),
            ("ffn_norm", "feed_forward_norm"),
            ("feed_forward.w1", "feed_forward.gate"),
            ("feed_forward.w3", "feed_forward.up"),
            ("feed_forward.w2", "feed_forward.down"),
            ("feed_forward.gate", "experts.router"),
            ("feed_forward.experts.w1", "experts.gate"),
            ("feed_forward.experts.w3", "experts.up"),
            ("feed_forward.experts.w2", "experts.down"),
            bias=False,
        ),
        "feed_forward.expert_bias": ("experts.selection_bias",),
        "feed_forward.experts.gate_up_proj": ("experts.gate", "experts.up"),
        "feed_forward.experts.down_proj": ("experts.down",),
    }
)


_DELTA_PARTS: Final = MappingProxyType(
    {
        **_DECODER_PARTS,
        **_ONE_NORM,
        "self_attn.q_proj.weight": ("attention.q", "attention.gate"),
        **weights_and_biases(
            ("linear_attn.in_proj_qkv", "delta.mixed"),
            ("linear_attn.in_proj_z", "delta.gate"),
            ("linear_attn.in_proj_a", "delta.alpha"),
            ("linear_attn.in_proj_b", "delta.beta"),
            ("linear_attn.conv1d", "delta.filter"),
            ("linear_attn.norm", "delta.norm"),
            ("linear_attn.out_proj", "delta.output"),
            bias=False,
        ),
        "linear_attn.in_proj_qkvz.weight": ("delta.mixed", "delta.gate"),  # of Qwen3-Next
        "linear_attn.in_proj_ba.weight": ("delta.beta", "delta.alpha"),
        "linear_attn.A_log": ("delta.decay",),
        "linear_attn.dt_bias": ("delta.time_offset",),
    }
)


_MAMBA: Final = {
    **weights_and_biases(
        ("in_proj", "mamba.input"),
        ("conv1d", "mamba.filter"),
        ("norm", "mamba.norm"),
        ("out_proj", "mamba.output"),
    ),
    "A_log": ("mamba.decay",),
    "D": ("mamba.skip",),
    "dt_bias": ("mamba.time_offset",),
}


def _granite(network: str) -> NameTable:
    """Returns the names of Granite 4: what `shared_mlp` is depends on whether there are experts."""
    return replace(
        _decoder(_ONE_NORM),
        parts=MappingProxyType(
            {
                **ATTENTION,
                **_ONE_NORM,
                **{f"mamba.{name}": parts for name, parts in _MAMBA.items()},
                "input_layernorm.weight": ("attention_norm",),
                "shared_mlp.input_linear.weight": (f"{network}.gate", f"{network}.up"),
                "shared_mlp.output_linear.weight": (f"{network}.down",),
                # As published, and as Transformers 5 has them.
                "block_sparse_moe.router.layer.weight": ("experts.router",),
                "block_sparse_moe.router.weight": ("experts.router",),
                "block_sparse_moe.input_linear.weight": ("experts.gate", "experts.up"),
                "block_sparse_moe.experts.gate_up_proj": ("experts.gate", "experts.up"),
                "block_sparse_moe.output_linear.weight": ("experts.down",),
                "block_sparse_moe.experts.down_proj": ("experts.down",),
            }
        ),
    )


_NEMOTRON: Final = NameTable(
    prefixes=("backbone.", "model."),  # as published, and as Transformers 5 has them
    layer=re.compile(r"layers\.(\d{1,4})\."),
    parts=MappingProxyType(
        {
            "norm.weight": ("attention_norm",),
            **{f"mixer.{name}": parts for name, parts in _MAMBA.items()},
            **{
                name.replace("self_attn", "mixer"): parts
                for name, parts in ATTENTION.items()
                if name.endswith("weight")
            },
            **weights_and_biases(
                ("mixer.up_proj", "feed_forward.up"),
                ("mixer.down_proj", "feed_forward.down"),
                ("mixer.gate", "experts.router"),
                ("mixer.experts.up_proj", "experts.up"),
                ("mixer.experts.down_proj", "experts.down"),
                ("mixer.fc1_latent_proj", "experts.latent_down"),
                ("mixer.fc2_latent_proj", "experts.latent_up"),
                ("mixer.shared_experts.up_proj", "experts.shared.up"),
                ("mixer.shared_experts.down_proj", "experts.shared.down"),
                bias=False,
            ),
            "mixer.experts.up_proj": ("experts.up",),
            "mixer.experts.down_proj": ("experts.down",),
            "mixer.gate.e_score_correction_bias": ("experts.selection_bias",),
        }
    ),
    model=MappingProxyType(
        {
            "embeddings.weight": "embedding.token",
            "norm_f.weight": "output_norm",
            "lm_head.weight": "output",
        }
    ),
    left_out=re.compile(r"^mtp\."),
)


def _liquid() -> NameTable:
    plain = _decoder(_ONE_NORM)
    model = {**plain.model, "embedding_norm.weight": "output_norm"}
    del model["norm.weight"]
    return replace(plain, parts=_LIQUID_PARTS, model=MappingProxyType(model))


def _gemma4() -> NameTable:
    parts = {
        **_GEMMA_NORMS,
        **weights_and_biases(
            ("router.proj", "experts.router"),
            ("pre_feedforward_layernorm_2", "experts.norm"),
            ("post_feedforward_layernorm_1", "experts.dense_post_norm"),
            ("post_feedforward_layernorm_2", "experts.post_norm"),
            ("per_layer_input_gate", "per_layer.gate"),
            ("per_layer_projection", "per_layer.output"),
            ("post_per_layer_input_norm", "per_layer.norm"),
            bias=False,
        ),
        "router.scale": ("experts.router_norm",),
        "router.per_expert_scale": ("experts.weight_scale",),
        "experts.gate_up_proj": ("experts.gate", "experts.up"),
        "experts.down_proj": ("experts.down",),
        "layer_scalar": ("output_scale",),
    }
    plain = _decoder(parts)
    model = {
        **plain.model,
        "embed_tokens_per_layer.weight": "embedding.per_layer",
        "per_layer_model_projection.weight": "embedding.per_layer_projection",
        "per_layer_projection_norm.weight": "embedding.per_layer_norm",
    }
    return replace(plain, model=MappingProxyType(model))


_DECODER_NAMES: Final[Mapping[str, NameTable]] = MappingProxyType(
    {
        **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3moe", "phi3"), _decoder(_ONE_NORM)),
        **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe"), _decoder(_ONE_NORM)),
        **dict.fromkeys(("mistral3", "granite", "smollm3"), _decoder(_ONE_NORM)),
        **dict.fromkeys(
            ("qwen2moe", "olmoe", "ernie4_5-moe", "dots1", "glm4moe", "minimax-m2", "hunyuan-moe"),
            _decoder(_ONE_NORM),
        ),
        **dict.fromkeys(("lfm2", "lfm2moe"), _liquid()),
        **dict.fromkeys(
            ("qwen35", "qwen35moe", "qwen3next"), replace(_decoder(_ONE_NORM), parts=_DELTA_PARTS)
        ),
        **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _NEMOTRON),
        "deepseek2": _decoder({**_ONE_NORM, **_LATENT}),
        **dict.fromkeys(("gemma2", "gemma3", "gemma-embedding", "olmo2"), _decoder(_GEMMA_NORMS)),
        "gemma4": _gemma4(),
        "muse-glimmer": _decoder(
            {**_GEMMA_NORMS, "self_attn.gate_proj.weight": ("attention.gate",)}
        ),
        "glm4": _decoder(_GLM_NORMS),
        "gpt-oss": replace(_decoder(_ONE_NORM), parts=_GPT_OSS_PARTS),
    }
)
"""By our name of the architecture."""

_GRANITE_DENSE: Final = _granite("feed_forward")
_GRANITE_EXPERTS: Final = _granite("experts.shared")


def decoder_names(config: ModelConfig) -> NameTable:
    """Returns the names of a decoder's weights."""
    if config.architecture == "granitehybrid":
        return _GRANITE_EXPERTS if config.layers[0].experts else _GRANITE_DENSE
    return _DECODER_NAMES[config.architecture]
