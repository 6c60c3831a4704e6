"""The tensors of a GGUF file become the weights of a model, under our names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.names import (
    FREQUENCY_FACTORS,
    HEAD,
    LONG_FACTORS,
    NAMES,
    SCORES,
    SHORT_FACTORS,
    TensorRule,
)
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.architectures import ENCODERS
from rocmforge.models.config import ModelConfig, RopeScalingKind
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope import RopeFactors
from rocmforge.models.weights import weight_shape


def read_weights(config: ModelConfig, file: GgufFile) -> dict[str, Tensor]:
    """Returns the weights as `Checkpoint.weights` has them; reads no data.

    Raises:
        UnsupportedTensor: One is missing, unexpected or of the wrong shape; names it as the file.
    """
    rules = _rules(config, file)
    _check(config, file, rules)
    weights = {}
    for rule in rules:
        if rule.name in file.tensors:
            tensor, start = file.tensors[rule.name], 0
            for path in rule.weights:
                part = _as_matrix(tensor) if rule.name == SCORES else tensor
                if len(rule.weights) > 1:
                    rows = weight_shape(config, path)[0]
                    part = tensor.slice(0, start, start + rows)
                    start += rows
                weights[path] = part
    return weights


def name_weights(config: ModelConfig, file: GgufFile) -> Callable[[str], str]:
    """Returns what finds the name that the file has, or would have, for a weight of ours."""
    names = {path: rule.name for rule in (*_rules(config, file), *HEAD) for path in rule.weights}
    return lambda path: names.get(path, path)


def read_rope_factors(config: ModelConfig, file: GgufFile) -> RopeFactors:
    """Reads the divisors of the rope frequencies, from tensors whose shapes have been checked.

    Raises:
        UnsupportedTensor: A factor is not positive.
    """
    scaling = config.rope.scaling if config.rope is not None else None
    if scaling is not None and scaling.kind is RopeScalingKind.LONGROPE:
        return RopeFactors(short=_factors(file, SHORT_FACTORS), long=_factors(file, LONG_FACTORS))
    factors = _factors(file, FREQUENCY_FACTORS)
    return RopeFactors(short=factors, long=factors)


def _factors(file: GgufFile, name: str) -> npt.NDArray[np.float64] | None:
    if name not in file.tensors:
        return None
    factors = file.tensors[name].to_float32().astype(np.float64)
    if not (factors > 0).all():
        raise UnsupportedTensor(name, "a factor is not positive")
    return factors


def _rules(config: ModelConfig, file: GgufFile) -> list[TensorRule]:
    """Returns the rules of all tensors that may be there, but the factors of rope."""
    names = NAMES[config.architecture]
    rules = [*names.model]
    for layer in range(config.num_layers):
        rules += names.rules_of_layer(file.tensors, layer)
    if SCORES not in file.tensors:
        return rules
    if config.causal:
        return [*rules, *HEAD[:1]] if config.pooling is PoolingType.RANK else rules
    return [*rules, *HEAD] if ENCODERS[config.architecture].has_head else rules


def _check(config: ModelConfig, file: GgufFile, rules: list[TensorRule]) -> None:
    """Compares the tensor directory with what the architecture has."""
    shapes, required = _expected(config, file, rules)
    for name in required:
        if name not in file.tensors:
            raise UnsupportedTensor(name, f"missing; every such {config.architecture} model has it")
    for name, tensor in file.tensors.items():
        if name not in shapes:
            raise UnsupportedTensor(
                name,
                "mixture-of-experts models are not supported"
                if "_exps" in name or "ffn_gate_inp" in name
                else f"not a part of {config.architecture} models with "
                f"{config.num_layers} layers as we know them",
            )
        shape = _as_matrix(tensor).shape if name == SCORES else tensor.shape
        if shape != shapes[name]:
            raise UnsupportedTensor(
                name, f"its shape is {shape}, the metadata asks for {shapes[name]}"
            )


def _expected(
    config: ModelConfig, file: GgufFile, rules: list[TensorRule]
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Returns the shapes of all tensors that may be there and the names of those that must be."""
    if SCORES in file.tensors:
        num_scores = _as_matrix(file.tensors[SCORES]).shape[0]
        config = replace(config, num_scores=2 if config.causal else num_scores)
    shapes: dict[str, tuple[int, ...]] = {}
    for rule in rules:
        parts = [weight_shape(config, path) for path in rule.weights]
        shapes[rule.name] = (sum(part[0] for part in parts), *parts[0][1:])
    required = [rule.name for rule in rules if rule.required]
    if config.causal and config.rope is not None:
        scaling, factors = config.rope.scaling, (config.rope.rotary_dim // 2,)
        if scaling is not None and scaling.kind is RopeScalingKind.LONGROPE:
            shapes[LONG_FACTORS] = shapes[SHORT_FACTORS] = factors
            required += [LONG_FACTORS, SHORT_FACTORS]
        else:
            shapes[FREQUENCY_FACTORS] = factors
    return shapes, required


def _as_matrix(tensor: Tensor) -> Tensor:
    """Returns a vector, of which llama.cpp has dropped the first axis, as a matrix of one row."""
    if len(tensor.shape) != 1:
        return tensor
    return replace(tensor, shape=(1, *tensor.shape), data=tensor.data.reshape(1, -1))
