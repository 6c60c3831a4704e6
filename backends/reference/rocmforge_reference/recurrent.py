"""Operations of layers with states: plain functions of one sequence's tokens and its states.

As in `ops`, a row of a result does not depend on how many rows are computed together: a state after
a token is the same bits however the tokens before it were cut into steps.
"""

from __future__ import annotations

import numpy as np

from rocmforge_reference.ops import Array


def convolve(x: Array, weight: Array, state: Array) -> tuple[Array, Array]:
    """Returns the causal convolution of each channel for itself, and the state behind it.

    Args:
        x: [T, channels].
        weight: [channels, width], the last for the newest input.
        state: [channels, width - 1], the inputs before `x`, the oldest first.

    Returns:
        Sums of `width` inputs times their weights, [T, channels], and the last inputs.
    """
    inputs = np.concatenate([state.T, x])
    total = np.zeros_like(x)
    for age, column in enumerate(weight.T):
        total += column * inputs[age : age + len(x)]
    return total, inputs[len(x) :].T


def short_convolution(x: Array, weight: Array, state: Array) -> tuple[Array, Array]:
    """Returns `c * convolve(b * x)`, with b, c, x of [T, 3 * channels], and the state behind it."""
    b, c, inputs = np.split(x, 3, axis=1)
    convolved, state = convolve(b * inputs, weight, state)
    return c * convolved, state
