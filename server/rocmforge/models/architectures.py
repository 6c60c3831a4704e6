"""The architectures we serve, as tables: what is known of each, and what few files state.

How a reader finds the weights of each in its kind of file is in `gguf.names` and its like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rocmforge.models.config import ActivationFunction, RopeStyle

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
class Architecture:
    """The facts of a decoder that its file does not state, or may leave out."""

    rope_style: RopeStyle
    activation: ActivationFunction = ActivationFunction.SILU
    scales_embedding: bool = False  # by sqrt(hidden_size)
    has_windows: bool = False  # honours attention.sliding_window
    window_default: int | None = None  # where the key is missing
    window_period: int = 1  # of so many layers the last is full; 1 = every layer has the window
    local_theta_default: float | None = None  # of layers with a window, where the key is missing
    # Layer count of the one size whose scores are scaled by hidden_size / heads, not by head_dim.
    layers_scaled_by_dim: int | None = None


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "llama": Architecture(rope_style=RopeStyle.NORMAL),
        "qwen2": Architecture(rope_style=RopeStyle.NEOX),
        "qwen3": Architecture(rope_style=RopeStyle.NEOX),
        "gemma2": Architecture(
            rope_style=RopeStyle.NEOX,
            activation=ActivationFunction.GELU_TANH,
            scales_embedding=True,
            has_windows=True,
            window_default=4096,
            window_period=2,
            layers_scaled_by_dim=46,
        ),
        "gemma3": Architecture(
            rope_style=RopeStyle.NEOX,
            activation=ActivationFunction.GELU_TANH,
            scales_embedding=True,
            has_windows=True,
            window_period=6,
            local_theta_default=10000.0,
            layers_scaled_by_dim=62,
        ),
        "phi3": Architecture(rope_style=RopeStyle.NEOX, has_windows=True),
        "glm4": Architecture(rope_style=RopeStyle.NORMAL),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderArchitecture:
    """The facts of an encoder that its file does not state, or may leave out.

    They are those of the converter and the graphs of llama.cpp (`conversion/bert.py`,
    `src/models/bert.cpp`).
    """

    activation: ActivationFunction  # where the file does not name another
    pre_norm: bool = False
    has_rope: bool = False
    window_period: int | None = None  # of so many layers the first sees all; None = every layer
    local_theta_default: float = 10000.0  # of layers with a window
    has_alibi: bool = False


ENCODERS: Final[Mapping[str, EncoderArchitecture]] = MappingProxyType(
    {
        # BERT, and RoBERTa and XLM-RoBERTa, whose position table starts where theirs is used.
        "bert": EncoderArchitecture(activation=ActivationFunction.GELU),
        "nomic-bert": EncoderArchitecture(activation=ActivationFunction.SILU, has_rope=True),
        # Warner et al. 2024, arXiv:2412.13663.
        "modern-bert": EncoderArchitecture(
            activation=ActivationFunction.GELU,
            pre_norm=True,
            has_rope=True,
            window_period=3,
        ),
        # Günther et al. 2023, arXiv:2310.19923.
        "jina-bert-v2": EncoderArchitecture(activation=ActivationFunction.GELU, has_alibi=True),
    }
)
