"""LoRA adapters as llama.cpp's `convert_lora_to_gguf.py` writes them.

For a tensor NAME of the model, the file has `NAME.lora_a`, [rank, in_features], and `NAME.lora_b`,
[out_features, rank].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadAdapter, BadGguf, UnsupportedTensor
from rocmforge.gguf.constants import (
    ADAPTER,
    ADAPTER_LORA_ALPHA,
    ADAPTER_TYPE,
    ARCHITECTURE,
    MODEL,
    TYPE,
)
from rocmforge.gguf.names import NAMES
from rocmforge.gguf.reader import GgufFile, open_gguf
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import (
    ADAPTABLE,
    Adapter,
    AdapterSpec,
    LowRankPair,
    fit_adapter,
    pair_tensors,
)

_A: Final = ".lora_a"
_B: Final = ".lora_b"
_INVOCATION: Final = "adapter.alora.invocation_tokens"


def read_adapter(config: ModelConfig, spec: AdapterSpec) -> Adapter:
    """Reads the header of an adapter and compares it with the model.

    Raises:
        BadAdapter: It is not a LoRA adapter, or not of this model; names file and tensor.
        ModelFileNotFound: There is no such file.
    """
    try:
        with open_gguf(Path(spec.path)) as file:
            alpha = _check_kind(config, spec, file)
            return fit_adapter(config, spec, _Pairs(config, spec, alpha).read(file.tensors))
    except BadGguf as error:
        raise BadAdapter(spec.path, f"it is not a valid GGUF file: {error.reason}") from error
    except UnsupportedTensor as error:
        raise BadAdapter(spec.path, error.reason, tensor=error.tensor) from error


def _check_kind(config: ModelConfig, spec: AdapterSpec, file: GgufFile) -> float:
    """Refuses what is not a LoRA adapter for this architecture; returns alpha, or 0."""
    if (kind := file.get_str(TYPE, MODEL)) != ADAPTER:
        raise BadAdapter(spec.path, f"its {TYPE} is {kind!r}, that of adapters is 'adapter'")
    if (kind := file.get_str(ADAPTER_TYPE)) != "lora":
        raise BadAdapter(spec.path, f"it is an adapter of type {kind!r}; only 'lora' is supported")
    architecture = file.get_str(ARCHITECTURE)
    if architecture != config.architecture:
        raise BadAdapter(
            spec.path, f"it is for {architecture} models, and this is a {config.architecture} model"
        )
    if _INVOCATION in file.metadata:
        raise BadAdapter(
            spec.path,
            f"it begins to act at certain tokens ({_INVOCATION}), which is not supported",
        )
    alpha = file.get_float(ADAPTER_LORA_ALPHA, 0.0)
    if not math.isfinite(alpha):
        raise BadAdapter(spec.path, f"its {ADAPTER_LORA_ALPHA} is {alpha}")
    return alpha


class _Pairs:
    """Finds the tensors of one adapter, two for each tensor of the model that it changes."""

    def __init__(self, config: ModelConfig, spec: AdapterSpec, alpha: float) -> None:
        self._config = config
        self._spec = spec
        self._alpha = alpha
        names = NAMES[config.architecture]
        # The weights in each tensor of a layer.
        self._weights = {
            rule.name: rule.weights
            for layer in range(config.num_layers)
            for rule in names.rules_of_layer((), layer)
        }

    def read(self, tensors: Mapping[str, Tensor]) -> list[LowRankPair]:
        changes = []
        for target, a, b in pair_tensors(self._spec, tensors, (_A, _B), self._target):
            scale = self._alpha / a.shape[0] if self._alpha else 1.0
            changes.append(LowRankPair(self._weights[target], a, b, scale))
        return changes

    def _target(self, name: str) -> str:
        """Returns the name of the model's tensor that an adapter's tensor changes."""
        target, suffix = name[: -len(_A)], name[-len(_A) :]
        if suffix not in (_A, _B):
            raise self._bad(name, f"its name ends neither in {_A} nor in {_B}")
        if target in ("token_embd.weight", "output.weight"):
            raise self._bad(
                name, "adapters of the embedding or the output matrix are not supported"
            )
        weights = self._weights.get(target, ())
        if not ADAPTABLE.issuperset(path.split(".", 2)[2] for path in weights):
            raise self._bad(name, f"{target!r} is not a matrix that adapters can change")
        if not weights:
            raise self._bad(
                name,
                f"{target!r} is not a matrix of {self._config.architecture} models with "
                f"{self._config.num_layers} layers",
            )
        return target

    def _bad(self, tensor: str, reason: str) -> BadAdapter:
        return BadAdapter(self._spec.path, reason, tensor=tensor)
