"""The keys of a decoder's experts: which layers have them, and how tokens choose them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.gguf.config.keys import KeyReader
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.families import FAMILIES
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction

_ROUTERS: Final[Mapping[int, RouterFunction]] = MappingProxyType(
    {
        1: RouterFunction.SOFTMAX,
        2: RouterFunction.SIGMOID,
        3: RouterFunction.SOFTMAX_OF_CHOSEN,
    }
)
"""By `expert_gating_func`."""
_BIAS: Final = ".exp_probs_b.bias"
_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "num_chosen": "expert_used_count",
        "num_groups": "expert_group_count",
        "num_chosen_groups": "expert_group_used_count",
        "scale": "expert_weights_scale",
    }
)
"""By the field of `ExpertsConfig`."""


def read_experts(file: GgufFile, num_layers: int) -> tuple[ExpertsConfig | None, ...]:
    """Returns the experts of each layer; None for one that has a feed-forward network.

    Raises:
        UnsupportedArchitecture: The architecture has none, or not of this kind.
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    return _Reader(file).read(num_layers)


class _Reader(KeyReader):
    def read(self, num_layers: int) -> tuple[ExpertsConfig | None, ...]:
        file, key = self._file, self._key
        count = file.get_int(key("expert_count"), 0)
        if count == 0:
            return (None,) * num_layers
        count, default = self._positive("expert_count"), self._family.router
        if self._family.is_latent and any(name.endswith(_BIAS) for name in file.tensors):
            default = RouterFunction.SIGMOID  # since DeepSeek V3, of which some files do not say so
        if default is None:
            raise UnsupportedArchitecture(
                f"{self._name} with {count} experts ({key('expert_count')})",
                tuple(name for name, family in FAMILIES.items() if family.router is not None),
            )
        self._refuse_unsupported()
        size = self._positive(
            "expert_feed_forward_length"
            if key("expert_feed_forward_length") in file.metadata
            else "feed_forward_length"
        )
        shared = self._count("expert_shared_count") * size
        experts = ExpertsConfig(
            num_experts=count,
            num_chosen=self._positive("expert_used_count"),
            intermediate_size=size,
            shared_intermediate_size=self._count("expert_shared_feed_forward_length", shared),
            latent_size=self._count("moe_latent_size"),
            router=self._router(default),
            num_groups=self._positive("expert_group_count", 1),
            num_chosen_groups=self._positive("expert_group_used_count", 1),
            normalised=file.get_bool(key("expert_weights_norm"), self._family.normalises_experts),
            scale=file.get_float(key("expert_weights_scale"), 1.0),
        )
        if (problem := experts.problem()) is not None:
            field, reason = problem
            raise self._bad(_KEYS[field], reason)
        dense = self._count("leading_dense_block_count")
        period = self._positive("interleave_moe_layer_step", 1)
        return tuple(
            experts if layer >= dense and (layer + 1) % period == 0 else None
            for layer in range(num_layers)
        )

    def _refuse_unsupported(self) -> None:
        suffix = "moe_latent_size"
        size = self._count(suffix)
        if size and not self._family.may_have_latent_experts:
            raise UnsupportedArchitecture(
                f"{self._name} with experts in a space of {size} features ({self._key(suffix)})",
                self._known,
            )
        for suffix in ("expert_used_count", "expert_feed_forward_length"):
            if isinstance(self._file.metadata.get(self._key(suffix)), np.ndarray):
                raise UnsupportedArchitecture(
                    f"{self._name} with experts that differ by layer ({self._key(suffix)})",
                    self._known,
                )

    def _router(self, default: RouterFunction) -> RouterFunction:
        suffix = "expert_gating_func"
        # Converters write 0 where they do not know it.
        code = self._file.get_int(self._key(suffix), 0)
        if code and code not in _ROUTERS:
            raise UnsupportedArchitecture(
                f"{self._name} with a router of kind {code} ({self._key(suffix)})",
                tuple(f"{known} ({router})" for known, router in _ROUTERS.items()),
            )
        return _ROUTERS.get(code, default)
