"""LoRA adapters (Hu et al. 2021): which matrices of a model one changes, and how.

An adapter adds `scale * b @ a`, a matrix of low rank, to some matrices of the layers. Its file is
what llama.cpp's `convert_lora_to_gguf.py` makes: for a tensor NAME of the model it has
`NAME.lora_a`, [rank, in_features], and `NAME.lora_b`, [out_features, rank]. Features have the
order of the model's own file, so nothing has to be permuted here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFType, Keys

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadAdapter, BadGguf, ConfigurationError, UnsupportedTensor
from rocmforge.gguf.reader import GgufFile, open_gguf
from rocmforge.models.architectures import ARCHITECTURES
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import layer_name, role_shape

ADAPTABLE: Final = frozenset(("q", "k", "v", "output", "gate", "up", "down"))
"""Fields of `LayerWeights` that an adapter may change."""
MAX_RANK: Final = 1024

Float32Array = npt.NDArray[np.float32]

_A: Final = ".lora_a"
_B: Final = ".lora_b"
_INVOCATION: Final = "adapter.alora.invocation_tokens"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """A LoRA adapter to load with a model."""

    name: str
    path: str  # of the GGUF file
    scale: float = 1.0  # times that of the file


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
    layers: tuple[Mapping[str, LowRank], ...]  # by field of `LayerWeights`

    @property
    def num_values(self) -> int:
        """Returns the number of elements; what several matrices share is counted for each."""
        return sum(low_rank.num_values for layer in self.layers for low_rank in layer.values())


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


def read_adapters(config: ModelConfig, specs: Iterable[AdapterSpec]) -> tuple[Adapter, ...]:
    """Reads the headers of adapters and compares them with the model.

    Raises:
        BadAdapter: One is not a LoRA adapter, or not of this model; names file and tensor.
        ModelFileNotFound: There is no such file.
    """
    return tuple(_read(config, spec) for spec in specs)


def _read(config: ModelConfig, spec: AdapterSpec) -> Adapter:
    try:
        with open_gguf(Path(spec.path)) as file:
            alpha = _check_kind(config, spec, file)
            return Adapter(spec.name, _Pairs(config, spec, alpha).read(file.tensors))
    except BadGguf as error:
        raise BadAdapter(spec.path, f"it is not a valid GGUF file: {error.reason}") from error
    except UnsupportedTensor as error:
        raise BadAdapter(spec.path, error.reason, tensor=error.tensor) from error


def _check_kind(config: ModelConfig, spec: AdapterSpec, file: GgufFile) -> float:
    """Refuses what is not a LoRA adapter for this architecture; returns alpha, or 0."""
    if (kind := file.get_str(Keys.General.TYPE, GGUFType.MODEL)) != GGUFType.ADAPTER:
        raise BadAdapter(
            spec.path, f"its {Keys.General.TYPE} is {kind!r}, that of adapters is 'adapter'"
        )
    if (kind := file.get_str(Keys.Adapter.TYPE)) != "lora":
        raise BadAdapter(spec.path, f"it is an adapter of type {kind!r}; only 'lora' is supported")
    architecture = file.get_str(Keys.General.ARCHITECTURE)
    if architecture != config.architecture:
        raise BadAdapter(
            spec.path, f"it is for {architecture} models, and this is a {config.architecture} model"
        )
    if _INVOCATION in file.metadata:
        raise BadAdapter(
            spec.path,
            f"it begins to act at certain tokens ({_INVOCATION}), which is not supported",
        )
    alpha = file.get_float(Keys.Adapter.LORA_ALPHA, 0.0)
    if not math.isfinite(alpha):
        raise BadAdapter(spec.path, f"its {Keys.Adapter.LORA_ALPHA} is {alpha}")
    return alpha


class _Pairs:
    """Finds the tensors of one adapter, two for each tensor of the model that it changes."""

    def __init__(self, config: ModelConfig, spec: AdapterSpec, alpha: float) -> None:
        self._config = config
        self._spec = spec
        self._alpha = alpha
        # Layer and roles of each tensor that an adapter may change.
        self._places = {
            layer_name(index, rule): (index, rule.roles)
            for index in range(config.num_layers)
            for rule in ARCHITECTURES[config.architecture].layer
            if ADAPTABLE.issuperset(rule.roles)
        }

    def read(self, tensors: Mapping[str, Tensor]) -> tuple[Mapping[str, LowRank], ...]:
        layers: tuple[dict[str, LowRank], ...] = tuple({} for _ in range(self._config.num_layers))
        targets = {name: self._target(name) for name in tensors}
        if not targets:
            raise BadAdapter(self._spec.path, "it has no tensors")
        for target in dict.fromkeys(targets.values()):
            for suffix in (_A, _B):
                if target + suffix not in tensors:
                    raise BadAdapter(self._spec.path, "it is missing", tensor=target + suffix)
            index, roles = self._places[target]
            a, b = tensors[target + _A], tensors[target + _B]
            layers[index].update(self._pair(a, b, index, roles))
        return layers

    def _target(self, name: str) -> str:
        """Returns the name of the model's tensor that an adapter's tensor changes."""
        target, suffix = name[: -len(_A)], name[-len(_A) :]
        if suffix not in (_A, _B):
            raise self._bad(name, f"its name ends neither in {_A} nor in {_B}")
        if target in ("token_embd.weight", "output.weight"):
            raise self._bad(
                name, "adapters of the embedding or the output matrix are not supported"
            )
        if target not in self._places:
            raise self._bad(
                name,
                f"{target!r} is not a matrix of {self._config.architecture} models with "
                f"{self._config.num_layers} layers",
            )
        return target

    def _pair(self, a: Tensor, b: Tensor, layer: int, roles: tuple[str, ...]) -> dict[str, LowRank]:
        """Returns the change of each role that the model's tensor fills."""
        shapes = [role_shape(self._config, role, layer) for role in roles]
        out_features, in_features = sum(shape[0] for shape in shapes), shapes[0][1]
        if len(a.shape) != 2 or a.shape[1] != in_features or not 0 < a.shape[0] <= MAX_RANK:
            raise self._bad(
                a.name,
                f"its shape is {a.shape}, not (rank, {in_features}) with a rank up to {MAX_RANK}",
            )
        if b.shape != (out_features, rank := a.shape[0]):
            raise self._bad(b.name, f"its shape is {b.shape}, not {(out_features, rank)}")
        scale = self._spec.scale * (self._alpha / rank if self._alpha else 1.0)
        found, first = {}, 0
        for role, (count, _) in zip(roles, shapes, strict=True):
            part = b if len(roles) == 1 else b.slice(0, first, first + count)
            found[role] = LowRank(a, part, scale, self._spec.path)
            first += count
        return found

    def _bad(self, tensor: str, reason: str) -> BadAdapter:
        return BadAdapter(self._spec.path, reason, tensor=tensor)
