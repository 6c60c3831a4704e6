"""The forward pass of a decoder-only transformer, once for every architecture and backend."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from rocmforge.models.blocks import (
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ModelWeights,
)
from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.ops import AttentionSpec, Ops, attention_specs
from rocmforge.models.weights import present

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


class _Stream(NamedTuple, Generic[A, W]):
    """The residual on its way from layer to layer.

    Attributes:
        residual: [T, hidden_size].
        delta: What the last part adds to it, if anything.
        scale: [1], what then multiplies the sum, if anything.
    """

    residual: A
    delta: A | None = None
    scale: W | None = None


def hidden_states(config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S) -> A:
    """Returns the hidden states of the step's tokens, [T, hidden_size]; fills caches and states.

    They are those after the last norm. Of the last layer, backends may compute the rows alone that
    somebody reads: behind a part of a prompt, those are none.

    Each residual addition is done together with the norm that reads its result, which is the first
    of the next part (or the output norm).
    """
    specs, layers = attention_specs(config), weights.layers
    if config.predicts:
        specs, layers = specs[:-1], layers[:-1]
    embedding = weights.embedding
    residual = ops.embed(step, embedding.token, None, None, config.embedding_scale, embedding.norm)
    other = None
    if config.per_layer_size:
        other = ops.per_layer_inputs(step, residual, embedding)
    stream: _Stream[A, W] = _Stream(residual)
    for spec, layer in zip(specs, layers, strict=True):
        is_last = layer is layers[-1]
        if is_last and not ops.wants_rows(step):
            _fill(config, layer, ops, step, _normed(ops, stream, layer.attention_norm)[1], spec)
            return stream.residual
        stream, norm = _through_mixing(config, layer, ops, step, stream, spec)
        if is_last:
            residual, delta = ops.take_wanted(step, stream.residual, present(stream.delta))
            stream = stream._replace(residual=residual, delta=delta)
        stream = _through_network(config, layer, ops, step, stream, norm, spec.layer, other)
        if spec.layer < config.deepstack:
            delta = ops.add_embeddings(step, present(stream.delta), spec.layer + 1)
            stream = stream._replace(delta=delta)
    return _normed(ops, stream, weights.output_norm)[1]


def predicted_states(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S
) -> A:
    """Returns the hidden states that the predictor guesses for the step's tokens.

    Each follows from the token and the hidden state of the one before it, which is the model's own
    or another guess; both are stored with `Ops.store_hidden`. Like `hidden_states`, they are those
    after a norm, to be multiplied with the output matrix: [T, hidden_size]. Fills the predictor's
    cache.
    """
    layer, spec = weights.layers[-1], attention_specs(config)[-1]
    norm = present(weights.predictor).output_norm or present(weights.output_norm)
    stream: _Stream[A, W] = _Stream(_predictor_input(config, weights, ops, step))
    stream, network_norm = _through_mixing(config, layer, ops, step, stream, spec)
    stream = _through_network(config, layer, ops, step, stream, network_norm, spec.layer)
    return _normed(ops, stream, norm)[1]


def fill_predictor(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S
) -> None:
    """Fills the predictor's cache for the step's tokens, whose hidden states are stored already.

    That takes two matrix products, or launches that multiply with several matrices: nobody asks
    what it would guess for tokens that are known.
    """
    layer, spec = weights.layers[-1], attention_specs(config)[-1]
    residual = _predictor_input(config, weights, ops, step)
    x = ops.norm(residual, present(layer.attention_norm), None)
    _fill(config, layer, ops, step, x, spec)


def _predictor_input(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S
) -> A:
    """Returns the residual that the predictor's layer begins with."""
    predictor = present(weights.predictor)
    table = predictor.embedding or weights.embedding.token
    x = ops.embed(step, table, None, None, config.embedding_scale)
    x = ops.beside_hidden(step, x, predictor.embedding_norm, predictor.hidden_norm)
    return ops.project_residual(step, x, predictor.projection)


def _fill(
    config: ModelConfig, layer: Layer[W], ops: Ops[A, W, S], step: S, x: A, spec: AttentionSpec
) -> None:
    """Fills a layer's cache, or brings its states up to date, for tokens that nobody asks about."""
    if (latent := layer.latent) is not None:
        _, kv = ops.qkv(step, x, _latent_inputs(latent), (None, None))
        ops.store_latent(step, kv, latent.kv_norm, spec)
    elif layer.attention is not None:
        if config.layers[spec.layer].cache_of is None:
            _store(layer.attention, ops, step, x, spec)
    elif _mixes(layer):
        _updated(layer, ops, step, x, spec.layer)


