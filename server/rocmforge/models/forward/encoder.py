"""The forward pass of an encoder, once for every architecture and backend.

Encoders are those of the BERT family, and towers, which read patches of images.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from rocmforge.models.blocks import (
    Attention,
    FeedForward,
    Merger,
    ModelWeights,
    Patches,
    Projector,
)
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.forward.ops import AttentionSpec, Ops, attention_specs
from rocmforge.models.weights import present

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


def hidden_states(config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S) -> A:
    """Returns the hidden states of the step's tokens after the last norm, [T, hidden_size]."""
    embedding, tower = weights.embedding, config.tower
    if tower is not None and tower.places:
        x = ops.embed_between(step, embedding.token)
    else:
        tables = embedding.token, embedding.position, embedding.type
        x = ops.embed(step, *tables, config.embedding_scale)
    if (patches := weights.patches) is not None:
        delta = _patch_embeddings(config, patches, ops, step)
        if embedding.norm is None:
            return _pre_norm_layers(config, weights, ops, step, x, delta)
        x, _ = ops.add_norm(x, delta, None, None)
        x = ops.norm_projection(x, embedding.norm, embedding.norm_bias)
        return _pre_norm_layers(config, weights, ops, step, x)
    if embedding.norm is not None:
        x = ops.norm(x, embedding.norm, embedding.norm_bias)
    layers = _pre_norm_layers if config.pre_norm else _post_norm_layers
    x = layers(config, weights, ops, step, x)
    return x if weights.dense is None else ops.linear(step, x, weights.dense, None)


def image_rows(
    config: ModelConfig, projector: Projector[W], ops: Ops[A, W, S], step: S, hidden: A
) -> A:
    """Returns the rows of embeddings that a tower makes of its hidden states, [P, output_size]."""
    tower = config.tower
    assert tower is not None, "the model is a tower"
    if tower.averages:
        x = ops.sum_hidden(step, hidden)
        if projector.norm is not None:
            shift, scale = projector.shift, projector.scale
            standard = None if shift is None or scale is None else (shift, scale)
            x = ops.norm_sums(x, projector.norm, tower.merged, tower.row_norm_eps, standard)
    else:
        x = ops.merge_rows(hidden, tower.merged)
    if projector.row_norm is not None:
        x = ops.norm(x, projector.row_norm, projector.row_norm_bias, tower.row_norm_eps)
    if projector.merger is not None:
        x = ops.linear(step, x, projector.merger, None)
    if projector.inner is not None:
        x = ops.linear(step, x, projector.inner, projector.inner_bias)
        x = ops.gelu(x, ActivationFunction.GELU)
    return ops.image_rows(step, ops.linear(step, x, projector.matrix, projector.matrix_bias))


def _patch_embeddings(config: ModelConfig, patches: Patches[W], ops: Ops[A, W, S], step: S) -> A:
    """Returns what a tower makes of patches before it knows their places: [T, hidden_size]."""
    x = ops.patches(step)
    if patches.norm is not None:
        assert config.tower is not None, "the model is a tower"
        x = ops.norm_projection(x, patches.norm, patches.norm_bias, config.tower.patch_norm_eps)
    x = ops.linear(step, x, patches.matrix, patches.bias)
    if patches.output_norm is not None:
        x = ops.norm(x, patches.output_norm, patches.output_norm_bias)
    return x


def _merge(config: ModelConfig, merger: Merger[W], ops: Ops[A, W, S], step: S, x: A) -> A:
    """Returns rows for an inner layer of the model beside a tower."""
    assert config.tower is not None, "the model is a tower"
    x = ops.norm(ops.merge_rows(x, config.tower.merged), merger.norm, merger.norm_bias)
    x = ops.gelu(ops.linear(step, x, merger.inner, merger.inner_bias), ActivationFunction.GELU)
    return ops.linear(step, x, merger.matrix, merger.matrix_bias)


def _post_norm_layers(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S, x: A
) -> A:
    """Runs layers that norm each sum, with which the next one begins (Devlin et al. 2019)."""
    for spec, layer in zip(attention_specs(config), weights.layers, strict=True):
        delta = _attend(config, present(layer.attention), ops, step, x, spec)
        norm = present(layer.attention_norm), layer.attention_norm_bias
        if layer.attention_norm_2 is None:
            x = ops.norm_of_sum(x, delta, *norm)
        else:
            second = layer.attention_norm_2, layer.attention_norm_2_bias
            x = ops.two_norms_of_sum(x, delta, norm, second)
        delta = _feed_forward(config, present(layer.feed_forward), ops, step, x)
        x = ops.norm_of_sum(
            x, delta, present(layer.feed_forward_norm), layer.feed_forward_norm_bias
        )
    return x


