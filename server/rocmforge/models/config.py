"""The configuration of a decoder: made once from a file's metadata, read by everything else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_LAYERS: Final = 1000
"""More than any model has; a number from a file alone must not decide how much is computed."""


class ActivationFunction(StrEnum):
    """The function that a gated feed-forward network applies to its gate."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU = "gelu"  # with the error function; of encoders only


class RopeStyle(StrEnum):
    """The choice of the elements of a head that rotate together in pairs."""

    NORMAL = "normal"  # (0, 1), (2, 3), ...: GGUF's layout for Llama
    NEOX = "neox"  # (i, i + rotary_dim / 2)


class RopeScalingKind(StrEnum):
    """The method by which a model reaches beyond its training context."""

    LINEAR = "linear"
    YARN = "yarn"  # Peng et al. 2023, arXiv:2309.00071
    LONGROPE = "longrope"  # Ding et al. 2024, arXiv:2402.13753; its factors are tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Context extension from the file's `rope.scaling.*` keys."""

    kind: RopeScalingKind
    factor: float
    original_context: int
    attention_factor: float = 1.0  # multiplies cos and sin
    extrapolation_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021)."""

    style: RopeStyle
    rotary_dim: int  # leading elements of each head that rotate; the rest pass through
    theta: float
    local_theta: float | None  # of layers with a sliding window, where it differs (Gemma 3)
    scaling: RopeScaling | None  # of theta; local_theta is never scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything about a decoder-only transformer except its weights."""

    architecture: str  # GGUF's general.architecture
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int  # tokens, as trained (or as extended by rope scaling)
    norm_eps: float
    rope: RopeConfig
    activation: ActivationFunction
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    embedding_scale: float
    windows: tuple[int | None, ...]  # per layer: sliding window, or None for full attention
