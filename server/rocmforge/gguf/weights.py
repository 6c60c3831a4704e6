"""The tensors of a GGUF file become the weights of a model, under our names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.config.keys import predicting_layers
from rocmforge.gguf.names import (
    DENSE,
    FREQUENCY_FACTORS,
    LAYER,
    LONG_FACTORS,
    NAMES,
    ONE_EXPERT,
    PREDICTOR,
    SCORES,
    SHORT_FACTORS,
    TensorRule,
)
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.layouts import (
    as_declared,
    cut_fused,
    dense_product,
    join_experts,
    scaled_router_norms,
    with_shared_heads,
    with_unit_norms,
)
from rocmforge.models.rope import RopeFactors
from rocmforge.models.rope_config import RopeScalingKind
from rocmforge.models.weights import check_shape, check_weights, places

logger = logging.getLogger(__name__)

_FACTORS: Final = (FREQUENCY_FACTORS, LONG_FACTORS, SHORT_FACTORS)


def read_weights(config: ModelConfig, file: GgufFile) -> dict[str, Tensor]:
    """Returns the weights as `Checkpoint.weights` has them; reads no data.

    Raises:
        UnsupportedTensor: One is missing, unexpected or of the wrong shape; names it as the file.
    """
    _check_factors(config, file)
    rules = {rule.name: rule.weights for rule in _rules(config, file)}
    known = {place.path: place for place in places(config.num_layers)}
    tensors = _without_prediction(config, file)
    weights = _take_dense(config, tensors)
    for name, tensor in join_experts(tensors, *ONE_EXPERT).items():
        if name in _FACTORS:
            continue
        # One that is no weight is refused below, also if it is called as we call a weight.
        paths = rules.get(name, (f"no weight: {name}",))
        if twice := weights.keys() & paths:
            raise UnsupportedTensor(name, f"another tensor is {min(twice)}, too")
        if name == SCORES:
            tensor = _as_matrix(tensor)
        if len(paths) == 1:
            place = known.get(paths[0])
            weights[paths[0]] = tensor if place is None else as_declared(tensor, place)
        else:
            weights |= cut_fused(config, tensor, [known[path] for path in paths])
    weights = scaled_router_norms(config, with_shared_heads(config, weights))
    if config.architecture == "muse-glimmer":
        weights = with_unit_norms(config, weights, ("embedding.norm",))
    check_weights(config, weights, name_weights(config, file))
    return weights


def _take_dense(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the matrix behind an encoder, taken from the tensors of a file; empty for none."""
    if "dense" not in FAMILIES[config.architecture].may_have or not tensors.keys() & {*DENSE}:
        return {}
    if missing := {*DENSE} - tensors.keys():
        raise UnsupportedTensor(min(missing), "missing, although the other one is there")
    return {"dense": dense_product(config, [tensors.pop(name) for name in DENSE])}


def has_predictor(config: ModelConfig, file: GgufFile) -> bool:
    """Returns whether one block behind the layers guesses tokens, in a way that is known here."""
    known = FAMILIES[config.architecture].may_predict and predicting_layers(file) == 1
    return known and f"blk.{config.num_layers}.{PREDICTOR[0].name}" in file.tensors


def _without_prediction(config: ModelConfig, file: GgufFile) -> dict[str, Tensor]:
    """Returns the tensors of a file without those of layers that predict further tokens."""
    first, count = config.num_layers, predicting_layers(file) - config.predicts
    found = {}
    for name, tensor in file.tensors.items():
        match = LAYER.match(name)
        if match is None or not first <= int(match[1]) < first + count:
            found[name] = tensor
    if count > 0:
        logger.info("%s: %d layers for multi-token prediction are not used", file.path.name, count)
    return found


def name_weights(config: ModelConfig, file: GgufFile) -> Callable[[str], str]:
    """Returns what finds the name that the file has, or would have, for a weight of ours."""
    names = {path: rule.name for rule in _rules(config, file) for path in rule.weights}
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
    rules = [*names.rules_of_model()]
    for layer in range(config.num_layers):
        rules += names.rules_of_layer(file.tensors, layer)
    if config.predicts:
        last = config.num_layers - 1
        rules += [TensorRule(f"blk.{last}.{rule.name}", rule.weights) for rule in PREDICTOR]
    return rules


def _check_factors(config: ModelConfig, file: GgufFile) -> None:
    """Compares the divisors of rope frequencies with what the model has."""
    scaling = None if config.rope is None else config.rope.scaling
    is_longrope = scaling is not None and scaling.kind is RopeScalingKind.LONGROPE
    known = (LONG_FACTORS, SHORT_FACTORS) if is_longrope else (FREQUENCY_FACTORS,)
    for name in _FACTORS:
        tensor = file.tensors.get(name)
        if tensor is None:
            if is_longrope and name in known:
                raise UnsupportedTensor(
                    name, f"missing; every such {config.architecture} model has it"
                )
        elif name not in known or config.rope is None or not config.causal:
            raise UnsupportedTensor(
                name, f"not a part of {config.architecture} models as we know them"
            )
        else:
            check_shape(tensor, (config.rope.rotary_dim // 2,))


def _as_matrix(tensor: Tensor) -> Tensor:
    """Returns a vector, of which llama.cpp has dropped the first axis, as a matrix of one row."""
    if len(tensor.shape) != 1:
        return tensor
    return replace(tensor, shape=(1, *tensor.shape), data=tensor.data.reshape(1, -1))
