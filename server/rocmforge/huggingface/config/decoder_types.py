"""The decoders that are read from folders: a row for each `model_type`.

A key that a file leaves out has the default of Transformers' class, which a row states where ours
would be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from rocmforge.models.layer_config import RouterFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderType:
    """One row: what `config.json` does not say, beside what `FAMILIES` says."""

    architecture: str  # ours
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of Transformers' class
    # What it calls what others call otherwise, by their names; of both, its own counts.
    synonyms: Mapping[str, str] = field(default_factory=dict)
    activation_key: str = "hidden_act"
    scale_key: str | None = None  # of the number that scores are divided by the root of
    has_windows: bool = False  # in all layers, though others of the family have none
    router: RouterFunction | None = None  # if it is not the one of the family
    norms_add_one: bool = False  # the weights of norms are stored less one
    whole_norm: str = "delta.norm"  # of these, the one that is stored as it is
    size_key: str = "intermediate_size"  # of the features of a feed-forward network
    without_experts: str | None = None  # our architecture where no layer has some
    seeing_both_sides: str | None = None  # our architecture where attention is to both sides
    sections: tuple[int, ...] = ()  # pairs of a head for each axis of positions


_GEMMA: Final = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA3: Final = DecoderType(
    architecture="gemma3",
    defaults=_GEMMA
    | {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
    },
    activation_key="hidden_activation",
    scale_key="query_pre_attn_scalar",
    norms_add_one=True,
)

_GEMMA4: Final = DecoderType(
    architecture="gemma4",
    synonyms={"num_experts_per_tok": "top_k_experts"},
    defaults={
        "head_dim": 256,
        "global_head_dim": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "sliding_window": 512,
        "max_position_embeddings": 131072,
        "hidden_size_per_layer_input": 256,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
            },
        },
    },
    activation_key="hidden_activation",
)

_GEMMA4_UNIFIED: Final = replace(
    _GEMMA4,
    defaults={
        **_GEMMA4.defaults,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
        "hidden_size_per_layer_input": 0,
    },
)

_MUSE: Final = DecoderType(
    architecture="muse-glimmer",
    defaults={
        "head_dim": 128,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "sliding_window": 2048,
        "final_logit_softcapping": 20.0,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
        "post_norm_eps": 1e-8,
    },
    activation_key="hidden_activation",
    norms_add_one=True,
    whole_norm="output_norm",
)
_MISTRAL: Final = DecoderType(
    architecture="llama",
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    has_windows=True,
)
_LLAMA: Final = DecoderType(architecture="llama", defaults={"num_attention_heads": 32})
_OLMO: Final = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}

_LIQUID: Final = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "conv_L_cache": 3,
    "tie_word_embeddings": True,
}
_LIQUID_WORDS: Final = {
    "rms_norm_eps": "norm_eps",
    "intermediate_size": "block_ff_dim",
    "first_k_dense_replace": "num_dense_layers",
    "tie_word_embeddings": "tie_embedding",
}

_DELTA: Final = {
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_QWEN35: Final = DecoderType(
    architecture="qwen35", defaults=_DELTA, norms_add_one=True, sections=(11, 11, 10)
)
_QWEN35_MOE: Final = replace(_QWEN35, architecture="qwen35moe")
_QWEN3_VL: Final = DecoderType(
    architecture="qwen3vl",
    defaults={"head_dim": 128, "max_position_embeddings": 128000, "rope_theta": 500000.0},
    sections=(24, 20, 20),
)
_QWEN3_VL_MOE: Final = replace(
    _QWEN3_VL,
    architecture="qwen3vlmoe",
    defaults={
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 128000,
        "rope_theta": 500000.0,
        "num_local_experts": 60,  # or `num_experts`, which is found before it
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
    },
)
_QWEN2_VL: Final = DecoderType(
    architecture="qwen2vl",
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
    },
    sections=(16, 24, 24),
)

_GRANITE: Final = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_GRANITE_WORDS: Final = {
    "shared_expert_intermediate_size": "shared_intermediate_size",
    "mamba_num_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
    "ssm_state_size": "mamba_d_state",
    "conv_kernel": "mamba_d_conv",
}
_NEMOTRON: Final = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
    "intermediate_size": 21504,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "norm_topk_prob": True,
}
_NEMOTRON_WORDS: Final = {
    "rms_norm_eps": "layer_norm_epsilon",
    "layer_types": "layers_block_type",
    "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
}

DECODERS: Final[Mapping[str, DecoderType]] = MappingProxyType(
    {
        # With images: the row of their text part is taken.
        **dict.fromkeys(("llama", "idefics3", "smolvlm"), _LLAMA),
        "mistral": _MISTRAL,
        "internvl": DecoderType(architecture="qwen2"),  # with images
        "llava": _LLAMA,  # with images, which are those of Pixtral
        "mistral3": _MISTRAL,  # with images: the row of its text part is taken
        "ministral3": DecoderType(
            architecture="mistral3",
            defaults={
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 262144,
                "rms_norm_eps": 1e-5,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1000000.0,
                    "factor": 16.0,
                    "original_max_position_embeddings": 16384,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                },
            },
            has_windows=True,
        ),
        "granite": DecoderType(
            architecture="granite", defaults={"position_embedding_type": "rope"}
        ),
        "smollm3": DecoderType(
            architecture="smollm3",
            defaults={
                "num_key_value_heads": 4,
                "max_position_embeddings": 32768,
                "rope_theta": 2000000.0,
                "tie_word_embeddings": True,
            },
        ),
        "olmo2": DecoderType(architecture="olmo2", defaults=_OLMO),
        "olmo3": DecoderType(
            architecture="olmo2",
            defaults=_OLMO | {"rope_theta": 500000.0, "sliding_window": 4096},
        ),
        "qwen2": DecoderType(architecture="qwen2"),
        "qwen3": DecoderType(architecture="qwen3", defaults={"head_dim": 128}),
        "mixtral": DecoderType(
            architecture="llama",
            defaults={
                "num_key_value_heads": 8,
                "max_position_embeddings": 131072,
                "rope_theta": 1000000.0,
            },
            has_windows=True,
        ),
        "qwen3_moe": DecoderType(
            architecture="qwen3moe",
            defaults={"norm_topk_prob": False, "use_sliding_window": False},
            has_windows=True,
        ),
        "qwen2_moe": DecoderType(architecture="qwen2moe", defaults={"norm_topk_prob": False}),
        "olmoe": DecoderType(
            architecture="olmoe",
            defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        ),
        "ernie4_5_moe": DecoderType(
            architecture="ernie4_5-moe",
            defaults={
                "rms_norm_eps": 1e-5,
                "rope_theta": 500000.0,
                "moe_layer_start_index": 1,
                "moe_num_shared_experts": 2,
            },
        ),
        "dots1": DecoderType(
            architecture="dots1",
            defaults={
                "norm_topk_prob": False,
                "sliding_window": 4096,
                "use_sliding_window": True,
                "max_window_layers": 62,
            },
        ),
        "glm4_moe": DecoderType(
            architecture="glm4moe",
            defaults={
                "rms_norm_eps": 1e-5,
                "partial_rotary_factor": 0.5,
                "first_k_dense_replace": 1,
                "n_shared_experts": 1,
            },
        ),
        "minimax_m2": DecoderType(
            architecture="minimax-m2", defaults={"head_dim": 128, "rope_theta": 5000000.0}
        ),
        "deepseek_v2": DecoderType(
            architecture="deepseek2",
            defaults={"q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2},
        ),
        "deepseek_v3": DecoderType(
            architecture="deepseek2",
            defaults={
                "q_lora_rank": 1536,
                "max_position_embeddings": 4096,
                "first_k_dense_replace": 3,
                "n_routed_experts": 256,
                "n_group": 8,
                "topk_group": 4,
                "n_shared_experts": 1,
                "routed_scaling_factor": 2.5,
                "norm_topk_prob": True,
            },
            router=RouterFunction.SIGMOID,
        ),
        "glm4_moe_lite": DecoderType(
            architecture="deepseek2",
            defaults={
                "q_lora_rank": 768,
                "max_position_embeddings": 202752,
                "rms_norm_eps": 1e-5,
                "first_k_dense_replace": 1,
                "n_routed_experts": 64,
                "n_shared_experts": 1,
                "routed_scaling_factor": 1.8,
                "norm_topk_prob": True,
            },
            router=RouterFunction.SIGMOID,
        ),
        "gpt_oss": DecoderType(
            architecture="gpt-oss",
            defaults={
                "head_dim": 64,
                "num_key_value_heads": 8,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5,
                "rope_theta": 150000.0,
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 32.0,
                    "original_max_position_embeddings": 4096,
                    "truncate": False,
                },
                "sliding_window": 128,
            },
        ),
        "hunyuan_v1_moe": DecoderType(
            architecture="hunyuan-moe", defaults={"rms_norm_eps": 1e-5, "num_shared_expert": 1}
        ),
        "lfm2": DecoderType(
            architecture="lfm2",
            synonyms=_LIQUID_WORDS,
            defaults=_LIQUID
            | {
                "block_auto_adjust_ff_dim": True,
                "block_ffn_dim_multiplier": 1.0,
                "block_multiple_of": 256,
            },
        ),
        "lfm2_moe": DecoderType(
            architecture="lfm2moe",
            synonyms=_LIQUID_WORDS,
            defaults=_LIQUID | {"num_dense_layers": 2, "norm_topk_prob": True},
        ),
        # With images: the row of their text part is taken.
        **dict.fromkeys(("qwen3_vl", "qwen3_vl_text"), _QWEN3_VL),
        **dict.fromkeys(("qwen3_vl_moe", "qwen3_vl_moe_text"), _QWEN3_VL_MOE),
        **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2_VL),
        "qwen3_5": _QWEN35,
        "qwen3_5_text": _QWEN35,
        "qwen3_5_moe": _QWEN35_MOE,
        "qwen3_5_moe_text": _QWEN35_MOE,
        "qwen3_next": DecoderType(architecture="qwen3next", defaults=_DELTA, norms_add_one=True),
        "granitemoehybrid": DecoderType(
            architecture="granitehybrid",
            synonyms=_GRANITE_WORDS,
            defaults=_GRANITE,
            size_key="shared_intermediate_size",
        ),
        "nemotron_h": DecoderType(
            architecture="nemotron_h_moe",
            synonyms=_NEMOTRON_WORDS,
            defaults=_NEMOTRON,
            activation_key="mlp_hidden_act",
            without_experts="nemotron_h",
        ),
        "gemma2": DecoderType(
            architecture="gemma2",
            defaults=_GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
            activation_key="hidden_activation",
            scale_key="query_pre_attn_scalar",
            norms_add_one=True,
        ),
        "gemma3_text": replace(_GEMMA3, seeing_both_sides="gemma-embedding"),
        "gemma3": _GEMMA3,  # with images, of which only the text part is read
        "gemma4_text": _GEMMA4,
        "gemma4": _GEMMA4,  # with images and sound, of which only the text part is read
        **dict.fromkeys(("gemma4_unified_text", "gemma4_unified"), _GEMMA4_UNIFIED),
        "muse_glimmer_text": _MUSE,
        "muse_glimmer": _MUSE,  # with images, of which only the text part is read
        "phi3": DecoderType(architecture="phi3"),
        "glm4": DecoderType(
            architecture="glm4",
            defaults={"head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5},
        ),
    }
)
"""By `model_type`."""
