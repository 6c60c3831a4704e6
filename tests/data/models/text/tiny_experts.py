"""Tiny models with experts, or latent attention: recipes. `expert_weights.py` has their weights.

The seeds are such that no token is near the border between two experts: the last chosen one is
better than the next by 0.0015 at least, thousands of roundings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.data.models.text.tiny_model import TinyModel, plain_rope, tiny_config
from tests.support.files.gguf_writer import Value

_LATENT: Final[dict[str, Any]] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
}
_LATENT_KEYS: Final[dict[str, Value]] = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 20,
    "attention.value_length_mla": 20,
    "rope.dimension_count": 8,
}
_GROUPED: Final[dict[str, Any]] = {
    "num_hidden_layers": 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
}
"""Experts in groups, of which the best groups are asked, behind a layer without experts."""
_GROUPED_KEYS: Final[dict[str, Value]] = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "expert_feed_forward_length": 40,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "leading_dense_block_count": 1,
}

_GLM4_MOE: Final = TinyModel(
    name="glm4moe",
    architecture="glm4moe",
    hf_class="Glm4Moe",
    seed=130,
    config=tiny_config(
        **_GROUPED,
        head_dim=16,
        num_attention_heads=4,
        attention_bias=True,
        use_qk_norm=True,
        routed_scaling_factor=1.5,
        num_mtp_layers=0,
        rope_parameters=plain_rope(10000.0, partial_rotary_factor=0.5),
    ),
    keys={
        **_GROUPED_KEYS,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 8,
        "expert_weights_scale": 1.5,
    },
)

EXPERT_MODELS: Final = (
    TinyModel(
        name="qwen3moe",
        architecture="qwen3moe",
        hf_class="Qwen3Moe",
        seed=119,
        config=tiny_config(
            head_dim=16,
            num_attention_heads=4,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            norm_topk_prob=True,
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 10000.0,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
        },
    ),
    TinyModel(
        name="mixtral",
        architecture="llama",
        hf_class="Mixtral",
        seed=125,
        config=tiny_config(
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_parameters=plain_rope(10000.0),
        ),
        keys={
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 8,
            "expert_count": 4,
            "expert_used_count": 2,
        },
    ),
    TinyModel(
        name="qwen2moe",
        architecture="qwen2moe",
        hf_class="Qwen2Moe",
        seed=100,
        config=tiny_config(
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            shared_expert_intermediate_size=56,
            norm_topk_prob=False,
        ),
        keys={
            "rope.freq_base": 10000.0,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 40,
            "expert_shared_feed_forward_length": 56,
        },
    ),
    TinyModel(
        name="olmoe",
        architecture="olmoe",
        hf_class="Olmoe",
        seed=126,
        config=tiny_config(num_experts=8, num_experts_per_tok=3, norm_topk_prob=False),
        keys={"rope.freq_base": 10000.0, "expert_count": 8, "expert_used_count": 3},
    ),
    TinyModel(
        name="ernie4_5-moe",
        architecture="ernie4_5-moe",
        hf_class="Ernie4_5_Moe",
        seed=103,
        config=tiny_config(
            num_hidden_layers=4,
            moe_num_experts=6,
            moe_k=2,
            moe_intermediate_size=24,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_interval=2,
        ),
        keys={
            "rope.freq_base": 500000.0,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 24,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 2,
        },
    ),
    TinyModel(
        name="dots1",
        architecture="dots1",
        hf_class="Dots1",
        seed=126,
        config=tiny_config(
            num_hidden_layers=3,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            n_shared_experts=2,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        ),
        keys={
            "rope.freq_base": 10000.0,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_gating_func": 2,
            "leading_dense_block_count": 1,
        },
    ),
    _GLM4_MOE,
    TinyModel(
        name="minimax-m2",
        architecture="minimax-m2",
        hf_class="MiniMaxM2",
        seed=129,
        config=tiny_config(
            head_dim=16,
            num_attention_heads=4,
            num_local_experts=6,
            num_experts_per_tok=2,
            rope_parameters=plain_rope(10000.0, partial_rotary_factor=0.5),
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 8,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_gating_func": 2,
        },
    ),
    TinyModel(
        name="hunyuan-moe",
        architecture="hunyuan-moe",
        hf_class="HunYuanMoEV1",
        seed=133,
        config=tiny_config(
            num_hidden_layers=2,
            head_dim=16,
            num_attention_heads=4,
            num_experts=8,
            moe_topk=[3, 3],
            num_shared_expert=[1, 1],
            moe_intermediate_size=[72, 72],
            rope_parameters={
                "rope_type": "dynamic",
                "factor": 1.0,
                "rope_theta": 10000.0,
                "alpha": 128.0,
            },
        ),
        keys={
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.freq_base": 2560000.0,  # 10000 * 128 ** (16 / 14)
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 72,
            "expert_shared_feed_forward_length": 72,
            "expert_shared_count": 1,
        },
    ),
)
LATENT_MODELS: Final = (
    # As DeepSeek V2 Lite, with YaRN, which scales the scores of all elements.
    TinyModel(
        name="deepseek-v2",
        architecture="deepseek2",
        hf_class="DeepseekV2",
        seed=116,
        config=tiny_config(
            **_LATENT,
            num_hidden_layers=3,
            rms_norm_eps=1e-6,
            q_lora_rank=None,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            n_shared_experts=2,
            first_k_dense_replace=1,
            topk_method="greedy",
            norm_topk_prob=False,
            routed_scaling_factor=1.0,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "mscale": 0.625,
                "mscale_all_dim": 0.625,
            },
        ),
        keys={
            **_LATENT_KEYS,
            "rope.freq_base": 1000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_log_multiplier": 0.0625,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.0,
            "expert_gating_func": 1,
            "leading_dense_block_count": 1,
        },
    ),
    TinyModel(
        name="deepseek-v3",
        architecture="deepseek2",
        hf_class="DeepseekV3",
        seed=152,
        config=tiny_config(
            **_LATENT,
            **_GROUPED,
            rms_norm_eps=1e-6,
            q_lora_rank=24,
            routed_scaling_factor=2.5,
            num_nextn_predict_layers=0,
            rope_parameters=plain_rope(10000.0),
        ),
        keys={
            **_GROUPED_KEYS,
            **_LATENT_KEYS,
            "attention.q_lora_rank": 24,
            "rope.freq_base": 10000.0,
            "expert_weights_scale": 2.5,
        },
    ),
    # As GLM-4.7-Flash, whose first files do not name the router.
    TinyModel(
        name="glm4-moe-lite",
        architecture="deepseek2",
        hf_class="Glm4MoeLite",
        seed=122,
        config=tiny_config(
            **_LATENT,
            num_hidden_layers=2,
            rms_norm_eps=1e-6,
            q_lora_rank=24,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.75,
            rope_parameters=plain_rope(10000.0),
        ),
        keys={
            **_LATENT_KEYS,
            "attention.q_lora_rank": 24,
            "rope.freq_base": 10000.0,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 40,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.75,
            "leading_dense_block_count": 1,
        },
    ),
)
"""With multi-head latent attention: keys and values of heads are made of a row of 32 elements."""
BAILING: Final = replace(
    _GLM4_MOE,
    name="bailingmoe2",
    architecture="bailingmoe2",
    seed=101,
    config=_GLM4_MOE.config
    | {
        "attention_bias": False,
        "routed_scaling_factor": 2.5,
        "rope_parameters": plain_rope(600000.0, partial_rotary_factor=0.5),
    },
    keys=_GLM4_MOE.keys
    | {
        "rope.freq_base": 600000.0,
        "expert_shared_feed_forward_length": 40,
        "expert_weights_scale": 2.5,
    },
)
"""Transformers has no class of it; what it computes is what GLM-4.5 without biases does."""
GPT_OSS: Final = TinyModel(
    name="gpt-oss",
    architecture="gpt-oss",
    hf_class="GptOss",
    seed=39,
    config=tiny_config(
        num_hidden_layers=3,
        hidden_size=64,
        intermediate_size=96,
        head_dim=16,
        num_attention_heads=6,
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=9,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "truncate": False,
        },
    ),
    keys={
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.sliding_window": 9,
        "rope.freq_base": 1000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_feed_forward_length": 96,
    },
)
GPT_OSS_MODELS: Final = (GPT_OSS, replace(GPT_OSS, name="gpt-oss-mxfp4", is_packed=True))
OTHER_EXPERT_MODELS: Final = (*GPT_OSS_MODELS, BAILING)

EXPERT_CLASSES: Final = frozenset(
    model.hf_class for model in (*EXPERT_MODELS, *LATENT_MODELS, *OTHER_EXPERT_MODELS)
)
LATENT_CLASSES: Final = frozenset(model.hf_class for model in LATENT_MODELS)