def _pre_norm_layers(
    config: ModelConfig,
    weights: ModelWeights[W],
    ops: Ops[A, W, S],
    step: S,
    x: A,
    delta: A | None = None,
) -> A:
    """Runs layers that norm what each part reads; the sum goes on as it is (Warner et al. 2024).

    As in a decoder, each addition is done together with the norm that reads its result. Behind some
    layers of a tower, what makes rows of embeddings reads the sum, too. Where there is no delta to
    begin with, the first layer may have no norm for its attention: then it reads that of the
    embedding.
    """
    residual, part = x, 0
    for spec, layer in zip(attention_specs(config), weights.layers, strict=True):
        if delta is not None:
            norm = present(layer.attention_norm), layer.attention_norm_bias
            residual, x = ops.add_norm(residual, delta, *norm)
        elif layer.attention_norm is not None:
            x = ops.norm(residual, layer.attention_norm, layer.attention_norm_bias)
        delta = _attend(config, present(layer.attention), ops, step, x, spec)
        if layer.attention_post_norm is not None:
            delta = ops.norm(delta, layer.attention_post_norm, None)
        norm = present(layer.feed_forward_norm), layer.feed_forward_norm_bias
        residual, x = ops.add_norm(residual, delta, *norm)
        delta = _feed_forward(config, present(layer.feed_forward), ops, step, x)
        if layer.feed_forward_post_norm is not None:
            delta = ops.norm(delta, layer.feed_forward_post_norm, None)
        if layer.merger is not None:
            part += 1
            residual, _ = ops.add_norm(residual, delta, None, None)
            ops.keep_rows(step, _merge(config, layer.merger, ops, step, residual), part)
            delta = None
    if delta is None:
        return ops.norm(residual, weights.output_norm, weights.output_norm_bias)
    if weights.output_norm is None:
        total, x = ops.add_norm(residual, delta, None, None)
        is_normed_later = weights.projector is not None and weights.projector.row_norm is not None
        return total if is_normed_later else x
    return ops.norm_of_sum(residual, delta, weights.output_norm, weights.output_norm_bias)


def _attend(
    config: ModelConfig,
    attention: Attention[W],
    ops: Ops[A, W, S],
    step: S,
    x: A,
    spec: AttentionSpec,
) -> A:
    biases = attention.q_bias, attention.k_bias, attention.v_bias
    matrices = attention.q, present(attention.k), present(attention.v)
    if attention.q_bounds is None:
        q, k, v = ops.qkv(step, x, matrices, biases)
    else:
        bounds = attention.q_bounds, present(attention.k_bounds), present(attention.v_bounds)
        q, k, v = map(partial(ops.bounded_linear, step, x), matrices, bounds)
    q_norm, k_norm = attention.q_norm, attention.k_norm
    if config.layers[spec.layer].joint_head_norms:
        if q_norm is not None:
            q = ops.norm_projection(q, q_norm, attention.q_norm_bias)
        if k_norm is not None:
            k = ops.norm_projection(k, k_norm, attention.k_norm_bias)
        q_norm = k_norm = None
    if attention.v_norm is not None:
        v = ops.norm_values(v, attention.v_norm, spec)
    if config.rope is not None:
        q, k = ops.rope(step, q, k, q_norm, k_norm, spec)
    attended = ops.attend_all(step, q, k, v, spec)
    if attention.output_bounds is not None:
        return ops.bounded_linear(step, attended, attention.output, attention.output_bounds)
    return ops.linear(step, attended, attention.output, attention.output_bias)


def _feed_forward(
    config: ModelConfig, feed_forward: FeedForward[W], ops: Ops[A, W, S], step: S, x: A
) -> A:
    if feed_forward.gate is not None and feed_forward.gate_bounds is not None:
        pair, ranges = (
            (feed_forward.gate, feed_forward.up),
            (feed_forward.gate_bounds, present(feed_forward.up_bounds)),
        )
        inner = ops.bounded_gated_linear(step, x, pair, ranges, config.activation)
        bounds = present(feed_forward.down_bounds)
        return ops.bounded_linear(step, inner, feed_forward.down, bounds)
    if feed_forward.gate is not None:
        matrices = feed_forward.gate, feed_forward.up
        biases = feed_forward.gate_bias, feed_forward.up_bias
        inner = ops.gated_linear(step, x, *matrices, config.activation, biases)
    else:
        inner = ops.linear(step, x, feed_forward.up, feed_forward.up_bias)
        inner = ops.gelu(inner, config.activation)
    return ops.linear(step, inner, feed_forward.down, feed_forward.down_bias)
