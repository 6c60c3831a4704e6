"""Operations of layers with states: plain functions of one sequence's tokens and its states.

As in `ops`, a row of a result does not depend on how many rows are computed together: a state after
a token is the same bits however the tokens before it were cut into steps.
"""

from __future__ import annotations

import numpy as np

from rocmforge.models.config import ActivationFunction
from rocmforge.models.layer_config import DeltaConfig, MambaConfig
from rocmforge_reference.ops import Array, activate, rms_norm, sigmoid


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


def gated_delta(
    x: Array,
    gates: tuple[Array, Array],
    decay: tuple[Array, Array],
    state: Array,
    config: DeltaConfig,
    eps: float,
) -> tuple[Array, Array]:
    """Returns the results of Gated DeltaNet, token by token, and the state behind them.

    Args:
        x: [T, mixed_features]: queries, keys and values of all heads.
        gates: alpha and beta, [T, num_value_heads] each.
        decay: The factor and the bias, [num_value_heads] each.
        state: [num_value_heads, key_dim, value_dim].
        config: The heads.
        eps: Added to sums of squares.

    Returns:
        [T, num_value_heads * value_dim], and a new state.
    """
    queries, keys, values = np.split(x, [config.key_features, 2 * config.key_features], axis=1)
    scale = x.dtype.type(config.key_dim**-0.5)
    queries = _of_value_heads(queries, config, eps) * scale
    keys = _of_value_heads(keys, config, eps)
    values = values.reshape(len(x), config.num_value_heads, config.value_dim)
    (alpha, beta), (factor, bias) = gates, decay
    kept, learnt = np.exp(factor * softplus(alpha + bias)), sigmoid(beta)
    results = np.empty_like(values)
    for token, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
        state = kept[token, :, None, None] * state
        known = (key[:, :, None] * state).sum(axis=1)
        missing = learnt[token, :, None] * (value - known)
        state = state + key[:, :, None] * missing[:, None, :]
        results[token] = (query[:, :, None] * state).sum(axis=1)
    return results.reshape(len(x), -1), state


def _of_value_heads(x: Array, config: DeltaConfig, eps: float) -> Array:
    """Returns the queries or keys of each value head, of length 1: [T, value heads, key_dim]."""
    heads = x.reshape(len(x), config.num_key_heads, config.key_dim)
    heads = heads / np.sqrt((heads * heads).sum(axis=-1, keepdims=True) + x.dtype.type(eps))
    each = config.num_value_heads // config.num_key_heads
    if config.is_tiled:
        return np.tile(heads, (1, each, 1))
    return np.repeat(heads, each, axis=1)


def mamba(
    x: Array,
    dt: Array,
    vectors: tuple[Array, Array, Array],
    state: Array,
    config: MambaConfig,
) -> tuple[Array, Array]:
    """Returns the results of Mamba-2, token by token, and the state behind them.

    Args:
        x: [T, mixed_features]: inputs of all heads, then B and C of all groups.
        dt: [T, num_heads], before its offset.
        vectors: The decay, the offset of dt and the factor of inputs, [num_heads] each.
        state: [num_heads, head_dim, state_size].
        config: The heads.

    Returns:
        [T, inner_features], and a new state.
    """
    (decay, offset, skip), inner = vectors, config.inner_features
    inputs, b, c = np.split(x, [inner, (inner + config.mixed_features) // 2], axis=1)
    inputs = inputs.reshape(len(x), config.num_heads, config.head_dim)
    b, c = (_of_mamba_heads(part, config) for part in (b, c))
    dt = softplus(dt + offset)
    kept, added = np.exp(decay * dt), dt[:, :, None] * inputs
    results = skip[:, None] * inputs
    for token in range(len(x)):
        state = kept[token, :, None, None] * state + added[token, :, :, None] * b[token, :, None, :]
        results[token] += (state * c[token, :, None, :]).sum(axis=-1)
    return results.reshape(len(x), -1), state


def _of_mamba_heads(x: Array, config: MambaConfig) -> Array:
    """Returns what each head has of its group: [T, num_heads, state_size]."""
    groups = x.reshape(len(x), config.num_groups, config.state_size)
    return np.repeat(groups, config.num_heads // config.num_groups, axis=1)


def grouped_norm(x: Array, gate: Array, weight: Array, groups: int, eps: float) -> Array:
    """Returns `rms_norm` of each group of x times SiLU of the gate: [T, features]."""
    gated = (x * activate(gate, ActivationFunction.SILU)).reshape(len(x), groups, -1)
    normalized: Array = rms_norm(gated, weight.reshape(groups, -1), eps).reshape(x.shape)
    return normalized


def gated_norm(x: Array, gate: Array, weight: Array, eps: float) -> Array:
    """Returns `rms_norm` of each head, times SiLU of the gate: [T, heads * dim]."""
    normalized = rms_norm(x.reshape(len(x), -1, len(weight)), weight, eps)
    gated: Array = normalized.reshape(x.shape) * activate(gate, ActivationFunction.SILU)
    return gated


def softplus(x: Array) -> Array:
    """Returns `log(1 + exp(x))`."""
    sums: Array = np.logaddexp(x, x.dtype.type(0))
    return sums
