"""The memory that a predictor takes of a device, and whether there is room for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final

from rocmforge.backend.optional import MemoryEstimate
from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.context import settle_context
from rocmforge.models.checkpoint import Checkpoint

PREDICTOR_LEFT_OUT: Final = (
    "left out: it would shorten the context, send experts to the host, or take more than a third "
    "of the cache; --draft-model mtp asks for it"
)
"""What is said of a predictor without `predictor_has_room`."""
_KEPT: Final = Fraction(2, 3)
"""Of the tokens in the cache, beside a predictor that nobody asked for.

Hidden states lie there too: in a model with few layers of attention, they are a sixth of it.
"""


def predictor_has_room(
    alone: Checkpoint,
    model: Checkpoint,
    options: LoadOptions,
    drafts_without: int,
    estimate: Callable[[Checkpoint, LoadOptions], MemoryEstimate],
) -> bool:
    """Returns whether a predictor takes nothing from its model that somebody would miss.

    The context stays as long, all experts are on the device, and the cache keeps two thirds of the
    tokens that it would have, of those that all sequences can fill.

    Args:
        alone: the model without its predictor.
        model: with it.
        options: of the model with it.
        drafts_without: draft tokens of a step without it.
        estimate: says what one of them would take.
    """
    without = replace(options, draft_tokens=drafts_without)
    own, both_parts = (
        estimate(each, settle_context(asked, partial(estimate, each)))
        for each, asked in ((alone, without), (model, options))
    )
    if both_parts.hosted is not None or both_parts.context < own.context:
        return False
    own_blocks, blocks = (
        min(
            max(each.left_for_kv, 0) // each.kv_block,
            options.kv_blocks or options.max_sequences * -(-each.context // each.block_size),
        )
        for each in (own, both_parts)
    )
    return _KEPT.denominator * blocks >= _KEPT.numerator * own_blocks


def predictor_part(alone: MemoryEstimate, model: MemoryEstimate) -> MemoryEstimate:
    """Returns what of the estimate of a model with a predictor is the predictor's."""
    return replace(
        model,
        weights=model.weights - alone.weights,
        activations=model.activations - alone.activations,
        states=model.states - alone.states,
        kv_block=model.kv_block - alone.kv_block,
    )
