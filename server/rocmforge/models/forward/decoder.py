"""The forward pass of a decoder-only transformer, once for every architecture and backend."""

from __future__ import annotations

from typing import TypeVar

from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.ops import Ops, attention_specs
from rocmforge.models.weights import present

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


def hidden_states(config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S) -> A:
    """Returns the hidden states of the step's tokens, [T, hidden_size]; fills the caches.

    They are those after the last norm.

    Each residual addition is done together with the norm that reads its result, so the last
    norm of a layer is the first of the next one (or the output norm).
    """
    layers = weights.layers
    next_norms = [*(layer.attention_norm for layer in layers[1:]), weights.output_norm]
    residual = ops.embed(step, weights.embedding.token, None, None, config.embedding_scale)
    x = ops.norm(residual, present(layers[0].attention_norm), None)
    for spec, layer, next_norm in zip(attention_specs(config), layers, next_norms, strict=True):
        attention, feed_forward = layer.attention, layer.feed_forward
        biases = attention.q_bias, attention.k_bias, attention.v_bias
        q, k, v = ops.qkv(step, x, (attention.q, attention.k, attention.v), biases)
        q = ops.rope_and_store(step, q, k, v, attention.q_norm, attention.k_norm, spec)
        x = ops.linear(step, ops.attention(step, q, spec), attention.output, attention.output_bias)
        if layer.attention_post_norm is not None:
            x = ops.norm(x, layer.attention_post_norm, None)
        residual, x = ops.add_norm(residual, x, layer.feed_forward_norm, None)
        gate = present(feed_forward.gate)
        x = ops.gated_linear(step, x, gate, feed_forward.up, config.activation)
        x = ops.linear(step, x, feed_forward.down, feed_forward.down_bias)
        if layer.feed_forward_post_norm is not None:
            x = ops.norm(x, layer.feed_forward_post_norm, None)
        residual, x = ops.add_norm(residual, x, present(next_norm), None)
    return x
