"""The architectures we serve, as a table, and how a file's metadata becomes a `ModelConfig`.

A new architecture is a row here: which tensors a layer has, and the few facts that its GGUF
files do not state. Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import (
    ActivationFunction,
    LayerConfig,
    ModelConfig,
    NormKind,
    RopeConfig,
    RopeScaling,
    RopeScalingKind,
    RopeStyle,
)
from rocmforge.models.keys import KeyReader
from rocmforge.models.pooling import declared_pooling

FREQUENCY_FACTORS: Final = "rope_freqs.weight"
LONG_FACTORS: Final = "rope_factors_long.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
"""Divisors of the rope frequencies; see `rope`."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """A tensor of a layer, and the fields of `LayerWeights` its rows fill, in this order."""

    name: str  # in the file, after "blk.N."
    roles: tuple[str, ...]
    required: bool = True


_ATTENTION: Final = (
    TensorRule("attn_norm.weight", ("attn_norm",)),
    TensorRule("attn_q.weight", ("q",)),
    TensorRule("attn_k.weight", ("k",)),
    TensorRule("attn_v.weight", ("v",)),
    TensorRule("attn_output.weight", ("output",)),
)
_FUSED_ATTENTION: Final = (
    TensorRule("attn_norm.weight", ("attn_norm",)),
    TensorRule("attn_qkv.weight", ("q", "k", "v")),
    TensorRule("attn_output.weight", ("output",)),
)
_BIASES: Final = (
    TensorRule("attn_q.bias", ("q_bias",), required=False),
    TensorRule("attn_k.bias", ("k_bias",), required=False),
    TensorRule("attn_v.bias", ("v_bias",), required=False),
    TensorRule("attn_output.bias", ("output_bias",), required=False),
)
_HEAD_NORMS: Final = (
    TensorRule("attn_q_norm.weight", ("q_norm",)),
    TensorRule("attn_k_norm.weight", ("k_norm",)),
)
_FFN: Final = (
    TensorRule("ffn_norm.weight", ("ffn_norm",)),
    TensorRule("ffn_gate.weight", ("gate",)),
    TensorRule("ffn_up.weight", ("up",)),
    TensorRule("ffn_down.weight", ("down",)),
)
_FUSED_FFN: Final = (
    TensorRule("ffn_norm.weight", ("ffn_norm",)),
    TensorRule("ffn_up.weight", ("gate", "up")),
    TensorRule("ffn_down.weight", ("down",)),
)
_POST_NORMS: Final = (
    TensorRule("post_attention_norm.weight", ("attn_post_norm",)),
    TensorRule("post_ffw_norm.weight", ("ffn_post_norm",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One row of the table: what the metadata does not say."""

    layer: tuple[TensorRule, ...]
    rope_style: RopeStyle
    activation: ActivationFunction = ActivationFunction.SILU
    separate_output: bool = True  # may have output.weight; otherwise always the embedding
    scales_embedding: bool = False  # by sqrt(hidden_size)
    has_windows: bool = False  # honours attention.sliding_window
    window_default: int | None = None  # where the key is missing
    window_period: int = 1  # of so many layers the last is full; 1 = every layer has the window
    local_theta_default: float | None = None  # of layers with a window, where the key is missing
    # Layer count of the one size whose scores are scaled by hidden_size / heads, not by head_dim.
    layers_scaled_by_dim: int | None = None


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "llama": Architecture(layer=_ATTENTION + _BIASES + _FFN, rope_style=RopeStyle.NORMAL),
        "qwen2": Architecture(layer=_ATTENTION + _BIASES + _FFN, rope_style=RopeStyle.NEOX),
        "qwen3": Architecture(
            layer=_ATTENTION + _BIASES + _HEAD_NORMS + _FFN, rope_style=RopeStyle.NEOX
        ),
        "gemma2": Architecture(
            layer=_ATTENTION + _POST_NORMS + _FFN,
            rope_style=RopeStyle.NEOX,
            activation=ActivationFunction.GELU_TANH,
            separate_output=False,
            scales_embedding=True,
            has_windows=True,
            window_default=4096,
            window_period=2,
            layers_scaled_by_dim=46,
        ),
        "gemma3": Architecture(
            layer=_ATTENTION + _HEAD_NORMS + _POST_NORMS + _FFN,
            rope_style=RopeStyle.NEOX,
            activation=ActivationFunction.GELU_TANH,
            scales_embedding=True,
            has_windows=True,
            window_period=6,
            local_theta_default=10000.0,
            layers_scaled_by_dim=62,
        ),
        "phi3": Architecture(
            layer=_FUSED_ATTENTION + _FUSED_FFN, rope_style=RopeStyle.NEOX, has_windows=True
        ),
        "glm4": Architecture(
            layer=_ATTENTION + _BIASES + _POST_NORMS + _FUSED_FFN, rope_style=RopeStyle.NORMAL
        ),
    }
)


