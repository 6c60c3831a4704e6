"""A rank's part of a model: its configuration, and its rows and columns of the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import ConfigurationError
from rocmforge.models.blocks import ModelWeights, Role, WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import ExpertsConfig
from rocmforge.models.lora import Adapter, LowRank
from rocmforge.models.weights import map_places, walk
from rocmforge_hip.device.constants import QUANT_BLOCK

VOCAB_ALIGN: Final = 4
"""Logits of a rank are moved four at a time."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `rank` of `size` equal ones."""

    rank: int
    size: int

    def check(self, config: ModelConfig, weights: ModelWeights[Tensor]) -> None:
        """Refuses what cannot be cut.

        Raises:
            ConfigurationError: Says which number does not divide, and what would work.
        """
        problem = next(_problems(config, weights, self.size), None)
        if problem is None:
            return
        fitting = ["1"]  # where nothing is cut, whatever its sizes are
        fitting += [
            str(size)
            for size in range(2, self.size)
            if next(_problems(config, weights, size), None) is None
        ]
        raise ConfigurationError(
            f"{config.name} cannot be split over {self.size} devices: {problem}. "
            f"Use --tensor-parallel {' or '.join(fitting)}."
        )

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Returns the model as this rank computes it; hidden size and vocabulary stay."""
        layers = tuple(
            replace(
                layer,
                num_heads=layer.num_heads // self.size,
                num_kv_heads=layer.num_kv_heads // self.size,
                intermediate_size=layer.intermediate_size // self.size,
                experts=self._experts(layer.experts),
            )
            for layer in whole.layers
        )
        return replace(whole, layers=layers)

    def _experts(self, whole: ExpertsConfig | None) -> ExpertsConfig | None:
        """Returns the rule: tokens still choose among all experts."""
        if whole is None:
            return None
        return replace(whole, shared_intermediate_size=whole.shared_intermediate_size // self.size)

    def weights(self, whole: ModelWeights[Tensor]) -> ModelWeights[Tensor]:
        """Returns this rank's part of every tensor, sharing the memory of the file."""
        return map_places(whole, self._part)

    def adapter(self, whole: Adapter) -> Adapter:
        """Returns this rank's part of an adapter."""
        return replace(
            whole,
            changes={place: self._low_rank(place, low) for place, low in whole.changes.items()},
        )

    def _low_rank(self, place: WeightPlace, whole: LowRank) -> LowRank:
        if place.declared.role is Role.ROW:
            return replace(whole, a=self._slice(whole.a, -1))
        return replace(whole, b=self._slice(whole.b, 0))

    def _part(self, place: WeightPlace, tensor: Tensor) -> Tensor | None:
        match place.declared.role:
            case Role.REPLICATED:
                return tensor
            case Role.COLUMN | Role.EXPERT:
                return self._slice(tensor, 0)
            case Role.ROW if len(tensor.shape) > 1:
                return self._slice(tensor, -1)
            case Role.ROW:  # the ranks' results are added up: one of them has the bias
                return tensor if self.rank == 0 else None

    def _slice(self, tensor: Tensor, axis: int) -> Tensor:
        size = tensor.shape[axis] // self.size
        return tensor.slice(axis, self.rank * size, (self.rank + 1) * size)


def _problems(config: ModelConfig, weights: ModelWeights[Tensor], size: int) -> Iterator[str]:
    """Yields why the model cannot be cut into so many parts."""
    if any(layer.joint_head_norms for layer in config.layers):
        yield "its norms of queries and keys are of the heads of all devices together"
    if any(layer.attention and layer.attention.gate for layer in weights.layers):
        yield "the gates of its attention are of the heads of all devices together"
    of_layers = (
        count
        for layer in config.layers
        for count in (
            (layer.num_kv_heads, "key-value heads", 1),
            (layer.num_heads, "heads", 1),
            (layer.intermediate_size, "features of the feed-forward", 1),
            (layer.num_experts, "experts", 1),
            (layer.shared_intermediate_size, "features of the shared expert", 1),
        )
    )
    of_model = (config.vocab_size, "tokens of the vocabulary", VOCAB_ALIGN)
    for count, what, multiple in dict.fromkeys((*of_layers, of_model)):
        if count % (size * multiple):
            yield f"its {count} {what} are not a multiple of {size * multiple}"
    for place, tensor in walk(weights):
        block = max(tensor.format.block_size, QUANT_BLOCK)
        is_cut = place.declared.role is Role.ROW and len(tensor.shape) > 1
        if is_cut and tensor.shape[-1] % (size * block):
            yield (
                f"the {tensor.shape[-1]} in_features of {tensor.name} are not a multiple of "
                f"{size * block}: {size} parts in blocks of {block} ({tensor.format})"
            )
