"""The forward pass of an encoder of the BERT family, once for every architecture and backend."""

from __future__ import annotations

from typing import TypeVar

from rocmforge.models.config import ModelConfig
from rocmforge.models.encoder_weights import EncoderLayer, EncoderWeights, ScoreHead
from rocmforge.models.forward.encoder_ops import EncoderAttentionSpec, EncoderOps

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


def encode(config: ModelConfig, weights: EncoderWeights[W], ops: EncoderOps[A, W, S], step: S) -> A:
    """Returns what the step gives for its hidden ranges, [P, config.output_size].

    That is the sum of the hidden states after the last norm; or, of a model with a head, the scores
    of that sum, which is the state of one token there: the first.
    """
    sums = ops.sum_hidden(step, hidden_states(config, weights, ops, step))
    return sums if weights.head is None else _scores(weights.head, ops, step, sums)


def attention_specs(config: ModelConfig) -> tuple[EncoderAttentionSpec, ...]:
    """Returns the rules of each layer's attention."""
    return tuple(
        EncoderAttentionSpec(
            layer=index,
            scale=layer.attention_scale,
            reach=None if layer.window is None else layer.window - 1,
            local_rope=layer.local_rope,
        )
        for index, layer in enumerate(config.layers)
    )


def hidden_states(
    config: ModelConfig, weights: EncoderWeights[W], ops: EncoderOps[A, W, S], step: S
) -> A:
    """Returns the hidden states of the step's tokens after the last norm, [T, hidden_size]."""
    x = ops.embed(step, weights.tokens, weights.positions, weights.types)
    x = ops.layer_norm(x, weights.norm, weights.norm_bias)
    layers = _pre_norm_layers if config.pre_norm else _post_norm_layers
    return layers(config, weights, ops, step, x)


def _post_norm_layers(
    config: ModelConfig, weights: EncoderWeights[W], ops: EncoderOps[A, W, S], step: S, x: A
) -> A:
    """Runs layers that norm each sum, with which the next one begins (Devlin et al. 2019)."""
    for spec, layer in zip(attention_specs(config), weights.layers, strict=True):
        assert layer.attn_norm is not None
        delta = _attend(config, layer, ops, step, x, spec)
        norm = layer.attn_norm, layer.attn_norm_bias
        if layer.attn_norm_2 is None:
            x = ops.add_layer_norm(x, delta, *norm)
        else:
            x = ops.add_two_norms(x, delta, norm, (layer.attn_norm_2, layer.attn_norm_2_bias))
        delta = _feed_forward(config, layer, ops, step, x)
        x = ops.add_layer_norm(x, delta, layer.ffn_norm, layer.ffn_norm_bias)
    return x


def _pre_norm_layers(
    config: ModelConfig, weights: EncoderWeights[W], ops: EncoderOps[A, W, S], step: S, x: A
) -> A:
    """Runs layers that norm what each part reads; the sum goes on as it is (Warner et al. 2024).

    As in a decoder, each addition is done together with the norm that reads its result. The first
    layer has no norm for its attention: what it reads is the embedding's.
    """
    residual, delta = x, None
    for spec, layer in zip(attention_specs(config), weights.layers, strict=True):
        if delta is not None:
            assert layer.attn_norm is not None
            residual, x = ops.add_then_norm(residual, delta, layer.attn_norm)
        delta = _attend(config, layer, ops, step, x, spec)
        residual, x = ops.add_then_norm(residual, delta, layer.ffn_norm)
        delta = _feed_forward(config, layer, ops, step, x)
    assert delta is not None
    assert weights.output_norm is not None
    return ops.add_layer_norm(residual, delta, weights.output_norm, None)


def _attend(
    config: ModelConfig,
    layer: EncoderLayer[W],
    ops: EncoderOps[A, W, S],
    step: S,
    x: A,
    spec: EncoderAttentionSpec,
) -> A:
    biases = layer.q_bias, layer.k_bias, layer.v_bias
    q, k, v = ops.qkv(step, x, (layer.q, layer.k, layer.v), biases)
    if layer.q_norm is not None:
        q = ops.norm_projection(q, layer.q_norm, layer.q_norm_bias)
    if layer.k_norm is not None:
        k = ops.norm_projection(k, layer.k_norm, layer.k_norm_bias)
    if config.rope is not None:
        q, k = ops.rope(step, q, k, spec)
    attended = ops.attend_all(step, q, k, v, spec)
    return ops.linear(step, attended, layer.output, layer.output_bias)


def _feed_forward(
    config: ModelConfig, layer: EncoderLayer[W], ops: EncoderOps[A, W, S], step: S, x: A
) -> A:
    if layer.gate is not None:
        inner = ops.gated_linear(step, x, layer.gate, layer.up, config.activation)
    else:
        inner = ops.gelu(ops.linear(step, x, layer.up, layer.up_bias))
    return ops.linear(step, inner, layer.down, layer.down_bias)


def _scores(head: ScoreHead[W], ops: EncoderOps[A, W, S], step: S, rows: A) -> A:
    if head.dense is not None:
        rows = ops.tanh(ops.linear(step, rows, head.dense, head.dense_bias))
    return ops.linear(step, rows, head.scores, head.scores_bias)
