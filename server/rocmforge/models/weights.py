"""Folds over the weights that `blocks` declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from rocmforge.checkpoint.tensor import Tensor, float32_tensor
from rocmforge.errors import UnsupportedArchitecture, UnsupportedTensor
from rocmforge.models.blocks import BLOCK, LAYERS, WEIGHT, ModelWeights, WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.folding import folded
from rocmforge.models.pooling import PoolingType

W = TypeVar("W")
X = TypeVar("X")


@lru_cache(maxsize=4)  # a plan walks a model ten times
def places(num_layers: int) -> tuple[WeightPlace, ...]:
    """Returns the places of all weights that a model may have, in the order of the forward pass."""
    found: list[WeightPlace] = []
    build(num_layers, found.append)
    return tuple(found)


def build(num_layers: int, make: Callable[[WeightPlace], W | None]) -> ModelWeights[W]:
    """Returns a model of what is made for each place; None where it has no such weight."""
    built: ModelWeights[W] = _build(
        ModelWeights, "", None, num_layers=num_layers, is_optional=False, make=make
    )
    return built


def _build(
    kind: Any,
    prefix: str,
    layer: int | None,
    *,
    num_layers: int,
    is_optional: bool,
    make: Callable[[WeightPlace], W | None],
) -> Any:
    """Returns a block and all within it.

    No closure: one that calls itself would keep all weights until the garbage collector comes.
    """
    values: dict[str, Any] = {}
    new = partial(_build, num_layers=num_layers, make=make)
    for each in fields(kind):
        name, may_lack = prefix + each.name, is_optional or each.default is None
        if WEIGHT in each.metadata:
            values[each.name] = make(WeightPlace(name, layer, each.metadata[WEIGHT], may_lack))
        elif BLOCK in each.metadata:
            block = each.metadata[BLOCK]
            values[each.name] = new(block, f"{name}.", layer, is_optional=may_lack)
        else:
            values[each.name] = tuple(
                new(each.metadata[LAYERS], "", index, is_optional=may_lack)
                for index in range(num_layers)
            )
    is_there = any(value is not None for value in values.values())
    return kind(**values) if is_there else None


def walk(weights: ModelWeights[W]) -> Iterator[tuple[WeightPlace, W]]:
    """Yields the weights that a model has, in the order of the forward pass."""
    for place in places(len(weights.layers)):
        found: Any = weights if place.layer is None else weights.layers[place.layer]
        for name in place.name.split("."):
            found = None if found is None else getattr(found, name)
        if found is not None:
            yield place, found


def map_places(
    weights: ModelWeights[W], function: Callable[[WeightPlace, W], X | None]
) -> ModelWeights[X]:
    """Returns the model with each weight replaced by what the function makes of it and its place.

    The function may return None for a weight that a model can lack.
    """
    made = {place.path: function(place, weight) for place, weight in walk(weights)}
    return build(len(weights.layers), lambda place: made.get(place.path))


def convert(weights: ModelWeights[W], function: Callable[[W], X]) -> ModelWeights[X]:
    """Returns the model with each weight converted, once where it has two places."""
    made: dict[int, X] = {}

    def once(place: WeightPlace, weight: W) -> X:
        if id(weight) not in made:
            made[id(weight)] = function(weight)
        return made[id(weight)]

    return map_places(weights, once)


def present(weight: W | None) -> W:
    """Returns a weight that the family has, though others lack it."""
    assert weight is not None, "the model was checked when it was taken from its file"
    return weight


def take(config: ModelConfig, weights: Mapping[str, Tensor]) -> ModelWeights[Tensor]:
    """Returns the weights that are computed with, of a checkpoint's.

    The scale of logits is that of the last norm.

    Args:
        config: The model.
        weights: As `Checkpoint.weights`.
    """
    weights = folded(config, weights)
    found = build(config.num_layers, lambda place: weights.get(place.path))
    head = found.head if config.num_scores else None
    output = (found.output or found.embedding.token) if config.causal else None
    norm = found.output_norm
    if norm is not None and config.logit_scale != 1:  # it is linear from there to the logits
        norm = float32_tensor(norm.name, norm.to_float32() * np.float32(config.logit_scale))
    return replace(found, head=head, output=output, output_norm=norm)


def load_weights(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    function: Callable[[Tensor], W],
    progress: Callable[[float], None] = lambda share: None,
) -> ModelWeights[W]:
    """Converts every tensor of the model once.

    Args:
        config: The model.
        weights: As `Checkpoint.weights`. Their memory is referenced only if `function` does so.
        function: Makes the backend's weight of a matrix [out_features, in_features] or a vector.
        progress: Called with the share of bytes converted, 0..1.

    Raises:
        UnsupportedTensor: `function` says so.
    """
    tensors = take(config, weights)
    total = sum({id(tensor): tensor.nbytes for _, tensor in walk(tensors)}.values())
    done = 0

    def counted(tensor: Tensor) -> W:
        nonlocal done
        converted = function(tensor)
        done += tensor.nbytes
        progress(done / total)
        return converted

    return convert(tensors, counted)


def place_of(path: str) -> WeightPlace:
    """Returns the place that a path names, in any layer."""
    layer, name = None, path
    if path.startswith("layers."):
        _, index, name = path.split(".", 2)
        layer = int(index)
    place = next(each for each in places(1) if each.name == name)
    return replace(place, layer=layer)


def weight_shape(config: ModelConfig, path: str) -> tuple[int, ...]:
    """Returns the shape of the weight in a place."""
    return place_of(path).shape(config)


def check_weights(
    config: ModelConfig, tensors: Mapping[str, Tensor], name_of: Callable[[str], str]
) -> None:
    """Compares the tensors of a file with the weights that the model's family has.

    Args:
        config: Describes the expected tensors.
        tensors: By the path of their place; any that has none there by its name in the file.
        name_of: Returns the name that the file would have for the tensor of a path.

    Raises:
        UnsupportedTensor: One is missing, unexpected or of the wrong shape; names it as the file.
        UnsupportedArchitecture: The model begins with experts.
    """
    scores = tensors.get("head.scores")
    if scores is not None and config.num_scores == 0:  # the head is not the engine's to apply
        rows = scores.shape[0]
        config = replace(config, num_scores=min(rows, 2) if config.causal else rows)
    first = next(iter(config.layers), None)  # some towers have no layers
    if first and first.experts is not None and not first.num_heads and not first.state_shapes:
        raise UnsupportedArchitecture(
            f"{config.architecture} whose first layer has experts only",
            ("a layer with attention or states before them",),
        )
    expected = dict(_expected(config))
    for path, (_, is_required) in expected.items():
        if is_required and path not in tensors:
            raise UnsupportedTensor(
                name_of(path), f"missing; every such {config.architecture} model has it"
            )
    for path, tensor in tensors.items():
        if path not in expected:
            raise UnsupportedTensor(
                tensor.name,
                f"not a part of {config.architecture} models with {config.num_layers} layers as we "
                "know them",
            )
        place, _ = expected[path]
        check_shape(tensor, place.shape(config))


def check_shape(tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a tensor that has not this shape.

    Raises:
        UnsupportedTensor: Names it and both shapes.
    """
    if tensor.shape != shape:
        raise UnsupportedTensor(
            tensor.name, f"its shape is {tensor.shape}, the configuration asks for {shape}"
        )


def _expected(config: ModelConfig) -> Iterator[tuple[str, tuple[WeightPlace, bool]]]:
    """Yields the paths that a model's weights may have, and whether it must have them."""
    family = FAMILIES[config.architecture]
    ranks = config.causal and config.pooling is PoolingType.RANK
    for place in places(config.num_layers):
        name = place.name
        if 0 in place.shape(config):
            continue
        if name.startswith("per_layer.") and not config.per_layer_size:
            continue
        if name.startswith("experts.") and not config.layers[place.layer or 0].num_experts:
            continue
        if name.startswith("merger.") and not config.layers[place.layer or 0].merger_features:
            continue
        if place.layer == 0 and name in family.not_in_first_layer:
            continue
        if name.startswith("head."):
            if name in family.may_have and config.num_scores:
                yield place.path, (place, name == "head.scores")
            elif name == "head.scores" and ranks:
                yield place.path, (place, False)
        elif not place.is_optional or name in family.has:
            yield place.path, (place, True)
        elif name in family.may_have:
            yield place.path, (place, False)
