"""The metadata of a model becomes its configuration.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.gguf.experts import read_experts
from rocmforge.gguf.keys import KeyReader, declared_pooling, predicting_layers
from rocmforge.gguf.names import LONG_FACTORS, PERMUTED
from rocmforge.models.config import ACTIVATIONS, ActivationFunction, ModelConfig, NormKind
from rocmforge.models.layer_config import (
    ConvolutionConfig,
    DeltaConfig,
    LatentConfig,
    LayerConfig,
    MambaConfig,
    layer_without_attention,
    share_caches,
)
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope_config import (
    RopeConfig,
    RopeScaling,
    RopeScalingKind,
    RopeStyle,
    axes_of_pairs,
)

_NORM_EPS: Final = {
    NormKind.RMS: "attention.layer_norm_rms_epsilon",
    NormKind.LAYER: "attention.layer_norm_epsilon",
}


class ConfigReader(KeyReader):
    """Reads the keys of a model, by its family."""

    def read(self) -> ModelConfig:
        """Returns the configuration that the metadata describes.

        Raises:
            UnsupportedArchitecture: It uses a feature we do not have.
            BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
        """
        file, family = self._file, self._family
        self._refuse_unsupported()
        hidden_size = self._positive("embedding_length")
        num_layers = self._num_layers() - predicting_layers(file)
        if num_layers < 1:
            raise self._bad("nextn_predict_layers", "no layer is left of the model itself")
        layer = self._heads(hidden_size, num_layers)
        head_dim = layer.key_dim
        norm_eps, residual_scale = self._norm_eps(_NORM_EPS[family.norm]), self._scale("residual")
        context = self._positive("context_length")
        rope, local_rope = self._rope(head_dim, context), self._local_rope(head_dim)
        scaling = None if rope is None else rope.scaling
        if scaling is not None and scaling.kind is RopeScalingKind.YARN:
            context = max(context, int(scaling.original_context * scaling.factor))
        if layer.latent is not None:
            layer, rope = self._scaled(layer, rope)
        windows = self._windows(num_layers, context)
        has_types = "embedding.type" in family.may_have
        return ModelConfig(
            architecture=self._name,
            name=file.get_str("general.name", self._name),
            causal=family.causal,
            hidden_size=hidden_size,
            vocab_size=self._vocab_size(),
            num_token_types=file.get_int("tokenizer.ggml.token_type_count", 1) if has_types else 0,
            max_context=context,
            layers=tuple(
                replace(
                    other or heads,
                    window=None if other else window,
                    local_rope=window is not None and bool(local_rope),
                    rotates=other is not None or self._rotates(index, window),
                    experts=experts if has_network else None,
                    intermediate_size=self._positive_of("feed_forward_length", index)
                    if has_network and (not experts or family.has_dense_beside_experts)
                    else 0,
                )
                for index, (heads, window, experts, other, has_network) in enumerate(
                    zip(
                        self._heads_by_layer(layer, windows),
                        windows,
                        read_experts(file, num_layers),
                        self._without_attention(hidden_size, num_layers, norm_eps),
                        self._have_networks(num_layers),
                        strict=True,
                    )
                )
            ),
            norm=family.norm,
            # With all of the residual divided by the scale, nothing that is added to it need be
            # multiplied, and norms of it are the same.
            norm_eps=norm_eps / residual_scale**2,
            post_norm_eps=family.post_norm_eps,
            pre_norm=family.pre_norm,
            rope=rope,
            local_rope=local_rope,
            has_alibi=family.has_alibi,
            activation=self._activation(),
            attention_softcap=self._softcap("attn_logit_softcapping"),
            logit_softcap=self._softcap("final_logit_softcapping"),
            logit_scale=self._logit_scale(),
            embedding_scale=math.sqrt(hidden_size)
            if family.scales_embedding
            else self._scale("embedding") / residual_scale,
            per_layer_size=self._per_layer_size(),
            pooling=self._pooling(),
        )

    def _heads(self, hidden_size: int, num_layers: int) -> LayerConfig:
        """Returns what all layers have in common, without their networks."""
        if self._family.is_latent:
            return self._latent_heads()
        num_heads = self._positive("attention.head_count")
        num_kv_heads = self._kv_heads(num_layers, num_heads)
        if num_heads % num_kv_heads:
            raise self._bad(
                "attention.head_count_kv", f"{num_kv_heads} does not divide the {num_heads} heads"
            )
        if hidden_size % num_heads and self._key("attention.key_length") not in self._file.metadata:
            raise self._bad(
                "attention.head_count",
                f"{num_heads} does not divide the width {hidden_size}, and there is no head size",
            )
        head_dim = self._positive("attention.key_length", hidden_size // num_heads)
        value_dim = self._positive("attention.value_length", head_dim)
        if value_dim != head_dim:
            raise self._bad(
                "attention.value_length",
                f"{value_dim} differs from the key length {head_dim}, which is not supported",
            )
        wide = num_layers == self._family.layers_scaled_by_dim
        return LayerConfig(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            attention_scale=1.0
            if self._family.unscaled_scores
            else self._scale("attention.", (hidden_size / num_heads if wide else head_dim) ** -0.5),
            window=None,
            local_rope=False,
            intermediate_size=0,
            joint_head_norms=self._family.joint_head_norms,
            rotates_first=self._family.rotates_first,
            norms_values=self._family.norms_values,
        )

    def _per_layer_size(self) -> int:
        suffix = "embedding_length_per_layer_input"
        size = 0
        if "embedding.per_layer" in self._family.has:
            size = self._file.get_int(self._key(suffix), 0)
        if size < 0:
            raise self._bad(suffix, f"{size} is negative")
        return size

    def _heads_by_layer(
        self, layer: LayerConfig, windows: Sequence[int | None]
    ) -> Sequence[LayerConfig]:
        """Returns the heads of each layer, from those that most families have in all of them."""
        if not self._family.has_uneven_heads:
            return [layer] * len(windows)
        sizes = {False: layer.key_dim, True: layer.key_dim}
        if self._key("attention.key_length_swa") in self._file.metadata:
            sizes[True] = self._positive("attention.key_length_swa")
            if self._positive("attention.value_length_swa", sizes[True]) != sizes[True]:
                raise self._bad("attention.value_length_swa", "it is not the key length")
        counts = self._counts("attention.head_count_kv", len(windows), layer.num_heads)
        for count in counts:
            if not count or layer.num_heads % count:
                raise self._bad(
                    "attention.head_count_kv",
                    f"{count} does not divide the {layer.num_heads} heads",
                )
        found = [
            replace(
                layer,
                num_kv_heads=count,
                key_dim=sizes[window is not None],
                value_dim=sizes[window is not None],
            )
            for count, window in zip(counts, windows, strict=True)
        ]
        suffix = "attention.shared_kv_layers"
        shared = self._file.get_int(self._key(suffix), 0)
        problem = share_caches(found, windows, shared)
        if problem is not None:
            raise self._bad(suffix, problem)
        return found

    def _kv_heads(self, num_layers: int, num_heads: int) -> int:
        """Returns the heads of keys and values of each layer that has attention."""
        suffix = "attention.head_count_kv"
        counts = {*self._counts(suffix, num_layers, num_heads)}
        if self._family.has_states:
            counts.discard(0)
        if self._family.has_uneven_heads:
            return max(counts)  # of each layer, see below
        if len(counts) != 1 or 0 in counts:
            raise self._bad(suffix, f"it differs by layer ({sorted(counts)}): not supported")
        return counts.pop()

    def _counts(self, suffix: str, num_layers: int, default: int) -> list[int]:
        """Returns a number of each layer, which may be 0; the key may hold one for all of them."""
        key = self._key(suffix)
        if not isinstance(self._file.metadata.get(key), np.ndarray):
            return [self._positive(suffix, default)] * num_layers
        counts: list[int] = self._file.get_ints(key).tolist()[:num_layers]
        if len(counts) < num_layers or min(counts) < 0:
            raise self._bad(suffix, f"{counts} are no counts for {num_layers} layers")
        return counts

    def _positive_of(self, suffix: str, layer: int) -> int:
        """Returns a positive number of a layer; the key may hold one for all of them."""
        value = self._file.metadata.get(self._key(suffix))
        may_differ = self._family.has_one_part or self._family.has_uneven_heads
        if isinstance(value, np.ndarray) and may_differ:
            if (found := self._counts(suffix, layer + 1, 0)[layer]) < 1:
                raise self._bad(suffix, f"{found} of layer {layer} is not positive")
            return found
        return self._positive(suffix)

    def _have_networks(self, num_layers: int) -> list[bool]:
        """Returns whether each layer has a feed-forward network or experts."""
        if not self._family.has_one_part:
            return [True] * num_layers
        return [size > 0 for size in self._counts("feed_forward_length", num_layers, 0)]

    def _without_attention(
        self, hidden_size: int, num_layers: int, norm_eps: float
    ) -> list[LayerConfig | None]:
        """Returns the layers that have no attention, without their networks; None for others."""
        family = self._family
        if not family.has_states:
            return [None] * num_layers
        if family.has_delta:
            delta = self._delta()
            layer = layer_without_attention(
                self._convolution("ssm.conv_kernel", delta.mixed_features), delta=delta
            )
            flags = self._layer_flags("attention.recurrent_layers", num_layers)
            if flags is None:
                period = self._positive("full_attention_interval", 4)
                flags = [(index + 1) % period != 0 for index in range(num_layers)]
            return [layer if is_recurrent else None for is_recurrent in flags]
        if family.has_mamba:
            mamba = self._mamba(norm_eps)
            convolution = self._convolution("ssm.conv_kernel", mamba.mixed_features)
            layer = layer_without_attention(convolution, mamba=mamba)
        else:
            layer = layer_without_attention(self._convolution("shortconv.l_cache", hidden_size))
        found: list[LayerConfig | None] = []
        counts = self._counts("attention.head_count_kv", num_layers, 1)
        for count, has_network in zip(counts, self._have_networks(num_layers), strict=True):
            if family.has_one_part and has_network:
                found.append(layer_without_attention())
            else:
                found.append(None if count else layer)
        return found

    def _mamba(self, norm_eps: float) -> MambaConfig:
        heads, inner = self._positive("ssm.time_step_rank"), self._positive("ssm.inner_size")
        if inner % heads:
            raise self._bad("ssm.inner_size", f"{heads} heads do not divide {inner}")
        mamba = MambaConfig(
            num_heads=heads,
            head_dim=inner // heads,
            num_groups=self._positive("ssm.group_count"),
            state_size=self._positive("ssm.state_size"),
            norm_eps=norm_eps,
        )
        if (problem := mamba.problem()) is not None:
            raise self._bad("ssm.group_count", problem)
        return mamba

    def _convolution(self, suffix: str, channels: int) -> ConvolutionConfig:
        width = self._positive(suffix)
        if width < 2:
            raise self._bad(suffix, f"a convolution of {width} inputs has no state")
        return ConvolutionConfig(channels=channels, width=width)

    def _delta(self) -> DeltaConfig:
        heads, inner = self._positive("ssm.time_step_rank"), self._positive("ssm.inner_size")
        if inner % heads:
            raise self._bad("ssm.inner_size", f"{heads} heads do not divide {inner}")
        delta = DeltaConfig(
            num_key_heads=self._positive("ssm.group_count"),
            num_value_heads=heads,
            key_dim=self._positive("ssm.state_size"),
            value_dim=inner // heads,
            is_tiled=self._family.tiled_values,
        )
        if (problem := delta.problem()) is not None:
            raise self._bad("ssm.time_step_rank", problem[1])
        return delta

    def _latent_heads(self) -> LayerConfig:
        """Returns the same of layers whose heads share a row of the cache.

        Older files have the sizes of heads as they were before matrices were absorbed, newer ones
        have both.
        """
        suffix = "attention.temperature_scale"
        if scale := self._file.get_float(self._key(suffix), 0.0):
            raise UnsupportedArchitecture(
                f"{self._name} with scores scaled by position, by {scale} ({self._key(suffix)})",
                self._known,
            )
        new = "_mla" if self._key("attention.key_length_mla") in self._file.metadata else ""
        key_dim = self._positive(f"attention.key_length{new}")
        rank, rotary_dim = self._positive("attention.kv_lora_rank"), self._rotary_dim(key_dim)
        if rotary_dim == key_dim:
            raise self._bad("rope.dimension_count", f"all {key_dim} elements of a head rotate")
        suffix = "attention.q_lora_rank"
        if (query_rank := self._file.get_int(self._key(suffix), 0)) < 0:
            raise self._bad(suffix, f"{query_rank} is negative")
        return LayerConfig(
            num_heads=self._positive("attention.head_count"),
            num_kv_heads=1,
            key_dim=rotary_dim + rank,
            value_dim=rank,
            attention_scale=key_dim**-0.5,
            window=None,
            local_rope=False,
            intermediate_size=0,
            latent=LatentConfig(
                query_rank=query_rank,
                rank=rank,
                rotary_dim=rotary_dim,
                plain_dim=key_dim - rotary_dim,
                value_dim=self._positive(f"attention.value_length{new}"),
            ),
        )

    def _scaled(
        self, layer: LayerConfig, rope: RopeConfig | None
    ) -> tuple[LayerConfig, RopeConfig | None]:
        """Returns layer and rope with YaRN as it is where a file has its multiplier.

        There it changes the scores of all elements, and leaves cosines and sines as they are.
        """
        suffix = "rope.scaling.yarn_log_multiplier"
        # Converters write a tenth of it, of these architectures only.
        multiplier = self._not_negative(suffix) / 0.1
        scaling = None if rope is None else rope.scaling
        if rope is None or scaling is None or scaling.kind is not RopeScalingKind.YARN:
            return layer, rope
        if not multiplier:
            return layer, rope
        own = self._file.get_float(self._key("rope.scaling.attn_factor"), 1.0)
        gain = own * (1 + 0.1 * multiplier * math.log(max(scaling.factor, 1.0)))
        return (
            replace(layer, attention_scale=layer.attention_scale * gain**2),
            replace(rope, scaling=replace(scaling, attention_factor=own)),
        )

    def _pooling(self) -> PoolingType:
        return declared_pooling(self._file)

    def _refuse_unsupported(self) -> None:
        suffix = "attention.clamp_kqv"
        if limit := self._file.get_float(self._key(suffix), 0.0):
            raise UnsupportedArchitecture(
                f"{self._name} with queries, keys and values within {limit} ({self._key(suffix)})",
                self._known,
            )
        if self._family.axes is None and any(self._sections()[1:]):
            raise UnsupportedArchitecture(
                f"{self._name} with positions on several axes "
                f"({self._key('rope.dimension_sections')})",
                self._known,
            )

    def _activation(self) -> ActivationFunction:
        """Returns the activation of the gate, which the file may name."""
        suffix = "hidden_activation"
        is_gated = "feed_forward.gate" in self._family.has
        if self._key(suffix) not in self._file.metadata or not is_gated:
            return self._family.activation
        name = self._file.get_str(self._key(suffix))
        if name not in ACTIVATIONS:
            raise UnsupportedArchitecture(
                f"{self._name} with the activation {name!r} ({self._key(suffix)})",
                tuple(f"{self._name} with {known}" for known in ACTIVATIONS),
            )
        return ACTIVATIONS[name]

    def _scale(self, name: str, default: float = 1.0) -> float:
        """Returns a factor, which files of some families state: 0 stands for none."""
        if not self._family.is_scaled:
            return default
        suffix = f"{name}scale" if name.endswith(".") else f"{name}_scale"
        scale = self._file.get_float(self._key(suffix), 0.0)
        if not 0 <= scale < math.inf:
            raise self._bad(suffix, f"{scale} is no factor")
        return scale or default

    def _logit_scale(self) -> float:
        if not self._family.multiplies_logits:
            return 1 / self._scale("logit")
        scale = self._file.get_float(self._key("logit_scale"))
        if not 0 < scale < math.inf:
            raise self._bad("logit_scale", f"{scale} is no factor")
        return scale

    def _softcap(self, suffix: str) -> float | None:
        cap = self._file.get_float(self._key(suffix), 0.0)
        if cap < 0 or not math.isfinite(cap):
            raise self._bad(suffix, f"{cap} is not a cap")
        return cap or None

    def _windows(self, num_layers: int, context: int) -> tuple[int | None, ...]:
        family, suffix = self._family, "attention.sliding_window"
        if family.window_period is None:
            return (None,) * num_layers
        window = self._file.get_int(self._key(suffix), family.window_default or 0)
        if window < 0:
            raise self._bad(suffix, f"{window} is negative")
        if window == 0 and family.rotates_in_windows:
            raise self._bad(suffix, "no layer would know positions")
        if window == 0:
            return (None,) * num_layers
        window = self._seen(window, context)
        return tuple(
            window if is_local else None
            for is_local in self._window_pattern(num_layers, family.window_period)
        )

    def _window_pattern(self, num_layers: int, period: int) -> list[bool]:
        """Returns whether each layer has the window. The key may hold a list or a period."""
        suffix = "attention.sliding_window_pattern"
        flags = self._layer_flags(suffix, num_layers)
        if flags is not None:
            return flags
        period = self._positive(suffix, period)
        return [self._is_local(layer, period) for layer in range(num_layers)]

    def _seen(self, window: int, context: int) -> int:
        """Returns a window of ours, by that of the file."""
        return window

    def _is_local(self, layer: int, period: int) -> bool:
        if self._family.first_sees_all:
            return layer % period != 0
        return period == 1 or layer % period != period - 1

    @property
    def _rope_style(self) -> RopeStyle:
        return RopeStyle.NORMAL if self._name in PERMUTED else self._family.rope_style

    def _rope(self, head_dim: int, context: int) -> RopeConfig | None:
        if not self._family.has_rope:
            return None
        # Files of Granite say with this key whether queries and keys rotate at all.
        if self._family.is_scaled and not self._file.get_bool(
            self._key("rope.scaling.finetuned"), True
        ):
            return None
        rotary_dim = self._rotary_dim(head_dim)
        return RopeConfig(
            style=self._rope_style,
            rotary_dim=rotary_dim,
            theta=self._theta("rope.freq_base", 10000.0),
            scaling=self._rope_scaling(context),
            axes=self._axes(rotary_dim // 2),
        )

    def _sections(self) -> list[int]:
        """Returns the pairs of a head for each axis of positions, as far as a file says it."""
        found = self._file.get_ints(self._key("rope.dimension_sections"), None)
        return [] if found is None else [int(count) for count in found]

    def _axes(self, pairs: int) -> tuple[int, ...]:
        sections = self._sections()
        if self._family.axes is None or not any(sections):
            return ()
        while not sections[-1]:
            sections = sections[:-1]
        if min(sections) < 0 or sum(sections) != pairs:
            reason = f"{sections} are not the {pairs} pairs of a head"
            raise self._bad("rope.dimension_sections", reason)
        return axes_of_pairs(sections, self._family.axes)

    def _local_rope(self, head_dim: int) -> RopeConfig | None:
        suffix, default = "rope.freq_base_swa", self._family.local_theta_default
        if self._family.unscaled_windows:
            default = self._theta("rope.freq_base", 10000.0)
        if default is None:
            if self._key(suffix) in self._file.metadata:
                raise self._bad(suffix, "the architecture has no second rope base")
            return None
        rotary_dim = self._rotary_dim(head_dim)
        if self._family.has_uneven_heads:
            own = self._positive("attention.key_length_swa", head_dim)
            rotary_dim = self._positive("rope.dimension_count_swa", own)
            if rotary_dim > own or rotary_dim % 2:
                reason = f"{rotary_dim} of {own} elements cannot rotate"
                raise self._bad("rope.dimension_count_swa", reason)
        return RopeConfig(
            style=self._rope_style,
            rotary_dim=rotary_dim,
            theta=self._theta(suffix, default),
            scaling=None,
        )

    def _rotates(self, layer: int, window: int | None) -> bool:
        period = self._family.unrotated_period
        if self._family.rotates_in_windows:
            return window is not None
        return period is None or (layer + 1) % period != 0

    def _rope_scaling(self, context: int) -> RopeScaling | None:
        file, key = self._file, self._key
        name = file.get_str(key("rope.scaling.type"), "linear")
        factor = file.get_float(
            key("rope.scaling.factor"), file.get_float(key("rope.scale_linear"), 0.0)
        )
        if factor < 0 or not math.isfinite(factor):
            raise self._bad("rope.scaling.factor", f"{factor} is not positive")
        factor = factor or 1.0
        if LONG_FACTORS in file.tensors:  # Phi-3 files have these, but do not name the kind
            name = RopeScalingKind.LONGROPE
        suffix = "attention.temperature_scale"
        temperature = self._not_negative(suffix) if self._family.has_temperature else 0.0
        if name == "none" or (name == RopeScalingKind.LINEAR and factor == 1.0):
            if temperature:
                raise self._bad(suffix, f"{temperature} without a context that was extended")
            return None
        if name not in tuple(RopeScalingKind):
            raise UnsupportedArchitecture(
                f"{self._name} with rope scaling {name!r} ({key('rope.scaling.type')})",
                self._known,
            )
        kind = RopeScalingKind(name)
        default_gain = 0.1 * math.log(factor) + 1.0 if kind is RopeScalingKind.YARN else 1.0
        if self._family.has_temperature and kind is RopeScalingKind.YARN:
            multiplier = self._not_negative("rope.scaling.yarn_log_multiplier")
            default_gain /= 0.1 * multiplier * math.log(max(factor, 1.0)) + 1.0
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_context=self._positive("rope.scaling.original_context_length", context),
            attention_factor=file.get_float(key("rope.scaling.yarn_attn_factor"), default_gain)
            * file.get_float(key("rope.scaling.attn_factor"), 1.0),
            extrapolation_factor=file.get_float(key("rope.scaling.yarn_ext_factor"), 1.0),
            beta_fast=file.get_float(key("rope.scaling.yarn_beta_fast"), 32.0),
            beta_slow=file.get_float(key("rope.scaling.yarn_beta_slow"), 1.0),
            rounds_bounds=self._family.rounds_yarn,
            temperature=temperature,
        )

    def _not_negative(self, suffix: str) -> float:
        value = self._file.get_float(self._key(suffix), 0.0)
        if not 0 <= value < math.inf:
            raise self._bad(suffix, f"{value} is negative or not finite")
        return value
