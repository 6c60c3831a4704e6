"""The decoders that are read from folders: a row for each `model_type`, and their `config.json`.

A key that a file leaves out has the default of Transformers' class, which a row states where ours
would be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.experts import read_experts
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.heads import (
    full_heads,
    latent_gain,
    layer_flags,
    read_latent,
    read_layer,
    uneven_heads,
)
from rocmforge.huggingface.recurrent import (
    have_networks,
    read_without_attention,
    with_layer_types,
)
from rocmforge.huggingface.rope import Rope, read_rope
from rocmforge.models.config import (
    ACTIVATIONS,
    MAX_LAYERS,
    ActivationFunction,
    LayerConfig,
    ModelConfig,
    RopeConfig,
    RopeStyle,
    RouterFunction,
)
from rocmforge.models.families import FAMILIES
from rocmforge.models.pooling import PoolingType


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
    size_key: str = "intermediate_size"  # of the features of a feed-forward network
    without_experts: str | None = None  # our architecture where no layer has some


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
_QWEN35: Final = DecoderType(architecture="qwen35", defaults=_DELTA, norms_add_one=True)
_QWEN35_MOE: Final = DecoderType(architecture="qwen35moe", defaults=_DELTA, norms_add_one=True)

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
        "qwen3_5": _QWEN35,  # with images, of which only the text part is read
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
        "gemma3_text": _GEMMA3,
        "gemma3": _GEMMA3,  # with images, of which only the text part is read
        "gemma4_text": _GEMMA4,
        "gemma4": _GEMMA4,  # with images and sound, of which only the text part is read
        "phi3": DecoderType(architecture="phi3"),
        "glm4": DecoderType(
            architecture="glm4",
            defaults={"head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5},
        ),
    }
)
"""By `model_type`."""


def read_decoder(config: JsonObject, name: str, pooling: PoolingType) -> tuple[ModelConfig, Rope]:
    """Reads the configuration of a decoder whose `model_type` has a row, and its rotation.

    Args:
        config: Of the folder.
        name: What the model is called.
        pooling: What it was trained for.

    Raises:
        UnsupportedArchitecture: It uses a feature that we do not have.
        BadFolder: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    text, kind = text_part(config)
    return _Reader(_in_our_words(text.with_defaults(kind.defaults), kind), kind).read(name, pooling)


def text_part(config: JsonObject) -> tuple[JsonObject, DecoderType]:
    """Returns the part of a configuration that is about text, and its row, else the model's."""
    kind = DECODERS[config.get_str("model_type")]
    text = config.get_object("text_config") or config
    return text, DECODERS.get(text.get_str("model_type", ""), kind)


def is_tied(config: JsonObject) -> bool:
    """Returns whether the embedding is the output matrix, too."""
    text, kind = text_part(config)
    place = _in_our_words(config if config.has("tie_word_embeddings") else text, kind)
    return place.get_bool(
        "tie_word_embeddings", kind.defaults.get("tie_word_embeddings", False) is True
    )


def _in_our_words(config: JsonObject, kind: DecoderType) -> JsonObject:
    """Returns the configuration with its synonyms replaced."""
    found = {ours: config.values[own] for ours, own in kind.synonyms.items() if config.has(own)}
    return with_layer_types(config.replaced(found) if found else config)