def read_config(file: GgufFile) -> ModelConfig:
    """Returns the configuration that the file's metadata describes.

    Raises:
        UnsupportedArchitecture: There is no row for it, or it uses a feature we do not have.
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    return _ConfigReader(file).read()


class _ConfigReader(KeyReader):
    """Knows the architecture's row."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        if self._name not in ARCHITECTURES:
            raise UnsupportedArchitecture(self._name, tuple(ARCHITECTURES))
        self._row = ARCHITECTURES[self._name]

    def read(self) -> ModelConfig:
        file, row, key = self._file, self._row, self._key
        self._refuse_unsupported()
        hidden_size = self._positive("embedding_length")
        num_layers = self._num_layers()
        num_heads = self._positive("attention.head_count")
        num_kv_heads = self._positive("attention.head_count_kv", num_heads)
        if num_heads % num_kv_heads:
            raise self._bad(
                "attention.head_count_kv", f"{num_kv_heads} does not divide the {num_heads} heads"
            )
        if hidden_size % num_heads and key("attention.key_length") not in file.metadata:
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
        norm_eps = self._norm_eps("attention.layer_norm_rms_epsilon")
        context = self._positive("context_length")
        rope, local_rope = self._rope(head_dim, context), self._local_rope(head_dim)
        scaling = rope.scaling
        if scaling is not None and scaling.kind is RopeScalingKind.YARN:
            context = max(context, int(scaling.original_context * scaling.factor))
        wide = num_layers == row.layers_scaled_by_dim
        layer = LayerConfig(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            attention_scale=(hidden_size / num_heads if wide else head_dim) ** -0.5,
            window=None,
            local_rope=False,
            intermediate_size=self._positive("feed_forward_length"),
        )
        return ModelConfig(
            architecture=self._name,
            name=file.get_str("general.name", self._name),
            causal=True,
            hidden_size=hidden_size,
            vocab_size=self._vocab_size(),
            max_context=context,
            layers=tuple(
                replace(layer, window=window, local_rope=window is not None and bool(local_rope))
                for window in self._windows(num_layers)
            ),
            norm=NormKind.RMS,
            norm_eps=norm_eps,
            pre_norm=True,
            rope=rope,
            local_rope=local_rope,
            activation=row.activation,
            attention_softcap=self._softcap("attn_logit_softcapping"),
            logit_softcap=self._softcap("final_logit_softcapping"),
            embedding_scale=math.sqrt(hidden_size) if row.scales_embedding else 1.0,
            pooling=declared_pooling(file),
        )

    def _refuse_unsupported(self) -> None:
        for suffix, what in (
            ("expert_count", "experts"),
            ("nextn_predict_layers", "layers for multi-token prediction"),
        ):
            if count := self._file.get_int(self._key(suffix), 0):
                raise UnsupportedArchitecture(
                    f"{self._name} with {count} {what} ({self._key(suffix)})",
                    tuple(ARCHITECTURES),
                )
        if any(self._file.get_ints(self._key("rope.dimension_sections"), [])[1:]):
            raise UnsupportedArchitecture(
                f"{self._name} with positions on several axes "
                f"({self._key('rope.dimension_sections')})",
                tuple(ARCHITECTURES),
            )

    def _vocab_size(self) -> int:
        if "tokenizer.ggml.tokens" not in self._file.metadata:
            return self._positive("vocab_size")
        return super()._vocab_size()

    def _softcap(self, suffix: str) -> float | None:
        cap = self._file.get_float(self._key(suffix), 0.0)
        if cap < 0 or not math.isfinite(cap):
            raise self._bad(suffix, f"{cap} is not a cap")
        return cap or None

    def _windows(self, num_layers: int) -> tuple[int | None, ...]:
        row = self._row
        if not row.has_windows:
            return (None,) * num_layers
        window = self._file.get_int(self._key("attention.sliding_window"), row.window_default or 0)
        if window < 0:
            raise self._bad("attention.sliding_window", f"{window} is negative")
        if window == 0:
            return (None,) * num_layers
        return tuple(window if is_local else None for is_local in self._window_pattern(num_layers))

    def _window_pattern(self, num_layers: int) -> list[bool]:
        """Returns whether each layer has the window. The key may hold a list or a period."""
        suffix = "attention.sliding_window_pattern"
        flags = self._layer_flags(suffix, num_layers)
        if flags is not None:
            return flags
        period = self._positive(suffix, self._row.window_period)
        if period == 1:
            return [True] * num_layers
        return [layer % period != period - 1 for layer in range(num_layers)]

    def _rope(self, head_dim: int, context: int) -> RopeConfig:
        return RopeConfig(
            style=self._row.rope_style,
            rotary_dim=self._rotary_dim(head_dim),
            theta=self._theta("rope.freq_base", 10000.0),
            scaling=self._rope_scaling(context),
        )

    def _local_rope(self, head_dim: int) -> RopeConfig | None:
        suffix, default = "rope.freq_base_swa", self._row.local_theta_default
        if default is None:
            if self._key(suffix) in self._file.metadata:
                raise self._bad(suffix, "the architecture has no second rope base")
            return None
        return RopeConfig(
            style=self._row.rope_style,
            rotary_dim=self._rotary_dim(head_dim),
            theta=self._theta(suffix, default),
            scaling=None,
        )

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
        if name == "none" or (name == RopeScalingKind.LINEAR and factor == 1.0):
            return None
        if name not in tuple(RopeScalingKind):
            raise UnsupportedArchitecture(
                f"{self._name} with rope scaling {name!r} ({key('rope.scaling.type')})",
                tuple(ARCHITECTURES),
            )
        kind = RopeScalingKind(name)
        default_gain = 0.1 * math.log(factor) + 1.0 if kind is RopeScalingKind.YARN else 1.0
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_context=self._positive("rope.scaling.original_context_length", context),
            attention_factor=file.get_float(key("rope.scaling.yarn_attn_factor"), default_gain)
            * file.get_float(key("rope.scaling.attn_factor"), 1.0),
            extrapolation_factor=file.get_float(key("rope.scaling.yarn_ext_factor"), 1.0),
            beta_fast=file.get_float(key("rope.scaling.yarn_beta_fast"), 32.0),
            beta_slow=file.get_float(key("rope.scaling.yarn_beta_slow"), 1.0),
        )
