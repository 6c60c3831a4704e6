"""The forward pass of an encoder of the BERT family, once for every architecture and backend."""

from __future__ import annotations

from typing import TypeVar

from rocmforge.backend.encoder_ops import EncoderOps
from rocmforge.models.encoder_config import EncoderConfig
from rocmforge.models.encoder_weights import EncoderLayer, EncoderWeights, ScoreHead

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


def encode(
    config: EncoderConfig, weights: EncoderWeights[W], ops: EncoderOps[A, W, S], step: S
) -> A:
    """What the step returns for its hidden ranges, `[P, config.output_size]`.

    That is the sum of the hidden states after the last norm; or, of a model with a head, the scores
    of that sum, which is the state of one token there: the first.
    """
    sums = ops.sum_hidden(step, hidden_states(config, weights, ops, step))
    return sums if weights.head is None else _scores(weights.head, ops, step, sums)


def hidden_states(
    config: EncoderConfig, weights: EncoderWeights[W], ops: EncoderOps[A, W, S], step: S
) -> A:
    """Hidden states `[T, D]` of the step's tokens after the last norm (Devlin et al. 2019)."""
    x = ops.embed(step, weights.tokens, weights.positions, weights.types)
    x = ops.layer_norm(x, weights.norm, weights.norm_bias)
    for layer in weights.layers:
        q = ops.linear(step, x, layer.q, layer.q_bias)
        k = ops.linear(step, x, layer.k, layer.k_bias)
        v = ops.linear(step, x, layer.v, layer.v_bias)
        if config.rope is not None:
            q, k = ops.rope(step, q, k)
        attended = ops.attend_all(step, q, k, v, config.attention_scale)
        delta = ops.linear(step, attended, layer.output, layer.output_bias)
        x = ops.add_layer_norm(x, delta, layer.attn_norm, layer.attn_norm_bias)
        delta = ops.linear(step, _inner(config, layer, ops, step, x), layer.down, layer.down_bias)
        x = ops.add_layer_norm(x, delta, layer.ffn_norm, layer.ffn_norm_bias)
    return x


def _inner(
    config: EncoderConfig, layer: EncoderLayer[W], ops: EncoderOps[A, W, S], step: S, x: A
) -> A:
    """The inner activations of the feed-forward network, `[T, ffn]`."""
    if layer.gate is not None:
        return ops.gated_linear(step, x, layer.gate, layer.up, config.activation)
    return ops.gelu(ops.linear(step, x, layer.up, layer.up_bias))


def _scores(head: ScoreHead[W], ops: EncoderOps[A, W, S], step: S, rows: A) -> A:
    if head.dense is not None:
        rows = ops.tanh(ops.linear(step, rows, head.dense, head.dense_bias))
    return ops.linear(step, rows, head.scores, head.scores_bias)