class _Reader:
    def __init__(self, config: JsonObject, kind: DecoderType) -> None:
        self._config = config
        self._kind = kind
        family = FAMILIES[kind.architecture]
        self._family = replace(family, router=kind.router or family.router)

    def read(self, name: str, pooling: PoolingType) -> tuple[ModelConfig, Rope]:
        config, kind, family = self._config, self._kind, self._family
        # Of images only, if Gemma 4 says so; they are refused.
        if config.values.get("use_bidirectional_attention") not in (None, False, "vision"):
            raise UnsupportedArchitecture(
                f"{kind.architecture} with attention to both sides (use_bidirectional_attention)",
                tuple(DECODERS),
            )
        if (limit := config.get_float("clip_qkv", None)) is not None:
            raise UnsupportedArchitecture(
                f"{kind.architecture} with queries, keys and values within {limit} (clip_qkv)",
                tuple(DECODERS),
            )
        hidden_size = config.get_positive("hidden_size")
        latent = read_latent(config) if family.is_latent else None
        layer = latent or read_layer(config, kind.scale_key)
        if family.is_scaled:
            layer = replace(layer, attention_scale=self._scale("attention_multiplier"))
        rotated = layer.key_dim if layer.latent is None else layer.latent.rotary_dim
        if family.has_uneven_heads:
            rotated = full_heads(config, layer).key_dim
        context = config.get_positive("max_position_embeddings", 2048)
        rope = read_rope(
            config,
            style=self._rope_style(),
            head_dim=rotated,
            max_context=context,
            theta=10000.0,
            partial=config.get_int("rotary_dim", rotated) / rotated,
        )
        if latent is not None:
            gain = latent_gain(config, rope.config.scaling)
            layer = replace(latent, attention_scale=latent.attention_scale * gain)
        local = self._local_rope(layer.key_dim, context, rope.config.theta)
        scaling = rope.config.scaling
        if scaling is not None and scaling.kind == "yarn":
            context = max(context, int(scaling.original_context * scaling.factor))
        norm, residual = norm_eps(config, "rms_norm_eps", 1e-6), self._scale("residual_multiplier")
        layers = self._layers(layer, norm, has_local_rope=local is not None)
        architecture = kind.architecture
        if kind.without_experts and not any(each.experts for each in layers):
            architecture = kind.without_experts
        found = ModelConfig(
            architecture=architecture,
            name=name,
            causal=family.causal,
            hidden_size=hidden_size,
            vocab_size=config.get_positive("vocab_size"),
            max_context=context,
            layers=layers,
            norm=family.norm,
            # All of the residual is divided by the scale of what is added to it.
            norm_eps=norm / residual**2,
            pre_norm=family.pre_norm,
            rope=rope.config if self._rotates() else None,
            local_rope=local,
            activation=self._activation(),
            attention_softcap=self._softcap("attn_logit_softcapping"),
            logit_softcap=self._softcap("final_logit_softcapping"),
            logit_scale=1 / self._scale("logits_scaling"),
            embedding_scale=math.sqrt(hidden_size)
            if family.scales_embedding
            else self._scale("embedding_multiplier") / residual,
            per_layer_size=self._per_layer_size(),
            pooling=pooling,
        )
        return found, rope

    def _per_layer_size(self) -> int:
        if "embedding.per_layer" not in self._family.has:
            return 0
        key = "hidden_size_per_layer_input"
        if (size := self._config.get_int(key, 0)) < 0:
            raise self._config.bad(key, f"{size} is negative")
        return size

    def _scale(self, key: str) -> float:
        """Returns a factor, which files of some families state."""
        if not self._family.is_scaled:
            return 1.0
        scale = self._config.get_float(key, 1.0)
        if scale <= 0:
            raise self._config.bad(key, f"{scale} is not positive")
        return scale

    def _rotates(self) -> bool:
        """Returns whether queries and keys do; files of Granite say so."""
        if self._family.is_scaled:
            return self._config.get_str("position_embedding_type", "") == "rope"
        return self._family.has_rope

    def _rope_style(self) -> RopeStyle:
        """Returns the style of the family, which `rope_interleave` may change."""
        if not self._config.has("rope_interleave"):
            return self._family.rope_style
        return RopeStyle.NORMAL if self._config.get_bool("rope_interleave") else RopeStyle.NEOX

    def _layers(
        self, layer: LayerConfig, norm_eps: float, *, has_local_rope: bool
    ) -> tuple[LayerConfig, ...]:
        """Returns all layers, from what they have in common."""
        config, count = self._config, num_layers(self._config)
        windows, with_experts = self._windows(count), config
        if not config.get_bool("enable_moe_block", True):
            with_experts = config.replaced({}, without=("num_experts",))
        experts = read_experts(with_experts, self._family, count)
        return tuple(
            replace(
                other or heads,
                window=None if other else window,
                local_rope=window is not None and has_local_rope,
                rotates=other is not None or not is_unrotated,
                experts=own,
                joint_head_norms=self._family.joint_head_norms,
                rotates_first=self._family.rotates_first,
                norms_values=self._family.norms_values,
                intermediate_size=self._intermediate_size(heads)
                if has_network and (not own or self._family.has_dense_beside_experts)
                else 0,
            )
            for heads, window, is_unrotated, own, other, has_network in zip(
                self._heads_by_layer(layer, windows),
                windows,
                self._unrotated(count),
                experts,
                read_without_attention(config, self._family, count, norm_eps),
                have_networks(config, self._family, count),
                strict=True,
            )
        )

    def _intermediate_size(self, layer: LayerConfig) -> int:
        """Returns features of the network; LFM2 states a number that others are made of."""
        config = self._config
        size = config.get_positive(self._kind.size_key)
        if layer.cache_of is not None and config.get_bool("use_double_wide_mlp", False):
            return 2 * size
        if not config.get_bool("block_auto_adjust_ff_dim", False):
            return size
        size = int(2 * size / 3)
        if (factor := config.get_float("block_ffn_dim_multiplier", None)) is None:
            return size
        multiple = config.get_positive("block_multiple_of")
        return -(-int(factor * size) // multiple) * multiple

    def _unrotated(self, count: int) -> list[bool]:
        """Returns whether each layer does not rotate, though others do."""
        config = self._config
        if (period := self._family.unrotated_period) is None:
            return [False] * count
        key = "no_rope_layers"  # in which 0 says that a layer is one
        if (flags := config.get_numbers(key)) is not None:
            if len(flags) < count:
                raise config.bad(key, f"{len(flags)} numbers for {count} layers")
            return [not flag for flag in flags[:count]]
        period = config.get_positive("no_rope_layer_interval", period)
        return [(layer + 1) % period == 0 for layer in range(count)]

    def _heads_by_layer(
        self, layer: LayerConfig, windows: Sequence[int | None]
    ) -> Sequence[LayerConfig]:
        """Returns the heads of each layer, from those that most families have in all of them."""
        if self._family.unscaled_scores:
            layer = replace(layer, attention_scale=1.0)
        if not self._family.has_uneven_heads:
            return [layer] * len(windows)
        return uneven_heads(self._config, layer, windows)

    def _local_rope(self, head_dim: int, context: int, usual: float) -> RopeConfig | None:
        """Reads the other rotation, never scaled; `usual` is the base of the first one."""
        config, family, kind = self._config, self._family, "sliding_attention"
        if family.local_theta_default is None and not family.unscaled_windows:
            return None
        theta = family.local_theta_default or usual
        parameters = config.get_object("rope_parameters")
        if parameters is None or parameters.get_object(kind) is None:  # as before Transformers 5
            values = {"rope_theta": config.get_float("rope_local_base_freq", theta)}
            config = config.replaced(values, without=("rope_parameters", "rope_scaling"))
        return read_rope(
            config,
            style=self._family.rope_style,
            head_dim=head_dim,
            max_context=context,
            theta=theta,
            kind=kind,
        ).config

    def _activation(self) -> ActivationFunction:
        if self._family.activation is ActivationFunction.SQUARED_RELU:
            if (name := self._config.get_str(self._kind.activation_key)) != "relu2":
                raise UnsupportedArchitecture(
                    f"{self._kind.architecture} with the activation {name!r} "
                    f"({self._kind.activation_key})",
                    ("the activation 'relu2'",),
                )
            return self._family.activation
        found = activation(self._config, self._kind.activation_key, "silu")
        if self._family.activation is not ActivationFunction.CLAMPED_SWIGLU:
            return found
        for key, known in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
            if (value := self._config.get_float(key, known)) != known:
                raise UnsupportedArchitecture(
                    f"{self._kind.architecture} with {key} {value}", (f"{key} {known}",)
                )
        return self._family.activation

    def _softcap(self, key: str) -> float | None:
        cap = self._config.get_float(key, 0.0)
        if cap < 0:
            raise self._config.bad(key, f"{cap} is not a cap")
        return cap or None

    def _windows(self, count: int) -> tuple[int | None, ...]:
        config, period = self._config, 1 if self._kind.has_windows else self._family.window_period
        if not config.get_bool("use_sliding_window", period is not None):
            return (None,) * count
        window = config.get_positive("sliding_window", None)
        if window is None:
            return (None,) * count
        if (flags := layer_flags(config, count)) is not None:
            return tuple(window if is_local else None for is_local in flags)
        if period == 1:
            return (window,) * count
        if period is not None:
            period = config.get_positive("sliding_window_pattern", period)
            return tuple(None if (n + 1) % period == 0 else window for n in range(count))
        first = config.get_int("max_window_layers", 28)
        return tuple(window if n >= first else None for n in range(count))


def num_layers(config: JsonObject) -> int:
    """Returns the number of layers, at most MAX_LAYERS."""
    count = config.get_positive("num_hidden_layers")
    if count > MAX_LAYERS:
        raise config.bad("num_hidden_layers", f"{count} layers; there may be {MAX_LAYERS}")
    return count


def norm_eps(config: JsonObject, key: str, default: float) -> float:
    """Returns the number that keeps norms from dividing by zero."""
    eps = config.get_float(key, default)
    if not 0 < eps < 1:
        raise config.bad(key, f"{eps} is not in (0, 1)")
    return eps


def activation(config: JsonObject, key: str, default: str) -> ActivationFunction:
    """Returns the activation that the configuration names."""
    name = config.get_str(key, default)
    if name not in ACTIVATIONS:
        raise UnsupportedArchitecture(
            f"{config.get_str('model_type', '')} with the activation {name!r} ({key})",
            tuple(f"the activation {known!r}" for known in ACTIVATIONS),
        )
    return ACTIVATIONS[name]