def _through_mixing(
    config: ModelConfig,
    layer: Layer[W],
    ops: Ops[A, W, S],
    step: S,
    stream: _Stream[A, W],
    spec: AttentionSpec,
) -> tuple[_Stream[A, W], W | None]:
    """Returns what goes into a layer's network, and the norm that is first there.

    Args:
        config: Of the model.
        layer: Its weights.
        ops: Of the backend.
        step: The running one.
        stream: Out of the layer before.
        spec: The rules of its attention.
    """
    if not _mixes(layer):
        return stream, layer.attention_norm
    residual, x = _normed(ops, stream, layer.attention_norm)
    delta = _mix(config, layer, ops, step, x, spec)
    if layer.attention_post_norm is not None:
        delta = ops.norm(delta, layer.attention_post_norm, None, config.post_norm_eps)
    return _Stream(residual, delta), layer.feed_forward_norm


def _through_network(
    config: ModelConfig,
    layer: Layer[W],
    ops: Ops[A, W, S],
    step: S,
    stream: _Stream[A, W],
    norm: W | None,
    index: int,
    other: A | None = None,
) -> _Stream[A, W]:
    """Returns the residual and what the last part of a layer does with it.

    Args:
        config: Of the model.
        layer: Its weights.
        ops: Of the backend.
        step: The running one.
        stream: From `_through_mixing`.
        norm: The same.
        index: Of the layer.
        other: The tokens' other embedding, of a model that has one.
    """
    residual, delta = stream.residual, stream.delta
    if layer.experts is not None and layer.feed_forward is not None:
        residual, delta = _two_networks(config, layer, ops, step, (residual, present(delta)), index)
    elif layer.experts is not None:
        rule = present(config.layers[index].experts)
        residual, (x,), chosen = ops.add_norm_route(
            residual, present(delta), [present(norm)], layer.experts, rule
        )
        delta = _experts(config, layer.experts, ops, step, x, chosen)
    elif layer.feed_forward is not None:
        residual, x = _normed(ops, stream, norm)
        delta = _feed_forward(config, layer.feed_forward, ops, step, x)
    if layer.feed_forward_post_norm is not None:
        delta = ops.norm(present(delta), layer.feed_forward_post_norm, None, config.post_norm_eps)
    if (own := layer.per_layer) is not None:
        residual, x = ops.add_norm(residual, present(delta), None, None)
        x = ops.gate_per_layer(step, x, own.gate, present(other), index)
        delta = ops.norm(ops.linear(step, x, own.output, None), own.norm, None)
    return _Stream(residual, delta, layer.output_scale)


def _normed(ops: Ops[A, W, S], stream: _Stream[A, W], norm: W | None) -> tuple[A, A]:
    """Returns the sum of residual and delta, if there is one yet, and its norm."""
    if stream.delta is None:
        return stream.residual, ops.norm(stream.residual, norm, None)
    return ops.add_norm(stream.residual, stream.delta, norm, None, stream.scale)


def _mixes(layer: Layer[W]) -> bool:
    """Returns whether a layer brings tokens together: by attention or by states."""
    parts = (layer.attention, layer.latent, layer.convolution, layer.delta, layer.mamba)
    return any(part is not None for part in parts)


def _mix(
    config: ModelConfig, layer: Layer[W], ops: Ops[A, W, S], step: S, x: A, spec: AttentionSpec
) -> A:
    if layer.latent is not None:
        return _latent_attention(layer.latent, ops, step, x, spec)
    if layer.attention is not None:
        return _attention(config, layer.attention, ops, step, x, spec)
    y, output = _updated(layer, ops, step, x, spec.layer)
    return ops.linear(step, y, output, None)


def _store(
    attention: Attention[W],
    ops: Ops[A, W, S],
    step: S,
    x: A,
    spec: AttentionSpec,
) -> tuple[A, list[A]]:
    """Stores keys and values in the layer's cache; returns the queries, and gates if there are."""
    weights: list[W] = [attention.q, present(attention.k), present(attention.v)]
    biases: list[W | None] = [attention.q_bias, attention.k_bias, attention.v_bias]
    if attention.gate is not None:
        weights.append(attention.gate)
        biases.append(None)
    q, k, v, *gates = ops.qkv(step, x, weights, biases)
    q = ops.rope_and_store(step, q, k, v, attention.q_norm, attention.k_norm, spec)
    return q, gates


