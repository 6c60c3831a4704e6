"""Layers may differ in heads, in what they see and in rope, and values in size from keys.

No file of ours has such a model yet, so one of random numbers is compared with loops over heads and
positions in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.models.blocks import Attention, ModelWeights, WeightPlace
from rocmforge.models.config import ActivationFunction, ModelConfig, NormKind
from rocmforge.models.families import FAMILIES
from rocmforge.models.forward.decoder import hidden_states
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope import RopeTable, RopeTables
from rocmforge.models.rope_config import RopeConfig, RopeStyle
from rocmforge.models.weights import build, present
from rocmforge_reference.model_ops import KvCache, ReferenceOps, Step
from rocmforge_reference.weights import Weight
from tests.backend.driving import Chunk, make_step

Float64 = npt.NDArray[np.float64]
BLOCK, BLOCKS = 16, 4
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
HIDDEN = 40
EPS = 1e-5

ROPE = RopeConfig(style=RopeStyle.NEOX, rotary_dim=16, theta=100.0, scaling=None)
LOCAL_ROPE = RopeConfig(style=RopeStyle.NEOX, rotary_dim=8, theta=10.0, scaling=None)
LAYERS = (
    LayerConfig(
        num_heads=4,
        num_kv_heads=2,
        key_dim=24,
        value_dim=16,
        attention_scale=0.3,
        intermediate_size=56,
    ),
    LayerConfig(
        num_heads=3,
        num_kv_heads=1,
        key_dim=8,
        value_dim=32,
        attention_scale=0.5,
        window=5,
        local_rope=True,
        intermediate_size=24,
    ),
)
CONFIG = ModelConfig(
    architecture="uneven",
    name="uneven",
    causal=True,
    hidden_size=HIDDEN,
    vocab_size=11,
    max_context=64,
    layers=LAYERS,
    norm=NormKind.RMS,
    norm_eps=EPS,
    pre_norm=True,
    rope=ROPE,
    local_rope=LOCAL_ROPE,
    activation=ActivationFunction.SILU,
    pooling=PoolingType.NONE,
)


def random_weights() -> ModelWeights[Weight]:
    rng = np.random.default_rng(7)

    def matrix(*shape: int) -> Weight:
        return Weight((rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32))

    def make(place: WeightPlace) -> Weight | None:
        if place.is_optional and place.name not in FAMILIES["llama"].has:
            return None
        shape = place.shape(CONFIG)
        if 0 in shape:  # of experts, which no layer has
            return None
        if len(shape) == 1:
            return Weight((1 + 0.2 * rng.standard_normal(HIDDEN)).astype(np.float32))
        return matrix(*shape)

    return build(len(LAYERS), make)


def rope_table(rope: RopeConfig) -> RopeTable:
    frequencies = rope.theta ** (-np.arange(0, rope.rotary_dim, 2) / rope.rotary_dim)
    angles = np.arange(64)[:, None] * frequencies
    return RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def rms(x: Float64, weight: Weight) -> Float64:
    normed: Float64 = x / np.sqrt(np.mean(x * x) + EPS) * weight.values
    return normed


def rotated(head: Float64, position: int, rope: RopeConfig) -> Float64:
    pairs = rope.rotary_dim // 2
    result = head.copy()
    for i in range(pairs):
        angle = position * rope.theta ** (-2 * i / rope.rotary_dim)
        c, s = np.cos(angle), np.sin(angle)
        result[i] = head[i] * c - head[i + pairs] * s
        result[i + pairs] = head[i + pairs] * c + head[i] * s
    return result


def attend(layer: LayerConfig, weights: Attention[Weight], xs: list[Float64]) -> list[Float64]:
    """Returns what the heads of one layer see, [num_heads * value_dim] for each token."""
    rope = LOCAL_ROPE if layer.local_rope else ROPE
    results = []
    for position in range(len(xs)):
        first = 0 if layer.window is None else max(0, position - layer.window + 1)
        heads = []
        for head in range(layer.num_heads):
            kv = head // (layer.num_heads // layer.num_kv_heads)
            of_head = slice(head * layer.key_dim, (head + 1) * layer.key_dim)
            of_key = slice(kv * layer.key_dim, (kv + 1) * layer.key_dim)
            of_value = slice(kv * layer.value_dim, (kv + 1) * layer.value_dim)
            q = rotated(weights.q.values[of_head] @ xs[position], position, rope)
            scores, values = [], []
            for other in range(first, position + 1):
                k = rotated(present(weights.k).values[of_key] @ xs[other], other, rope)
                scores.append(layer.attention_scale * (q @ k))
                values.append(present(weights.v).values[of_value] @ xs[other])
            shares = np.exp(np.array(scores) - max(scores))
            heads.append(shares @ np.array(values) / shares.sum())
        results.append(np.concatenate(heads))
    return results


def expected(weights: ModelWeights[Weight]) -> Float64:
    """Returns the states of all tokens after the last norm, [T, hidden_size]."""
    states: list[Any] = [
        weights.embedding.token.values[token].astype(np.float64) for token in TOKENS
    ]
    for layer, own in zip(LAYERS, weights.layers, strict=True):
        norm, feed_forward = present(own.attention_norm), present(own.feed_forward)
        attended = attend(layer, present(own.attention), [rms(state, norm) for state in states])
        for i, state in enumerate(states):
            middle = state + present(own.attention).output.values @ attended[i]
            x = rms(middle, present(own.feed_forward_norm))
            gate = present(feed_forward.gate).values @ x
            inner = gate / (1 + np.exp(-gate)) * (feed_forward.up.values @ x)
            states[i] = middle + feed_forward.down.values @ inner
    return np.stack([rms(state, present(weights.output_norm)) for state in states])


def test_layers_of_different_heads_are_computed_each_with_its_own() -> None:
    weights = random_weights()
    caches = tuple(
        KvCache(
            np.zeros((BLOCKS, layer.num_kv_heads, BLOCK, layer.key_dim), np.float32),
            np.zeros((BLOCKS, layer.num_kv_heads, BLOCK, layer.value_dim), np.float32),
        )
        for layer in LAYERS
    )
    ops = ReferenceOps(CONFIG, RopeTables(rope_table(ROPE), rope_table(LOCAL_ROPE)), caches)
    step = make_step(0, [Chunk(tokens=TOKENS, blocks=[2, 0])], BLOCK)
    got = hidden_states(CONFIG, weights, ops, Step(step, step.token_ids, step.token_adapters))
    np.testing.assert_allclose(got, expected(weights), atol=2e-5)
