"""The kernels that the sampling of a step needs, and the sizes of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocmforge.backend.step import SamplingBatch
from rocmforge_hip.ops.step.processor_arrays import NO_USES, UseSizes


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """The sampling kernels that a step needs."""

    adjusts: bool  # a row has a penalty, a bias, a mask or a processor: what is drawn is a copy
    masks: bool  # a row has a mask
    draws: bool  # a row has a temperature
    filters: bool  # a drawing row has min-p, top-k or top-p
    logprobs: bool
    num_top: int
    processes: bool  # a row has logits processors

    @classmethod
    def of(cls, batch: SamplingBatch) -> SamplingNeeds:
        """Returns what these rows need."""
        draws = batch.temperature > 0
        filters = draws & ((batch.min_p > 0) | (batch.top_k > 0) | (batch.top_p < 1))
        masks = batch.allowed is not None
        processes = batch.processors is not None
        adjusts = (
            masks
            or processes
            or len(batch.bias_tokens) > 0
            or bool((batch.repetition_penalty != 1).any())
            or bool((batch.presence_penalty != 0).any())
            or bool((batch.frequency_penalty != 0).any())
        )
        most = int(batch.num_logprobs.max(initial=-1))
        return cls(
            adjusts=adjusts,
            masks=masks,
            draws=bool(draws.any()),
            filters=bool(filters.any()),
            logprobs=most >= 0,
            num_top=max(most, 0),
            processes=processes,
        )


@dataclass(frozen=True, slots=True)
class ListSizes:
    """Sizes of the sampling arrays that do not follow from a step's shape."""

    seen: int  # tokens seen, of all rows with a penalty
    biases: int  # biased tokens, of all rows
    mask_words: int  # of each row; 0 if no row has a mask
    uses: UseSizes = NO_USES  # of logits processors

    @classmethod
    def of(cls, batch: SamplingBatch) -> ListSizes:
        """Returns the sizes for these rows."""
        words = 0 if batch.allowed is None else batch.allowed.shape[1]
        uses = UseSizes.of(batch.processors)
        return cls(len(batch.seen_tokens), len(batch.bias_tokens), words, uses)


NO_LISTS: Final = ListSizes(0, 0, 0)
