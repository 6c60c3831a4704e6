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
from rocmforge.gguf.config.experts import read_experts
from rocmforge.gguf.config.keys import KeyReader, declared_pooling, predicting_layers
from rocmforge.gguf.config.latent import LatentReader
from rocmforge.gguf.config.recurrent import RecurrentReader
from rocmforge.gguf.config.rope import RopeReader
from rocmforge.models.config import ACTIVATIONS, ActivationFunction, ModelConfig, NormKind
from rocmforge.models.layer_config import LayerConfig, share_caches
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope_config import RopeScalingKind

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
        file, family, ropes = self._file, self._family, RopeReader(self._file)
        self._refuse_unsupported()
        hidden_size = self._positive("embedding_length")
        num_layers = self._num_layers() - predicting_layers(file)
        if num_layers < 1:
            raise self._bad("nextn_predict_layers", "no layer is left of the model itself")
        layer = self._heads(hidden_size, num_layers)
        head_dim = layer.key_dim
        norm_eps, residual_scale = self._norm_eps(_NORM_EPS[family.norm]), self._scale("residual")
        context = self._positive("context_length")
        rope, local_rope = ropes.read(head_dim, context), ropes.read_local(head_dim)
        scaling = None if rope is None else rope.scaling
        if scaling is not None and scaling.kind is RopeScalingKind.YARN:
            context = max(context, int(scaling.original_context * scaling.factor))
        if layer.latent is not None:
            layer, rope = LatentReader(file).scale(layer, rope)
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
                    rotates=other is not None or ropes.rotates(index, window),
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
                        RecurrentReader(file).read(hidden_size, num_layers, norm_eps),
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
            per_layer_size=self._count("embedding_length_per_layer_input")
            if "embedding.per_layer" in family.has
            else 0,
            pooling=self._pooling(),
        )

    def _heads(self, hidden_size: int, num_layers: int) -> LayerConfig:
        """Returns what all layers have in common, without their networks."""
        if self._family.is_latent:
            return LatentReader(self._file).read()
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
            intermediate_size=0,
            joint_head_norms=self._family.joint_head_norms,
            rotates_first=self._family.rotates_first,
            norms_values=self._family.norms_values,
        )

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

    def _positive_of(self, suffix: str, layer: int) -> int:
        """Returns a positive number of a layer; the key may hold one for all of them."""
        value = self._file.metadata.get(self._key(suffix))
        may_differ = self._family.has_one_part or self._family.has_uneven_heads
        if isinstance(value, np.ndarray) and may_differ:
            if (found := self._counts(suffix, layer + 1, 0)[layer]) < 1:
                raise self._bad(suffix, f"{found} of layer {layer} is not positive")
            return found
        return self._positive(suffix)

    def _pooling(self) -> PoolingType:
        return declared_pooling(self._file)

    def _refuse_unsupported(self) -> None:
        suffix = "attention.clamp_kqv"
        if limit := self._file.get_float(self._key(suffix), 0.0):
            raise UnsupportedArchitecture(
                f"{self._name} with queries, keys and values within {limit} ({self._key(suffix)})",
                self._known,
            )
        RopeReader(self._file).check_axes()

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
