"""A rank's part of a model: its configuration, and its rows and columns of the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rocmforge.checkpoint.tensor import Joined, Tensor
from rocmforge.errors import ConfigurationError
from rocmforge.models.blocks import ModelWeights, Role, WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import ExpertsConfig, LayerConfig
from rocmforge.models.lora import Adapter, LowRank
from rocmforge.models.weights import map_places, walk
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.weights.segments import Segment, cut_axis, segments_of

_SHARED_EXPERT: Final = "experts.shared."
VOCAB_ALIGN: Final = 4
"""Logits of a rank are moved four at a time."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `rank` of `size` equal ones."""

    rank: int
    size: int
    whole: frozenset[str] = frozenset()
    """Names of weights that every rank has all of, though their role says that they are cut."""

    def fitted(self, weights: ModelWeights[Tensor]) -> Shard:
        """Returns the part as it is of this model: with a whole shared expert, if need be.

        Its rows are short: ranks may not each have as many stored blocks of them. Two blocks of
        Qwen3-Next are none for each of four, and 21 of Nemotron 3 Super not even for two.
        """
        experts = [layer.experts for layer in weights.layers if layer.experts is not None]
        rows = [each.shared.down for each in experts if each.shared is not None]
        is_cut = all(next(_problems_of_row(row, (), self.size), None) is None for row in rows)
        names = (place.name for place, _ in walk(weights) if cut_axis(place) is not None)
        found = () if is_cut else (name for name in names if name.startswith(_SHARED_EXPERT))
        return replace(self, whole=frozenset(found))

    def check(self, config: ModelConfig, weights: ModelWeights[Tensor]) -> None:
        """Refuses what cannot be cut.

        Raises:
            ConfigurationError: Says which number does not divide, and what would work.
        """
        problem = _problem(config, weights, self.size)
        if problem is None:
            return
        fitting = ["1"]  # where nothing is cut, whatever its sizes are
        fitting += [
            str(size) for size in range(2, self.size) if _problem(config, weights, size) is None
        ]
        raise ConfigurationError(
            f"{config.name} cannot be split over {self.size} devices: {problem}. "
            f"Use --tensor-parallel {' or '.join(fitting)}."
        )

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Returns the model as this rank computes it; hidden size and vocabulary stay."""
        return replace(whole, layers=tuple(map(self._layer, whole.layers)))

    def _layer(self, whole: LayerConfig) -> LayerConfig:
        convolution, delta, mamba = whole.convolution, whole.delta, whole.mamba
        if delta is not None:
            delta = replace(
                delta,
                num_key_heads=delta.num_key_heads // self.size,
                num_value_heads=delta.num_value_heads // self.size,
            )
        if mamba is not None:
            has_one = mamba.num_groups == 1
            mamba = replace(
                mamba,
                num_heads=mamba.num_heads // self.size,
                num_groups=1 if has_one else mamba.num_groups // self.size,
                sharing_devices=self.size if has_one else 1,
            )
        if convolution is not None:
            channels = convolution.channels // self.size
            if mamba is not None:  # with a group that all ranks have
                channels = mamba.mixed_features
            convolution = replace(convolution, channels=channels)
        return replace(
            whole,
            num_heads=whole.num_heads // self.size,
            # Several ranks may have the same.
            num_kv_heads=-(-whole.num_kv_heads // self.size),
            intermediate_size=whole.intermediate_size // self.size,
            experts=self._experts(whole.experts),
            convolution=convolution,
            delta=delta,
            mamba=mamba,
        )

    def _experts(self, whole: ExpertsConfig | None) -> ExpertsConfig | None:
        """Returns the rule: tokens still choose among all experts."""
        if whole is None or self.whole:
            return whole
        return replace(whole, shared_intermediate_size=whole.shared_intermediate_size // self.size)

    def weights(self, config: ModelConfig, whole: ModelWeights[Tensor]) -> ModelWeights[Tensor]:
        """Returns this rank's part of every tensor of the model, sharing the memory of the file."""
        return map_places(whole, partial(self._part, config))

    def adapter(self, config: ModelConfig, whole: Adapter) -> Adapter:
        """Returns this rank's part of an adapter of the model."""
        return replace(
            whole,
            changes={
                place: self._low_rank(config, place, low) for place, low in whole.changes.items()
            },
        )

    def _low_rank(self, config: ModelConfig, place: WeightPlace, whole: LowRank) -> LowRank:
        if place.name in self.whole:
            return whole
        segments = segments_of(config, place)
        if place.declared.role is Role.ROW:
            return replace(whole, a=self._cut(whole.a, -1, segments))
        return replace(whole, b=self._cut(whole.b, 0, segments))

    def _part(self, config: ModelConfig, place: WeightPlace, tensor: Tensor) -> Tensor | None:
        if place.name in self.whole:
            return tensor
        axis = cut_axis(place)
        if axis is not None:
            return self._cut(tensor, axis, segments_of(config, place))
        # The ranks' results are added up: one of them has the bias.
        is_added_up = place.declared.role is Role.ROW
        return None if is_added_up and self.rank > 0 else tensor

    def _cut(self, tensor: Tensor, axis: int, segments: tuple[Segment, ...]) -> Tensor:
        """Returns this rank's part of each segment, one after the other."""
        parts, first = [], 0
        for segment in segments:
            own = segment.part(self.rank, self.size)
            parts.append(tensor.slice(axis, first + own.start, first + own.stop))
            first += segment.elements
        if len(parts) == 1:
            return parts[0]
        return Joined(f"part {self.rank} of {tensor.name}", parts, axis)


def _problem(config: ModelConfig, weights: ModelWeights[Tensor], size: int) -> str | None:
    """Returns why the model cannot be cut into so many parts; None if it can."""
    return next(_problems(config, weights, Shard(0, size).fitted(weights)), None)


def _problems(config: ModelConfig, weights: ModelWeights[Tensor], shard: Shard) -> Iterator[str]:
    """Yields why the model cannot be cut so."""
    size = shard.size
    if any(layer.joint_head_norms for layer in config.layers):
        yield "its norms of queries and keys are of the heads of all devices together"
    cut = [
        (place, tensor, segments_of(config, place))
        for place, tensor in walk(weights)
        if cut_axis(place) is not None and place.name not in shard.whole
    ]
    for place, _, segments in cut:
        multiple = VOCAB_ALIGN if place.declared.shape[0] == "vocab_size" else 1
        for segment in dict.fromkeys(segments):
            if (problem := segment.problem(size, multiple)) is not None:
                yield problem
    for place, tensor, segments in cut:
        if place.declared.role is Role.ROW:
            yield from _problems_of_row(tensor, segments, size)


def _problems_of_row(tensor: Tensor, segments: tuple[Segment, ...], size: int) -> Iterator[str]:
    """Yields why ranks cannot have parts of the rows of a matrix."""
    stored = tensor.format.block_size
    if len(segments) > 1 and (first := segments[0]).elements // size % stored:
        yield (
            f"{first.elements // size} in_features of {tensor.name} would lie together on a "
            f"device, of {first.heads // size} {first.what}, not a multiple of {stored} "
            f"({tensor.format})"
        )
    block = max(stored, QUANT_BLOCK)
    if tensor.shape[-1] % (size * block):
        yield (
            f"the {tensor.shape[-1]} in_features of {tensor.name} are not a multiple of "
            f"{size * block}: {size} parts in blocks of {block} ({tensor.format})"
        )
