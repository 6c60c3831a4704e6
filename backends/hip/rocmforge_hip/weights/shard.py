"""A rank's part of a model: its configuration, and its rows and columns of the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import ConfigurationError
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import Adapter, LowRank
from rocmforge.models.weights import LayerWeights, ModelWeights
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
        fitting = [
            str(size)
            for size in range(1, self.size)
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
            )
            for layer in whole.layers
        )
        return replace(whole, layers=layers)

    def weights(self, whole: ModelWeights[Tensor]) -> ModelWeights[Tensor]:
        """Returns this rank's part of every tensor, sharing the memory of the file."""
        return replace(
            whole,
            layers=tuple(self._layer(layer) for layer in whole.layers),
            output=self._rows(whole.output),
        )

    def adapter(self, whole: Adapter) -> Adapter:
        """Returns this rank's part of an adapter."""
        layers = tuple(
            {role: self._low_rank(role, low_rank) for role, low_rank in layer.items()}
            for layer in whole.layers
        )
        return replace(whole, layers=layers)

    def _low_rank(self, role: str, whole: LowRank) -> LowRank:
        if role in ("output", "down"):
            return replace(whole, a=self._columns(whole.a))
        return replace(whole, b=self._rows(whole.b))

    def _layer(self, layer: LayerWeights[Tensor]) -> LayerWeights[Tensor]:
        return replace(
            layer,
            q=self._rows(layer.q),
            k=self._rows(layer.k),
            v=self._rows(layer.v),
            q_bias=self._elements(layer.q_bias),
            k_bias=self._elements(layer.k_bias),
            v_bias=self._elements(layer.v_bias),
            output=self._columns(layer.output),
            # The ranks' results are added up: one of them has the bias.
            output_bias=layer.output_bias if self.rank == 0 else None,
            gate=self._rows(layer.gate),
            up=self._rows(layer.up),
            down=self._columns(layer.down),
        )

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.slice(0, *self._range(tensor.shape[0]))

    def _columns(self, tensor: Tensor) -> Tensor:
        return tensor.slice(-1, *self._range(tensor.shape[1]))

    def _elements(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else bias.slice(0, *self._range(bias.shape[0]))

    def _range(self, count: int) -> tuple[int, int]:
        size = count // self.size
        return self.rank * size, (self.rank + 1) * size


def _problems(config: ModelConfig, weights: ModelWeights[Tensor], size: int) -> Iterator[str]:
    """Yields why the model cannot be cut into so many parts."""
    of_layers = (
        count
        for layer in config.layers
        for count in (
            (layer.num_kv_heads, "key-value heads", 1),
            (layer.num_heads, "heads", 1),
            (layer.intermediate_size, "features of the feed-forward", 1),
        )
    )
    of_model = (config.vocab_size, "tokens of the vocabulary", VOCAB_ALIGN)
    for count, what, multiple in dict.fromkeys((*of_layers, of_model)):
        if count % (size * multiple):
            yield f"its {count} {what} are not a multiple of {size * multiple}"
    for layer in weights.layers:
        for tensor in (layer.output, layer.down):
            block = max(tensor.format.block_size, QUANT_BLOCK)
            if tensor.shape[1] % (size * block):
                yield (
                    f"the {tensor.shape[1]} in_features of {tensor.name} are not a multiple of "
                    f"{size * block}: {size} parts in blocks of {block} ({tensor.format})"
                )
