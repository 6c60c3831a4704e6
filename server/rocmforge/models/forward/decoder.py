"""The forward pass of a decoder-only transformer, once for every architecture and backend."""

from __future__ import annotations

from typing import TypeVar

from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.ops import AttentionSpec, Ops
from rocmforge.models.weights import ModelWeights

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


def attention_specs(config: ModelConfig) -> tuple[AttentionSpec, ...]:
    """Returns the rules of each layer's attention."""
    return tuple(
        AttentionSpec(
            layer=index,
            scale=layer.attention_scale,
            softcap=config.attention_softcap,
            window=layer.window,
            local_rope=layer.local_rope,
        )
        for index, layer in enumerate(config.layers)
    )


def logits(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S, hidden: A
) -> A:
    """Returns the logits of the step's logit rows, [L, V], from all tokens' hidden states."""
    return ops.logits(ops.take_logit_rows(step, hidden), weights.output, config.logit_softcap)


def hidden_states(config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S) -> A:
    """Returns the hidden states of the step's tokens, [T, hidden_size]; fills the caches.

    They are those after the last norm.

    Each residual addition is done together with the norm that reads its result, so the last
    norm of a layer is the first of the next one (or the output norm).
    """
    layers = weights.layers
    next_norms = [*(layer.attn_norm for layer in layers[1:]), weights.output_norm]
    residual = ops.embed(step, weights.embedding, config.embedding_scale)
    x = ops.rms_norm(residual, layers[0].attn_norm)
    for spec, layer, next_norm in zip(attention_specs(config), layers, next_norms, strict=True):
        biases = layer.q_bias, layer.k_bias, layer.v_bias
        q, k, v = ops.qkv(step, x, (layer.q, layer.k, layer.v), biases)
        q = ops.rope_and_store(step, q, k, v, layer.q_norm, layer.k_norm, spec)
        x = ops.linear(step, ops.attention(step, q, spec), layer.output, layer.output_bias)
        if layer.attn_post_norm is not None:
            x = ops.rms_norm(x, layer.attn_post_norm)
        residual, x = ops.add_rms_norm(residual, x, layer.ffn_norm)
        x = ops.gated_linear(step, x, layer.gate, layer.up, config.activation)
        x = ops.linear(step, x, layer.down, None)
        if layer.ffn_post_norm is not None:
            x = ops.rms_norm(x, layer.ffn_post_norm)
        residual, x = ops.add_rms_norm(residual, x, next_norm)
    return x
