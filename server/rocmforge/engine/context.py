"""How long a sequence may become where nobody asked for a context, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rocmforge.backend.optional import MemoryEstimate
from rocmforge.backend.protocol import LoadOptions

LEAST_CONTEXT: Final = 4096
"""Tokens below which a model is refused rather than served, if its own context is longer."""
STEP: Final = 1024
"""Tokens, of which a lowered context is a multiple: what is free changes a little all the time."""

Estimate = Callable[[LoadOptions], MemoryEstimate]


def settle_context(options: LoadOptions, estimate: Estimate) -> LoadOptions:
    """Lowers `max_context` to what fits with one sequence, but not below `least_context`.

    Args:
        options: of the model; without a least context, or with blocks that were asked for, they
            stay as they are.
        estimate: says what the model, and its draft model, would take with other options.

    Returns:
        Options that a backend can follow. Whether the least context fits is its business.
    """
    least = options.least_context
    wanted = replace(options, least_context=None)
    if least is None or options.kv_blocks is not None:
        return wanted
    # Experts leave the device only if even the least context does not fit beside them.
    tried = wanted if wanted.device_experts is not None else replace(wanted, device_experts=1.0)
    whole = estimate(tried)
    if _fits(whole):
        return wanted
    found = max(least, _longest(whole))
    # A shorter context leaves more for the cache, as a step's lists of tokens are shorter.
    longer = _longest(estimate(replace(tried, max_context=found)))
    if longer > found and _fits(estimate(replace(tried, max_context=longer))):
        found = longer
    return replace(wanted, max_context=min(found, options.max_context))


def most_sequences(spare: Callable[[int], int], most: int) -> int:
    """Returns how many sequences fit if as many may run: each has a part of a step's arrays.

    Args:
        spare: says how many bytes so many sequences leave; negative if they do not fit. Fewer of
            them never leave less.
        most: that are asked for.
    """
    fit, fail = 1, most
    left, over = spare(fit), spare(fail)
    if over >= 0 or left < 0:
        return most if over >= 0 else 0
    while fail - fit > 1:
        # Bytes grow with sequences nearly along a line, so that this ends after a few steps.
        between = fit + (fail - fit) * left // (left - over)
        tried = min(max(between, fit + 1), fail - 1)
        spared = spare(tried)
        if spared >= 0:
            fit, left = tried, spared
        else:
            fail, over = tried, spared
    return fit


def context_note(context: int, trained: int) -> str:
    """Says that the context was lowered, for people."""
    return (
        f"context      {context} tokens, as many as fit; the model was trained for {trained} "
        "(--max-context asks for a certain one)"
    )


def _fits(estimate: MemoryEstimate) -> bool:
    return estimate.kv_sequence <= estimate.left_for_kv


def _longest(estimate: MemoryEstimate) -> int:
    """Returns the tokens that the cache has room for beside what this estimate needs."""
    if not estimate.kv_block:
        return estimate.context
    return estimate.longest_context // STEP * STEP
