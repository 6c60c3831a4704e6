"""Encoders of the BERT family: the architectures as a table, and a file's metadata as a config.

The facts of each are those of the converter and the graphs of llama.cpp (`conversion/bert.py`,
`src/models/bert.cpp`). Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from rocmforge.errors import UnsupportedArchitecture, UnsupportedTensor
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.architectures import TensorRule
from rocmforge.models.config import (
    ActivationFunction,
    LayerConfig,
    ModelConfig,
    NormKind,
    RopeConfig,
    RopeStyle,
)
from rocmforge.models.keys import KeyReader
from rocmforge.models.pooling import SCORES, PoolingType, declared_pooling

ACTIVATIONS: Final[Mapping[str, ActivationFunction]] = MappingProxyType(
    {
        "gelu": ActivationFunction.GELU,
        "gelu_pytorch_tanh": ActivationFunction.GELU_TANH,
        "gelu_new": ActivationFunction.GELU_TANH,
        "silu": ActivationFunction.SILU,
        "swish": ActivationFunction.SILU,
    }
)
"""By the names of Transformers, which files repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderArchitecture:
    """One row of the table: what the metadata does not say.

    `model` are the tensors outside the layers, with the fields of `EncoderWeights` that they fill.
    Files of one architecture may have them in several ways: `variants` are rules that come on top
    of `layer`, each set with the tensor of the first layer that tells it; the first found is taken.
    """

    model: tuple[TensorRule, ...]
    layer: tuple[TensorRule, ...]
    variants: tuple[tuple[str, tuple[TensorRule, ...]], ...] = ()
    not_in_first_layer: frozenset[str] = frozenset()  # names of rules
    activation: ActivationFunction  # where the file does not name another
    pre_norm: bool = False
    has_rope: bool = False
    window_period: int | None = None  # of so many layers the first sees all; None = every layer
    local_theta_default: float = 10000.0  # of layers with a window
    has_alibi: bool = False
    has_head: bool = True  # may rank

    @property
    def has_gate(self) -> bool:
        """Whether the feed-forward network is gated."""
        rules = [*self.layer, *(rule for _, variant in self.variants for rule in variant)]
        return any("gate" in rule.roles for rule in rules)

    def layer_rules(self, file: GgufFile, layer: int) -> tuple[TensorRule, ...]:
        """Returns the rules of the tensors of the layer with this index."""
        rules = self.layer
        if self.variants:
            found = [own for name, own in self.variants if f"blk.0.{name}" in file.tensors]
            rules += (found or [self.variants[-1][1]])[0]
        if layer > 0:
            return rules
        return tuple(rule for rule in rules if rule.name not in self.not_in_first_layer)


_TOKENS: Final = (
    TensorRule("token_embd.weight", ("tokens",)),
    TensorRule("token_embd_norm.weight", ("norm",)),
)
_BERT_TOKENS: Final = (
    *_TOKENS,
    TensorRule("token_embd_norm.bias", ("norm_bias",)),
    TensorRule("token_types.weight", ("types",), required=False),
)
_BERT_ATTENTION: Final = (
    TensorRule("attn_q.weight", ("q",)),
    TensorRule("attn_q.bias", ("q_bias",), required=False),
    TensorRule("attn_k.weight", ("k",)),
    TensorRule("attn_k.bias", ("k_bias",), required=False),
    TensorRule("attn_v.weight", ("v",)),
    TensorRule("attn_v.bias", ("v_bias",), required=False),
    TensorRule("attn_output.weight", ("output",)),
    TensorRule("attn_output.bias", ("output_bias",), required=False),
)
_JINA_CODE_NORMS: Final = (
    TensorRule("attn_q_norm.weight", ("q_norm",), required=False),
    TensorRule("attn_q_norm.bias", ("q_norm_bias",), required=False),
    TensorRule("attn_k_norm.weight", ("k_norm",), required=False),
    TensorRule("attn_k_norm.bias", ("k_norm_bias",), required=False),
    TensorRule("attn_norm_2.weight", ("attn_norm_2",), required=False),
    TensorRule("attn_norm_2.bias", ("attn_norm_2_bias",), required=False),
)
_POST_NORMS: Final = (
    TensorRule("attn_output_norm.weight", ("attn_norm",)),
    TensorRule("attn_output_norm.bias", ("attn_norm_bias",)),
    TensorRule("layer_output_norm.weight", ("ffn_norm",)),
    TensorRule("layer_output_norm.bias", ("ffn_norm_bias",)),
)

