"""The processors that come with the server.

Penalties, logit bias, min-p, top-k, top-p and the grammar's mask are no processors: prebuilt
kernels do them, for all rows in one pass.
"""

from __future__ import annotations

from typing import Any, Final

from rocmforge.logits.processor import (
    INF,
    LogitsProcessor,
    Parameter,
    contains,
    exp,
    log,
    logits_processor,
    minimum,
    nucleus,
    reduction,
    where,
)


@reduction(over="vocabulary", by="max")
def highest(logit: Any) -> Any:
    """Returns the largest logit."""
    return logit


@reduction(over="vocabulary", by="sum")
def mass(logit: Any, highest: Any) -> Any:
    """Sums a term of the softmax, relative to its largest."""
    return exp(logit - highest)


# --- DRY -------------------------------------------------------------------------------------


@reduction(over="history", by="min")
def unbroken(history: Any, index: Any, length: Any, sequence_breakers: Any) -> Any:
    """Counts tokens behind the last sequence breaker: no repetition is longer."""
    return length - 1 - index if contains(sequence_breakers, history[index]) else length


@reduction(over="history", by="max", per_token=True, missing=-1.0)
def repeated(history: Any, index: Any, length: Any, unbroken: Any) -> Any:
    """Counts the tokens before this one that are also the last tokens of the history."""
    if index == 0:
        return -1  # nothing stands before it
    count = 0
    while (
        count < index
        and count < unbroken
        and history[index - 1 - count] == history[length - 1 - count]
    ):
        count += 1
    return count


@logits_processor(
    "dry",
    parameters=(
        Parameter("multiplier", 0.0, least=0.0),
        Parameter("base", 1.75, least=1.0),
        Parameter("allowed_length", 2, least=0),
        Parameter("penalty_last_n", 64, least=-1),
        Parameter("sequence_breakers", ("\n", ":", '"', "*")),
    ),
    needs=(unbroken, repeated),
    history="penalty_last_n",
)
def dry(
    logit: Any,
    token: Any,
    repeated: Any,
    multiplier: Any,
    base: Any,
    allowed_length: Any,
    sequence_breakers: Any,
) -> Any:
    """Applies Don't Repeat Yourself (p-e-w 2024, text-generation-webui pull request 5677).

    A token that would make a repetition of n tokens longer loses multiplier * base **
    (n - allowed_length), for n of at least allowed_length. Repetitions end at sequence breakers.
    """
    growth = minimum((repeated - allowed_length) * log(base), 88.0)  # finite in float32
    extends = (repeated >= 0) & (repeated >= allowed_length)
    is_penalized = extends & (contains(sequence_breakers, token) == 0)
    return where(is_penalized, logit - multiplier * exp(growth), logit)


# --- typical-p -------------------------------------------------------------------------------


@reduction(over="vocabulary", by="sum")
def entropy(logit: Any, highest: Any, mass: Any) -> Any:
    """Sums a term of the entropy of the row's distribution, in nats."""
    surprise = log(mass) - (logit - highest)
    return exp(-surprise) * minimum(surprise, 1e30)  # 0, not NaN, for a forbidden token


@nucleus(share="p")
def is_typical(logit: Any, highest: Any, mass: Any, entropy: Any) -> Any:
    """Returns how far a token's surprise is from the expected one, and its probability."""
    surprise = log(mass) - (logit - highest)
    return abs(surprise - entropy), exp(-surprise)


@logits_processor(
    "typical_p",
    parameters=(Parameter("p", 1.0, least=0.0, most=1.0),),
    needs=(highest, mass, entropy, is_typical),
)
def typical_p(logit: Any, is_typical: Any) -> Any:
    """Applies locally typical sampling (Meister et al. 2023).

    Keeps the tokens whose surprise is closest to the entropy, until they have more than the
    probability p together; ties share one fate.
    """
    return where(is_typical, logit, -INF)


# --- XTC -------------------------------------------------------------------------------------


@reduction(over="vocabulary", by="min")
def least_choice(logit: Any, highest: Any, mass: Any, threshold: Any) -> Any:
    """Finds the smallest logit of those whose probability reaches the threshold.

    A forbidden token is no choice, though its probability of 0 reaches a threshold of 0.
    """
    is_choice = (exp(logit - highest) >= threshold * mass) & (logit > -INF)
    return where(is_choice, logit, INF)


@logits_processor(
    "xtc",
    parameters=(
        Parameter("probability", 0.0, least=0.0, most=1.0),
        Parameter("threshold", 0.1, least=0.0, most=1.0),
    ),
    needs=(highest, mass, least_choice),
)
def xtc(
    logit: Any,
    least_choice: Any,
    uniform: Any,
    probability: Any,
) -> Any:
    """Applies Exclude Top Choices (p-e-w 2024, text-generation-webui pull request 6335).

    With this probability, removes all tokens that reach the threshold but the least probable one
    of them.
    """
    return where((uniform < probability) & (logit > least_choice), -INF, logit)


BUILTIN: Final[tuple[LogitsProcessor, ...]] = (dry, typical_p, xtc)
