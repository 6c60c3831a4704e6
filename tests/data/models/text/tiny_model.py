"""The recipe of a tiny model, and what most of them have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy.typing as npt

from tests.support.files.gguf_writer import Value

Tensors = dict[str, npt.NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A recipe. `config` are keyword arguments of the configuration class."""

    name: str
    architecture: str  # GGUF's
    hf_class: str
    config: dict[str, Any]
    # What the converter writes besides the common keys, without "<architecture>.".
    keys: dict[str, Value] = field(default_factory=dict)
    extra_tensors: Tensors = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)  # of its weights, if `hf_shapes` has no rule
    seed: int = 0
    is_packed: bool = False  # its experts are in MXFP4

    @property
    def is_gemma(self) -> bool:
        return self.architecture.startswith("gemma")

    def stores_less_one(self, name: str) -> bool:
        """Whether a weight of that name is one of a norm that is stored less one."""
        if self.architecture == "gemma4":
            return False
        if self.architecture == "muse-glimmer":
            return name.endswith("layernorm.weight")
        is_less = self.is_gemma or self.architecture in ("qwen35", "qwen35moe", "qwen3next")
        return is_less and name.endswith("norm.weight") and not name.endswith("attn.norm.weight")

    @property
    def norm_eps(self) -> float:
        own = self.config.get("norm_eps") or self.config.get("layer_norm_epsilon")
        return float(self.config["rms_norm_eps"] if own is None else own)

    @property
    def is_tied(self) -> bool:
        return bool(self.config["tie_word_embeddings"])

    @property
    def head_dim(self) -> int:
        default = self.config["hidden_size"] // self.config["num_attention_heads"]
        return int(self.config.get("head_dim", default))


_COMMON: Final[dict[str, Any]] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def tiny_config(**changes: Any) -> dict[str, Any]:
    return {**_COMMON, **changes}


def plain_rope(theta: float, **others: float) -> dict[str, Any]:
    """Rotation without scaling, as a configuration says it."""
    return {"rope_type": "default", "rope_theta": theta, **others}