def _attention(
    config: ModelConfig,
    attention: Attention[W],
    ops: Ops[A, W, S],
    step: S,
    x: A,
    spec: AttentionSpec,
) -> A:
    if config.layers[spec.layer].cache_of is not None:
        q = ops.linear(step, x, attention.q, attention.q_bias)
        q = ops.rotate_queries(step, q, attention.q_norm, spec)
        gates: list[A] = []
    else:
        q, gates = _store(attention, ops, step, x, spec)
    y = ops.attention(step, q, spec, attention.sinks)
    for gate in gates:
        y = ops.sigmoid_gate(y, gate)
    return ops.linear(step, y, attention.output, attention.output_bias)


def _latent_attention(
    latent: LatentAttention[W], ops: Ops[A, W, S], step: S, x: A, spec: AttentionSpec
) -> A:
    """Attends to latent vectors, which the matrices of keys and values are never multiplied with.

    They are multiplied into queries and results (DeepSeek-AI 2024, section 2.1.2).
    """
    if latent.q_b is None:
        q, kv = ops.qkv(step, x, _latent_inputs(latent), (None, None))
    else:
        q, kv = ops.norm_first(step, x, _latent_inputs(latent), present(latent.q_norm))
        q = ops.linear(step, q, latent.q_b, None)
    q = ops.absorb_and_store(step, q, kv, latent.k_b, latent.kv_norm, spec)
    x = ops.attention(step, q, spec, None)
    x = ops.expand(step, x, latent.v_b, spec)
    return ops.linear(step, x, latent.output, None)


def _latent_inputs(latent: LatentAttention[W]) -> tuple[W, W]:
    """Returns what makes queries, or what those are made of, and what makes latent vectors."""
    return present(latent.q) if latent.q_a is None else latent.q_a, latent.kv_a


def _updated(layer: Layer[W], ops: Ops[A, W, S], step: S, x: A, index: int) -> tuple[A, W]:
    """Returns what a layer's states give, once updated, and the matrix that follows."""
    if (convolution := layer.convolution) is not None:
        (x,) = ops.qkv(step, x, (convolution.input,), (None,))
        return ops.short_convolution(step, x, convolution.filter, index), convolution.output
    if (delta := layer.delta) is not None:
        weights = delta.mixed, delta.gate, delta.alpha, delta.beta
        mixed, gate, alpha, beta = ops.qkv(step, x, weights, (None,) * 4)
        return ops.delta_net(step, mixed, gate, (alpha, beta), delta, index), delta.output
    mamba = present(layer.mamba)
    (x,) = ops.qkv(step, x, (mamba.input,), (None,))
    return ops.mamba(step, x, mamba, index), mamba.output


def _feed_forward(
    config: ModelConfig, feed_forward: FeedForward[W], ops: Ops[A, W, S], step: S, x: A
) -> A:
    x = ops.gated_linear(step, x, feed_forward.gate, feed_forward.up, config.activation)
    return ops.linear(step, x, feed_forward.down, feed_forward.down_bias)


def _two_networks(
    config: ModelConfig,
    layer: Layer[W],
    ops: Ops[A, W, S],
    step: S,
    inputs: tuple[A, A],
    index: int,
) -> tuple[A, A]:
    """Returns the residual behind attention, and what a network and experts beside it add."""
    experts, rule = present(layer.experts), present(config.layers[index].experts)
    norms = present(layer.feed_forward_norm), present(experts.norm)
    residual, (x, of_experts), chosen = ops.add_norm_route(*inputs, norms, experts, rule)
    network = present(layer.feed_forward)
    mixed, dense = ops.experts_beside(
        step, (of_experts, x), chosen, experts, network, config.activation
    )
    dense = ops.norm(dense, present(experts.dense_post_norm), None)
    mixed = ops.norm(mixed, present(experts.post_norm), None)
    return residual, ops.add_shared(mixed, dense, x, None)


def _experts(
    config: ModelConfig,
    experts: Experts[W],
    ops: Ops[A, W, S],
    step: S,
    x: A,
    chosen: tuple[A, A],
) -> A:
    """Runs each token through the experts that the router chose for it (Shazeer et al. 2017)."""
    shared = experts.shared
    inputs = x
    if experts.latent_down is not None:
        inputs = ops.linear(step, x, experts.latent_down, None)
    if shared is None:
        mixed = ops.experts(inputs, *chosen, experts, config.activation)
        return _out_of_latent(experts, ops, step, mixed)
    mixed, y = ops.experts_beside(step, (inputs, x), chosen, experts, shared, config.activation)
    mixed = _out_of_latent(experts, ops, step, mixed)
    return ops.add_shared(mixed, y, x, shared.router)


def _out_of_latent(experts: Experts[W], ops: Ops[A, W, S], step: S, mixed: A) -> A:
    """Returns what experts made, out of the space that they are in, if they are in one."""
    if experts.latent_up is None:
        return mixed
    return ops.linear(step, mixed, experts.latent_up, None)
