"""The bytes that a step reads, and the speed of copies: the two sides of a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import StepInput
from rocmforge.models.blocks import Fusion, ModelWeights, Role
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import ExpertsConfig
from rocmforge.models.memory import state_bytes
from rocmforge.models.weights import present, walk
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.attention.cached import reads_in_teams
from rocmforge_hip.weights.placement import Planned, PlannedMatrix, PlannedPart, stored_bytes
from rocmforge_hip.weights.seats import table_bytes

LEAST_COPY: Final = 512 << 20
"""Bytes to copy at least: less might lie in a cache, which is several times as fast."""
_ENOUGH: Final = 1 << 30
_REPEATS: Final = 3


class StepReads:
    """Bytes that a step reads of weights, cache and states if it reads each of them once.

    Of a cache, each sequence reads its own context, but for what a team reads for it.

    That is the least it can do, and what its time is to be compared with where memory is the limit.
    Of experts it is what tokens choose that choose independently: the device alone knows which.
    Activations and adapters are not counted: they are small beside the rest.

    Args:
        config: Of the model.
        weights: As placed on the device.
        block_bytes: Of a block of each layer's cache.
    """

    def __init__(
        self, config: ModelConfig, weights: ModelWeights[Planned], block_bytes: Sequence[int]
    ) -> None:
        embedding, output = weights.embedding.token, weights.output
        table = table_bytes(weights)  # of which a token's row is read, too
        self._embedding_row = (_nbytes(embedding) + table) // config.vocab_size
        self._output = 0 if output is None else _nbytes(output)
        outside = self._output if output is embedding else self._output + _nbytes(embedding)
        self._experts = _expert_bytes(config, weights)
        self._layers = stored_bytes(weights) - table - outside - sum(self._experts.values())
        self._drafting = self._fill = 0
        if config.predicts:
            own, self._fill = _predictor_bytes(config, weights)
            predictor = present(weights.predictor)
            self._drafting = own + (
                self._output if predictor.output is None else _nbytes(predictor.output)
            )
            tables = (predictor.embedding, predictor.output)
            self._layers -= own + sum(_nbytes(table) for table in tables if table is not None)
            self._cached_bytes = block_bytes[-1] // BLOCK_TOKENS
        self._states = state_bytes(config)
        # Of a token in the caches of all layers with such a window; an encoder has none.
        self._token_bytes = Counter[int | None]()
        self._shared_token_bytes = 0  # of those where teams read what sequences share
        for layer, size in zip(config.layers, block_bytes, strict=config.causal):
            read = size if layer.cache_of is None else block_bytes[layer.cache_of]
            self._token_bytes[layer.window] += read // BLOCK_TOKENS
            if reads_in_teams(layer):
                self._shared_token_bytes += read // BLOCK_TOKENS

    def of(self, step: StepInput, saved_tokens: int = 0) -> int:
        """Returns the bytes of one step.

        Args:
            step: The step.
            saved_tokens: As `Teams.saved`.
        """
        if step.predicts:
            return self._drafting + self._cached_bytes * int(step.context_len.sum())
        drawn = self._output if len(step.logit_rows) else 0
        cached = self._without_output(step.context_len, step.new_tokens)
        return drawn + cached - self._shared_token_bytes * saved_tokens

    def of_decode(self, sequences: int, context: int) -> int:
        """Returns the bytes of a step that draws one token for each of so many sequences.

        Args:
            sequences: of the step.
            context: tokens of each, with the one that is computed.
        """
        contexts = np.full(sequences, context, np.int32)
        return self._output + self._without_output(contexts, np.ones_like(contexts))

    def _without_output(self, contexts: Int32Array, tokens: Int32Array) -> int:
        """Returns the bytes of all but logits, for the contexts and tokens of each sequence."""
        num_tokens = int(tokens.sum())
        weights = self._layers + self._fill + self._embedding_row * num_tokens
        for rule, nbytes in self._experts.items():
            weights += round(rule.share_chosen(num_tokens) * nbytes)
        cache = 0
        for window, token_bytes in self._token_bytes.items():
            seen = contexts if window is None else np.minimum(contexts, tokens + (window - 1))
            cache += token_bytes * int(seen.sum(dtype=np.int64))
        return weights + cache + self._states * len(contexts)


def _nbytes(planned: Planned) -> int:
    storage = planned.matrix if isinstance(planned, PlannedPart) else planned
    return storage.storage.nbytes


def _predictor_bytes(config: ModelConfig, weights: ModelWeights[Planned]) -> tuple[int, int]:
    """Returns the bytes of a predictor without its experts and tables: all, and to fill its cache.

    Of its experts as many are read as in the model's steps, where they are counted.
    """
    found: dict[int, tuple[int, bool]] = {}
    for place, planned in walk(weights):
        fills = place.declared.group is Fusion.QKV
        if place.name.startswith("predictor."):
            if place.declared.shape[0] == "vocab_size":
                continue
            fills = True
        elif place.layer != config.num_layers - 1 or place.declared.role is Role.EXPERT:
            continue
        storage = planned.matrix if isinstance(planned, PlannedPart) else planned
        found[id(storage)] = storage.storage.nbytes, fills
    return sum(size for size, _ in found.values()), sum(s for s, fills in found.values() if fills)


def _expert_bytes(config: ModelConfig, weights: ModelWeights[Planned]) -> dict[ExpertsConfig, int]:
    """Returns the bytes of all experts that are chosen by one rule: not of shared ones."""
    found: dict[ExpertsConfig, dict[int, int]] = {}
    for place, planned in walk(weights):
        if place.layer is not None and place.declared.role is Role.EXPERT:
            rule = present(config.layers[place.layer].experts)
            storage = planned.matrix if isinstance(planned, PlannedPart) else planned
            nbytes = storage.storage.nbytes
            if isinstance(storage, PlannedMatrix):
                nbytes -= nbytes // storage.num_experts * storage.num_shared
            found.setdefault(rule, {})[id(storage)] = nbytes
    return {rule: sum(storages.values()) for rule, storages in found.items()}


def copy_bandwidth(
    driver: Driver,
    stream: int,
    arrays: Iterable[tuple[DeviceArray, DeviceArray]],
    least: int = LEAST_COPY,
) -> float:
    """Returns the bytes a second read and written in a copy; 0 if there is too little.

    Args:
        driver: of the device.
        stream: with nothing to do.
        arrays: pairs; of each pair the first is copied over the second, as far as both reach.
        least: bytes that are to be copied at least.
    """
    copies: list[tuple[int, int, int]] = []
    size = 0
    for source, target in arrays:
        if size >= _ENOUGH:
            break
        both = min(source.nbytes, target.nbytes)
        copies.append((target.address, source.address, both))
        size += both
    if size < least:
        return 0.0
    begin, end = (driver.create_event(timed=True) for _ in range(2))
    times = []
    for _ in range(1 + _REPEATS):  # the first wakes the device up
        driver.record_event(begin, stream)
        for copy in copies:
            driver.copy_on_device(*copy, stream)
        driver.record_event(end, stream)
        driver.synchronize_event(end)
        times.append(driver.elapsed_ns(begin, end))
    for event in (begin, end):
        driver.destroy_event(event)
    return 2 * size / (min(times[1:]) * 1e-9)
