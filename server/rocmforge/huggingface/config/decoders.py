"""The `config.json` of decoders: what it says, and what their row in `DECODERS` says beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.config.decoder_types import DECODERS, DecoderType
from rocmforge.huggingface.config.experts import read_experts
from rocmforge.huggingface.config.heads import (
    full_heads,
    latent_gain,
    layer_flags,
    read_latent,
    read_layer,
    same_heads,
    uneven_heads,
)
from rocmforge.huggingface.config.recurrent import (
    have_networks,
    read_without_attention,
    with_layer_types,
)
from rocmforge.huggingface.config.rope import Rope, read_rope, with_axes
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.config import ACTIVATIONS, MAX_LAYERS, ActivationFunction, ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope_config import RopeConfig, RopeStyle

_BOTH_SIDES: Final = "use_bidirectional_attention"


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
    if text is config and kind.seeing_both_sides and config.values.get(_BOTH_SIDES) is True:
        return text, replace(kind, architecture=kind.seeing_both_sides)
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
        if family.causal and config.values.get(_BOTH_SIDES) not in (None, False, "vision"):
            raise UnsupportedArchitecture(
                f"{kind.architecture} with attention to both sides ({_BOTH_SIDES})",
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
        if config.has("qk_scale_factor"):  # of normed queries
            gain = self._positive("qk_scale_factor")
            layer = replace(layer, attention_scale=layer.attention_scale * gain)
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
        if family.axes is not None:
            rope = with_axes(config, rope, family.axes, kind.sections)
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
            post_norm_eps=None
            if family.post_norm_eps is None
            else norm_eps(config, "post_norm_eps", family.post_norm_eps),
            pre_norm=family.pre_norm,
            rope=rope.config if self._rotates() else None,
            local_rope=local,
            activation=self._activation(),
            attention_softcap=self._softcap("attn_logit_softcapping"),
            logit_softcap=self._softcap("final_logit_softcapping"),
            logit_scale=self._positive("output_multiplier")
            if family.multiplies_logits
            else 1 / self._scale("logits_scaling"),
            embedding_scale=math.sqrt(hidden_size)
            if family.scales_embedding
            else self._scale("embedding_multiplier") / residual,
            per_layer_size=self._per_layer_size(),
            pooling=pooling,
        )
        if not found.causal and found.attention_softcap is not None:
            raise config.bad("attn_logit_softcapping", "encoders cannot cap scores")
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
        return self._positive(key, 1.0)

    def _positive(self, key: str, default: float | None = None) -> float:
        config = self._config
        scale = config.get_float(key) if default is None else config.get_float(key, default)
        if scale <= 0:
            raise config.bad(key, f"{scale} is not positive")
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
        if self._family.rotates_in_windows:
            return self._without_base(count)
        if (period := self._family.unrotated_period) is None:
            return [False] * count
        key = "no_rope_layers"  # in which 0 says that a layer is one
        if (flags := config.get_numbers(key)) is not None:
            if len(flags) < count:
                raise config.bad(key, f"{len(flags)} numbers for {count} layers")
            return [not flag for flag in flags[:count]]
        period = config.get_positive("no_rope_layer_interval", period)
        return [(layer + 1) % period == 0 for layer in range(count)]

    def _without_base(self, count: int) -> list[bool]:
        """Returns whether each layer has the base 0; others must have that of the model."""
        key = "layer_rope_theta"
        if (bases := self._config.get_numbers(key)) is None:
            return [window is None for window in self._windows(count)]
        if len(bases) != count or len({*bases} - {0}) > 1:
            raise self._config.bad(key, f"{bases} is not 0 or one other base for {count} layers")
        return [base == 0 for base in bases]

    def _heads_by_layer(
        self, layer: LayerConfig, windows: Sequence[int | None]
    ) -> Sequence[LayerConfig]:
        """Returns the heads of each layer, from those that most families have in all of them."""
        if self._family.unscaled_scores:
            layer = replace(layer, attention_scale=1.0)
        if not self._family.has_uneven_heads:
            return same_heads(self._config, layer, len(windows))
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
        if not self._family.causal:  # it counts the tokens to both sides
            window = window // 2 + 1
        if (flags := layer_flags(config, count)) is not None:
            return tuple(window if is_local else None for is_local in flags)
        if period == 1:
            return (window,) * count
        if self._family.rotates_in_windows and period is not None:  # counted from the last one
            return tuple(None if (count - 1 - n) % period == 0 else window for n in range(count))
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
