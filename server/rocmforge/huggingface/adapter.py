"""LoRA adapters as PEFT saves them: a folder with `adapter_config.json` and safetensors.

For a module NAME of the model, the file has `base_model.model.NAME.lora_A.weight`,
[rank, in_features], and `...lora_B.weight`, [out_features, rank].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocmforge.checkpoint.tensor import Tensor, float32_tensor
from rocmforge.errors import BadAdapter, BadFolder, UnsupportedTensor
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.files.shards import map_file
from rocmforge.huggingface.name_table import ONE_EXPERT
from rocmforge.huggingface.names import decoder_names
from rocmforge.huggingface.weights import tensors_of
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.lora import (
    ADAPTABLE,
    Adapter,
    AdapterSpec,
    LowRankPair,
    fit_adapter,
    pair_tensors,
)

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_PICKLED: Final = "adapter_model.bin"
_PREFIX: Final = "base_model.model."
_A: Final = ".lora_A.weight"
_B: Final = ".lora_B.weight"
_UNSUPPORTED: Final = (
    *("use_dora", "lora_bias", "fan_in_fan_out", "alpha_pattern", "modules_to_save"),
    *("layer_replication", "target_parameters", "trainable_token_indices", "use_qalora"),
    "alora_invocation_tokens",
)
"""Keys that change what an adapter means; each must be absent, false or empty."""


def is_adapter(path: Path) -> bool:
    """Returns whether a folder holds an adapter and no model."""
    return (path / _CONFIG).is_file()


def read_folder_adapter(config: ModelConfig, spec: AdapterSpec) -> Adapter:
    """Reads the header of an adapter and compares it with the model.

    Raises:
        BadAdapter: It is not a LoRA adapter, or not of this model; names file and tensor.
        ModelFileNotFound: A file is missing.
    """
    try:
        folder = Folder(Path(spec.path))
        scaling = _Scaling(folder, spec)
        if folder.find(_WEIGHTS) is None and folder.find(_PICKLED) is not None:
            raise BadAdapter(
                spec.path, f"its weights are pickled ({_PICKLED}): save them as safetensors"
            )
        tensors = {}
        for name, dtype, tensor in tensors_of((map_file(folder, _WEIGHTS),)):
            if tensor is None:
                raise BadAdapter(spec.path, f"it is of type {dtype}", tensor=name)
            tensors[name] = tensor
        return fit_adapter(config, spec, _Pairs(config, spec, scaling).read(tensors))
    except BadFolder as error:
        raise BadAdapter(spec.path, error.reason) from error
    except UnsupportedTensor as error:
        raise BadAdapter(spec.path, error.reason, tensor=error.tensor) from error


class _Scaling:
    """The factor of an adapter's products, by its configuration."""

    def __init__(self, folder: Folder, spec: AdapterSpec) -> None:
        config = folder.json(_CONFIG)
        if config is None:
            raise BadAdapter(spec.path, f"there is no {_CONFIG}")
        _check_kind(config, spec)
        self._alpha = config.get_float("lora_alpha", 8.0)
        self._by_root = config.get_bool("use_rslora", False)

    def of(self, rank: int) -> float:
        """Returns alpha over the rank, or its root."""
        return self._alpha / (math.sqrt(rank) if self._by_root else rank)


def _check_kind(config: JsonObject, spec: AdapterSpec) -> None:
    if (kind := config.get_str("peft_type", "missing")) != "LORA":
        raise BadAdapter(spec.path, f"its peft_type is {kind!r}; only 'LORA' is supported")
    if (bias := config.get_str("bias", "none")) != "none":
        raise BadAdapter(spec.path, f"it changes biases (bias is {bias!r}), which is not supported")
    for key in _UNSUPPORTED:
        if config.values.get(key):
            raise BadAdapter(spec.path, f"it uses {key}, which is not supported")


class _Pairs:
    """Finds the tensors of one adapter, two for each matrix of the model that it changes."""

    def __init__(self, config: ModelConfig, spec: AdapterSpec, scaling: _Scaling) -> None:
        self._config = config
        self._spec = spec
        self._scaling = scaling
        self._names = decoder_names(config)

    def read(self, tensors: Mapping[str, Tensor]) -> list[LowRankPair]:
        changes = []
        for target, a, b in pair_tensors(self._spec, tensors, (_A, _B), self._target):
            places = self._places(target)
            scale = self._scaling.of(max(a.shape[0], 1))
            changes.append(LowRankPair(places, a, self._in_the_models_order(places, b), scale))
        return changes

    def _target(self, name: str) -> str:
        """Returns the module that a tensor changes."""
        for suffix in (_A, _B):
            if name.startswith(_PREFIX) and name.endswith(suffix):
                target = name.removesuffix(suffix)
                self._places(target)
                return target
        raise self._bad(name, f"its name does not end in {_A} or {_B}")

    def _places(self, target: str) -> tuple[str, ...]:
        pattern, together = ONE_EXPERT
        name = pattern.sub(together, target.removeprefix(_PREFIX) + ".weight")
        found = self._names.find(name)
        if found == ():
            raise self._bad(
                target,
                "it changes what is beside the text model, such as its tower of images, which "
                "adapters cannot: leave it out when you train",
            )
        places = found or ()
        if places in (("embedding.token",), ("output",)):
            raise self._bad(
                target, "adapters of the embedding or the output matrix are not supported"
            )
        parts = [place.split(".", 2) for place in places]
        if not parts or any(
            len(part) < 3 or int(part[1]) >= self._config.num_layers for part in parts
        ):
            raise self._bad(
                target,
                f"it is not a matrix of {self._config.architecture} models with "
                f"{self._config.num_layers} layers",
            )
        if not ADAPTABLE.issuperset(part[2] for part in parts):
            raise self._bad(target, "it is not a matrix that adapters can change")
        return places

    def _in_the_models_order(self, places: tuple[str, ...], b: Tensor) -> Tensor:
        """Returns b with its rows as the model's file has those of queries and keys.

        A file whose rotation is not that of its family was reordered by a converter: the elements
        of a head that rotate together are neighbours there, and half a head apart in the adapter.
        """
        rope = self._config.rope
        is_rotated = places[0].endswith(("attention.q", "attention.k"))
        published = FAMILIES[self._config.architecture].rope_style
        if not is_rotated or rope is None or rope.style is published:
            return b
        layer = self._config.layers[int(places[0].split(".")[1])]
        values = b.to_float32()
        if len(b.shape) != 2 or b.shape[0] % layer.key_dim or layer.key_dim % 2:
            return b  # which does not fit, as is found out later
        heads = values.reshape(-1, 2, layer.key_dim // 2, b.shape[1])
        return float32_tensor(b.name, heads.swapaxes(1, 2).reshape(values.shape))

    def _bad(self, tensor: str, reason: str) -> BadAdapter:
        return BadAdapter(self._spec.path, reason, tensor=tensor)