ENCODERS: Final[Mapping[str, EncoderArchitecture]] = MappingProxyType(
    {
        # BERT, and RoBERTa and XLM-RoBERTa, whose position table starts where theirs is used.
        "bert": EncoderArchitecture(
            model=(*_BERT_TOKENS, TensorRule("position_embd.weight", ("positions",))),
            layer=(
                *_BERT_ATTENTION,
                TensorRule("ffn_up.weight", ("up",)),
                TensorRule("ffn_up.bias", ("up_bias",), required=False),
                TensorRule("ffn_down.weight", ("down",)),
                TensorRule("ffn_down.bias", ("down_bias",), required=False),
                *_POST_NORMS,
            ),
            activation=ActivationFunction.GELU,
        ),
        "nomic-bert": EncoderArchitecture(
            model=_BERT_TOKENS,
            layer=(
                TensorRule("attn_qkv.weight", ("q", "k", "v")),
                TensorRule("attn_output.weight", ("output",)),
                TensorRule("ffn_gate.weight", ("gate",)),
                TensorRule("ffn_up.weight", ("up",)),
                TensorRule("ffn_down.weight", ("down",)),
                *_POST_NORMS,
            ),
            activation=ActivationFunction.SILU,
            has_rope=True,
        ),
        # Warner et al. 2024, arXiv:2412.13663.
        "modern-bert": EncoderArchitecture(
            model=(*_TOKENS, TensorRule("output_norm.weight", ("output_norm",))),
            layer=(
                TensorRule("attn_norm.weight", ("attn_norm",)),
                TensorRule("attn_qkv.weight", ("q", "k", "v")),
                TensorRule("attn_output.weight", ("output",)),
                TensorRule("ffn_norm.weight", ("ffn_norm",)),
                TensorRule("ffn_up.weight", ("gate", "up")),
                TensorRule("ffn_down.weight", ("down",)),
            ),
            not_in_first_layer=frozenset({"attn_norm.weight"}),  # the embedding's norm is there
            activation=ActivationFunction.GELU,
            pre_norm=True,
            has_rope=True,
            window_period=3,
            has_head=False,
        ),
        # Günther et al. 2023, arXiv:2310.19923.
        "jina-bert-v2": EncoderArchitecture(
            model=_BERT_TOKENS,
            layer=(
                *_BERT_ATTENTION,
                *_JINA_CODE_NORMS,
                TensorRule("ffn_down.weight", ("down",)),
                TensorRule("ffn_down.bias", ("down_bias",), required=False),
                *_POST_NORMS,
            ),
            variants=(
                (
                    "ffn_gate.weight",  # files of older converters
                    (
                        TensorRule("ffn_gate.weight", ("gate",)),
                        TensorRule("ffn_up.weight", ("up",)),
                    ),
                ),
                # The model for code has the gate last; llama.cpp takes it to be first there, too.
                ("attn_q_norm.weight", (TensorRule("ffn_up.weight", ("up", "gate")),)),
                ("ffn_up.weight", (TensorRule("ffn_up.weight", ("gate", "up")),)),
            ),
            activation=ActivationFunction.GELU,
            has_alibi=True,
            has_head=False,
        ),
    }
)


def is_encoder(file: GgufFile) -> bool:
    """Returns whether the file's architecture is in the table."""
    return file.metadata.get("general.architecture") in ENCODERS


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
    """Knows the architecture's row."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self._row = ENCODERS[self._name]

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
                f"{self._name} with causal attention ({key('attention.causal')})", tuple(ENCODERS)
            )
        norm_eps = self._norm_eps("attention.layer_norm_epsilon")
        pooling = _pooling(file)
        if pooling is PoolingType.RANK and not self._row.has_head:
            raise UnsupportedArchitecture(
                f"{self._name} with a classification head ({SCORES})",
                tuple(name for name, row in ENCODERS.items() if row.has_head),
            )
        num_layers, max_context = self._num_layers(), self._positive("context_length")
        head_dim = hidden_size // num_heads
        rope = self._rope(head_dim) if self._row.has_rope else None
        local_rope = None
        if rope is not None and self._row.window_period is not None:
            theta = self._theta("rope.freq_base_swa", self._row.local_theta_default)
            local_rope = replace(rope, theta=theta)
        layer = LayerConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            attention_scale=float(head_dim**-0.5),
            window=None,
            local_rope=False,
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
            pre_norm=self._row.pre_norm,
            rope=rope,
            local_rope=local_rope,
            has_alibi=self._row.has_alibi,
            activation=self._activation(),
            pooling=pooling,
            num_scores=_num_scores(file) if pooling is PoolingType.RANK else 0,
        )

    def _rope(self, head_dim: int) -> RopeConfig:
        scaling = self._file.get_str(self._key("rope.scaling.type"), "none")
        if scaling != "none" and self._file.get_float(self._key("rope.scaling.factor"), 1.0) != 1:
            raise UnsupportedArchitecture(
                f"{self._name} with rope scaling ({self._key('rope.scaling.type')})",
                tuple(ENCODERS),
            )
        return RopeConfig(
            style=RopeStyle.NEOX,
            rotary_dim=self._rotary_dim(head_dim),
            theta=self._theta("rope.freq_base", 10000.0),
            scaling=None,
        )

    def _activation(self) -> ActivationFunction:
        """Returns the activation of the gate, which the file may name."""
        row, suffix = self._row, "hidden_activation"
        if self._key(suffix) not in self._file.metadata or not row.has_gate:
            return row.activation
        name = self._file.get_str(self._key(suffix))
        if name not in ACTIVATIONS:
            raise UnsupportedArchitecture(
                f"{self._name} with the activation {name!r} ({self._key(suffix)})",
                tuple(f"{self._name} with {known}" for known in ACTIVATIONS),
            )
        return ACTIVATIONS[name]

    def _windows(self, num_layers: int, max_context: int) -> tuple[int | None, ...]:
        """Returns each layer's window. That of the file counts the tokens to both sides."""
        period = self._row.window_period
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
