"""LoRA adapters (Hu et al. 2021): which matrices of a model one changes, and how.

An adapter adds `scale * b @ a`, a matrix of low rank, to some matrices of the layers. Features have
the order of the model's own file, so nothing has to be permuted here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadAdapter, ConfigurationError
from rocmforge.models.blocks import WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import places, weight_shape

ADAPTABLE: Final = frozenset(place.name for place in places(1) if place.declared.adaptable)
"""Weights of a layer that an adapter may change."""
MAX_RANK: Final = 1024

Float32Array = npt.NDArray[np.float32]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """A LoRA adapter to load with a model."""

    name: str
    path: str  # of its file
    scale: float = 1.0  # times that of the file


@dataclass(frozen=True, slots=True, eq=False)
class LowRankPair:
    """The change that an adapter's file makes to weights that the model's may have in one tensor.

    Rows of b belong to the weights one after the other.
    """

    weights: tuple[str, ...]  # as `Checkpoint.weights` calls them, of one layer
    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]
    scale: float  # what `b @ a` is multiplied with, by the file


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The change of one matrix [out_features, in_features]: `scale * b @ a` is added to it."""

    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]
    scale: float
    path: str  # of the adapter, for errors

    @property
    def rank(self) -> int:
        """Returns the rows of a, which are the columns of b."""
        return self.a.shape[0]

    @property
    def num_values(self) -> int:
        """Returns the number of elements of a and b."""
        return math.prod(self.a.shape) + math.prod(self.b.shape)

    def factors(self) -> tuple[Float32Array, Float32Array]:
        """Returns a and b as float32, without the scale.

        Raises:
            BadAdapter: Some are not finite.
            UnsupportedTensor: Their type cannot be dequantised.
        """
        return self._finite(self.a), self._finite(self.b)

    def _finite(self, tensor: Tensor) -> Float32Array:
        values = tensor.to_float32()
        if not np.isfinite(values).all():
            raise BadAdapter(self.path, "it holds infinities or NaN", tensor=tensor.name)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter that fits its model; none of its data has been read."""

    name: str
    changes: Mapping[WeightPlace, LowRank]

    @property
    def num_values(self) -> int:
        """Returns the number of elements; what several matrices share is counted for each."""
        return sum(low_rank.num_values for low_rank in self.changes.values())


def parse_adapters(texts: Iterable[str]) -> tuple[AdapterSpec, ...]:
    """Parses adapters as an operator writes them, `name=path` or `name=path:scale`.

    Raises:
        ConfigurationError: One is not of this form, or a name is there twice.
    """
    specs: dict[str, AdapterSpec] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        path, colon, number = place.rpartition(":")
        scale = _scale(number) if colon else None
        if scale is None:
            path, scale = place, 1.0
        if not equals or not path:
            raise ConfigurationError(
                f"--lora {text!r} is not of the form name=path or name=path:scale."
            )
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"--lora {text!r}: the name {name!r} must begin with a letter or digit and "
                "consist of letters, digits, and . _ / -"
            )
        if name in specs:
            raise ConfigurationError(f"--lora names two adapters {name!r}.")
        specs[name] = AdapterSpec(name=name, path=path, scale=scale)
    return tuple(specs.values())


def _scale(text: str) -> float | None:
    """Returns the number that a text is; None for the end of a path."""
    try:
        scale = float(text)
    except ValueError:
        return None
    return scale if math.isfinite(scale) else None


def pair_tensors(
    spec: AdapterSpec,
    tensors: Mapping[str, Tensor],
    suffixes: tuple[str, str],
    target_of: Callable[[str], str],
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields what the tensors of a file change, each with its a and b.

    Args:
        spec: Of the adapter, for errors.
        tensors: By their names in the file.
        suffixes: What the names of a and of b have behind that of their target.
        target_of: Returns the target of a tensor by its name, or raises.

    Raises:
        BadAdapter: There is none, or one of a pair is missing.
    """
    targets = dict.fromkeys(map(target_of, tensors))
    if not targets:
        raise BadAdapter(spec.path, "it has no tensors")
    for target in targets:
        names = [target + suffix for suffix in suffixes]
        for name in names:
            if name not in tensors:
                raise BadAdapter(spec.path, "it is missing", tensor=name)
        yield target, tensors[names[0]], tensors[names[1]]


def fit_adapter(config: ModelConfig, spec: AdapterSpec, changes: Iterable[LowRankPair]) -> Adapter:
    """Compares what an adapter's file holds with the model.

    Raises:
        BadAdapter: A tensor has not the shape that the model's matrices ask for; names it.
    """
    known = {place.path: place for place in places(config.num_layers)}
    found = {
        known[path]: low_rank for change in changes for path, low_rank in _cut(config, spec, change)
    }
    return Adapter(spec.name, found)


def check_shared(weights: Mapping[str, Tensor], adapter: Adapter) -> None:
    """Refuses an adapter that changes values of a layer whose keys they are.

    Args:
        weights: Of the model, as `Checkpoint.weights`.
        adapter: For it.

    Raises:
        BadAdapter: Names what it changes.
    """
    for place, change in adapter.changes.items():
        stem, is_values, _ = place.path.rpartition(".v")
        if is_values and weights.get(f"{stem}.k") is weights.get(place.path) is not None:
            reason = "the values of this layer are its keys, and change with them"
            raise BadAdapter(change.path, reason, tensor=change.b.name)


def _cut(
    config: ModelConfig, spec: AdapterSpec, change: LowRankPair
) -> Iterator[tuple[str, LowRank]]:
    """Yields the change of each weight."""
    a, b = change.a, change.b
    shapes = [weight_shape(config, path) for path in change.weights]
    out_features, in_features = sum(shape[0] for shape in shapes), shapes[0][1]
    if len(a.shape) != 2 or a.shape[1] != in_features or not 0 < a.shape[0] <= MAX_RANK:
        raise BadAdapter(
            spec.path,
            f"its shape is {a.shape}, not (rank, {in_features}) with a rank up to {MAX_RANK}",
            tensor=a.name,
        )
    if b.shape != (out_features, rank := a.shape[0]):
        raise BadAdapter(
            spec.path, f"its shape is {b.shape}, not {(out_features, rank)}", tensor=b.name
        )
    first = 0
    for path, (count, _) in zip(change.weights, shapes, strict=True):
        part = b if len(shapes) == 1 else b.slice(0, first, first + count)
        yield path, LowRank(a, part, spec.scale * change.scale, spec.path)
        first += count
