"""The metadata of an encoder of the BERT family becomes its configuration.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from dataclasses import replace

from rocmforge.errors import UnsupportedArchitecture, UnsupportedTensor
from rocmforge.gguf.keys import KeyReader, declared_pooling
from rocmforge.gguf.names import SCORES
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import (
    ACTIVATIONS,
    ActivationFunction,
    LayerConfig,
    ModelConfig,
    NormKind,
    RopeConfig,
)
from rocmforge.models.families import ENCODERS, FAMILIES
from rocmforge.models.pooling import PoolingType


def read_encoder_config(file: GgufFile) -> ModelConfig:
    """Returns the configuration that the metadata of an encoder describes.

    Raises:
        UnsupportedArchitecture: It uses a feature we do not have.
        UnsupportedTensor: It is said to rank, but has no classification head.
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    return _Reader(file).read()


def _pooling(file: GgufFile) -> PoolingType:
    """Returns what the model was trained for.

    Files of rankers may not say so: then it is the head that tells. Sentence-Transformers takes
    the mean of a model that says nothing (Reimers and Gurevych 2019).
    """
    declared = declared_pooling(file)
    if declared is not PoolingType.NONE:
        return declared
    return PoolingType.RANK if SCORES in file.tensors else PoolingType.MEAN


def _num_scores(file: GgufFile) -> int:
    if SCORES not in file.tensors:
        raise UnsupportedTensor(SCORES, "missing, although the file says that the model ranks")
    # llama.cpp drops the first axis of a matrix with one row when it writes a file.
    shape = file.tensors[SCORES].shape
    return shape[0] if len(shape) == 2 else 1


class _Reader(KeyReader):
    def read(self) -> ModelConfig:
        file, key = self._file, self._key
        hidden_size = self._positive("embedding_length")
        num_heads = self._positive("attention.head_count")
        if hidden_size % num_heads:
            raise self._bad(
                "attention.head_count", f"{num_heads} does not divide the width {hidden_size}"
            )
        for suffix in ("attention.head_count_kv", "attention.key_length", "attention.value_length"):
            expected = (
                num_heads if suffix == "attention.head_count_kv" else hidden_size // num_heads
            )
            if (value := self._positive(suffix, expected)) != expected:
                raise self._bad(suffix, f"{value} where encoders have {expected}")
        if file.get_bool(key("attention.causal"), False):
            raise UnsupportedArchitecture(
                f"{self._name} with causal attention ({key('attention.causal')})", ENCODERS
            )
        norm_eps = self._norm_eps("attention.layer_norm_epsilon")
        pooling = _pooling(file)
        if pooling is PoolingType.RANK and "head.scores" not in self._family.may_have:
            raise UnsupportedArchitecture(
                f"{self._name} with a classification head ({SCORES})",
                tuple(name for name in ENCODERS if "head.scores" in FAMILIES[name].may_have),
            )
        num_layers, max_context = self._num_layers(), self._positive("context_length")
        head_dim = hidden_size // num_heads
        rope = self._rope(head_dim) if self._family.has_rope else None
        local_rope = None
        if rope is not None and self._family.local_theta_default is not None:
            theta = self._theta("rope.freq_base_swa", self._family.local_theta_default)
            local_rope = replace(rope, theta=theta)
        layer = LayerConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            attention_scale=float(head_dim**-0.5),
            window=None,
            local_rope=False,
            joint_head_norms=True,
            intermediate_size=self._positive("feed_forward_length"),
        )
        return ModelConfig(
            architecture=self._name,
            name=file.get_str("general.name", self._name),
            causal=False,
            hidden_size=hidden_size,
            vocab_size=self._vocab_size(),
            num_token_types=file.get_int("tokenizer.ggml.token_type_count", 1),
            max_context=max_context,
            layers=tuple(
                replace(layer, window=window, local_rope=window is not None)
                for window in self._windows(num_layers, max_context)
            ),
            norm=NormKind.LAYER,
            norm_eps=norm_eps,
            pre_norm=self._family.pre_norm,
            rope=rope,
            local_rope=local_rope,
            has_alibi=self._family.has_alibi,
            activation=self._activation(),
            pooling=pooling,
            num_scores=_num_scores(file) if pooling is PoolingType.RANK else 0,
        )

    def _rope(self, head_dim: int) -> RopeConfig:
        scaling = self._file.get_str(self._key("rope.scaling.type"), "none")
        if scaling != "none" and self._file.get_float(self._key("rope.scaling.factor"), 1.0) != 1:
            raise UnsupportedArchitecture(
                f"{self._name} with rope scaling ({self._key('rope.scaling.type')})",
                ENCODERS,
            )
        return RopeConfig(
            style=self._family.rope_style,
            rotary_dim=self._rotary_dim(head_dim),
            theta=self._theta("rope.freq_base", 10000.0),
            scaling=None,
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

    def _windows(self, num_layers: int, max_context: int) -> tuple[int | None, ...]:
        """Returns each layer's window. That of the file counts the tokens to both sides."""
        period = self._family.window_period
        window = self._file.get_int(self._key("attention.sliding_window"), 0) if period else 0
        if window < 0 or window == 1:
            raise self._bad("attention.sliding_window", f"{window} is not a window")
        if period is None or window == 0:
            return (None,) * num_layers
        seen = min(window // 2, max_context) + 1
        return tuple(seen if local else None for local in self._is_local(num_layers, period))

    def _is_local(self, num_layers: int, period: int) -> list[bool]:
        """Returns whether each layer has the window. The key may hold a list or a period."""
        suffix = "attention.sliding_window_pattern"
        flags = self._layer_flags(suffix, num_layers)
        if flags is not None:
            return flags
        period = self._positive(suffix, period)
        return [layer % period != 0 for layer in range(num_layers)]
