"""Tables of names: of tensors in folders, and our names of the weights that they hold.

Transformers' own classes and the code that comes with some models name the same weights in several
ways. A name is a prefix, which depends on the class that saved the model, the place, and a suffix.
What a class holds beside the model (buffers, heads of pre-training, the vision part of a model that
takes images) is left out, and nothing else is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

ONE_EXPERT: Final = (re.compile(r"(.+\.experts)\.(?P<expert>\d{1,4})\.(.+)"), r"\1.\3")
"""A tensor of one expert, and what the names here call that of all."""


_OF_PREDICTOR: Final = MappingProxyType(
    {
        "eh_proj.weight": "projection",
        "enorm.weight": "embedding_norm",
        "hnorm.weight": "hidden_norm",
        "embed_tokens.weight": "embedding",
        "shared_head.norm.weight": "output_norm",
        "shared_head.head.weight": "output",
    }
)
"""A predictor as DeepSeek names it: within its layer, which follows the others."""
_MTP_LAYER: Final = "mtp.layers.0."
_OF_MTP: Final = MappingProxyType(
    {
        "mtp.fc.weight": "projection",
        "mtp.pre_fc_norm_embedding.weight": "embedding_norm",
        "mtp.pre_fc_norm_hidden.weight": "hidden_norm",
        "mtp.norm.weight": "output_norm",
    }
)
"""A predictor as Qwen names it: beside the layers."""


@dataclass(frozen=True, slots=True)
class NameTable:
    """How a family names its weights.

    Attributes:
        prefixes: Any of them may stand before a name.
        layer: Pattern of what stands before the part of a layer; its group is the index.
        parts: Names within a layer and ours, in the order of rows where one tensor holds several.
        model: Names outside the layers and ours.
        left_out: Pattern of names that are no part of the model.
        layer_of_predictor: The layer behind the others with which a predictor guesses tokens.
    """

    prefixes: tuple[str, ...]
    layer: re.Pattern[str]
    parts: Mapping[str, tuple[str, ...]]
    model: Mapping[str, str]
    left_out: re.Pattern[str]
    layer_of_predictor: int | None = None  # None: it is not wanted, or there is none

    def find(self, name: str) -> tuple[str, ...] | None:
        """Returns our names of the weights in a tensor.

        Returns:
            Empty for a tensor that is no part of the model; None for one that is not known.
        """
        bare = self._bare(name)
        if bare in self.model:
            return (self.model[bare],)
        match = self.layer.match(bare)
        if match is not None:
            parts = self.parts.get(bare[match.end() :])
            if parts is not None:
                return tuple(f"layers.{int(match[1])}.{part}" for part in parts)
        return () if self.left_out.search(name) else None

    def layer_of(self, name: str) -> int | None:
        """Returns the layer that a tensor is of by its name; None if it is of none."""
        match = self.layer.match(self._bare(name))
        return None if match is None else int(match[1])

    def _bare(self, name: str) -> str:
        """Returns a name without the prefix."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                break
        if self.layer_of_predictor is not None and name.startswith(_MTP_LAYER):
            name = f"layers.{self.layer_of_predictor}.{name.removeprefix(_MTP_LAYER)}"
        return name

    def with_predictor(self, layer: int) -> NameTable:
        """Returns the names of a model whose layer of this index is that of its predictor."""
        found = {
            (f"layers.{layer}.{theirs}" if is_in_layer else theirs): f"predictor.{ours}"
            for is_in_layer, names in ((True, _OF_PREDICTOR), (False, _OF_MTP))
            for theirs, ours in names.items()
        }
        model = MappingProxyType({**self.model, **found})
        return replace(self, model=model, layer_of_predictor=layer)

    def prefix_of(self, names: Iterable[str]) -> str:
        """Returns the prefix that the names of a model begin with."""
        for name in names:
            for prefix in self.prefixes:
                if name.startswith(prefix):
                    return prefix
        return ""

    def name_of(self, place: str, prefix: str) -> str:
        """Returns a name for a weight of ours, for messages about one that is missing."""
        for theirs, ours in self.model.items():
            if ours == place:
                return ("" if theirs.startswith(("lm_head.", "model.")) else prefix) + theirs
        if place.startswith("layers."):
            _, index, part = place.split(".", 2)
            stem = self.layer.pattern.replace(r"(\d{1,4})", index).replace("\\", "")
            for theirs, parts in self.parts.items():
                if part in parts:
                    return prefix + stem.replace("(?:encoder.)?", "encoder.") + theirs
        return place


def weights_and_biases(*names: tuple[str, str], bias: bool = True) -> dict[str, tuple[str, ...]]:
    """Returns rows for `NAME.weight` and, as `OURS_bias`, `NAME.bias`."""
    rows: dict[str, tuple[str, ...]] = {}
    for theirs, ours in names:
        rows[f"{theirs}.weight"] = (ours,)
        if bias:
            rows[f"{theirs}.bias"] = (f"{ours}_bias",)
    return rows


ATTENTION: Final = weights_and_biases(
    ("self_attn.q_proj", "attention.q"),
    ("self_attn.k_proj", "attention.k"),
    ("self_attn.v_proj", "attention.v"),
    ("self_attn.o_proj", "attention.output"),
)
"""The names of most classes."""
