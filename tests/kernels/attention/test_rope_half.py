"""rf_rope_half: queries and keys of an encoder are rotated in place."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.models.rope_config import RopeStyle
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check

CONTEXT = 40

# tokens, heads, head_dim, rope_dim
CASES = {
    "one_chunk_a_head": (1, 2, 32, 16),
    "whole_head": (3, 3, 64, 64),
    "part_of_a_head": (2, 5, 64, 32),
    "several_blocks": (2, 12, 128, 128),
}

# tokens, heads, heads of keys, head_dim
NORMED = {
    "two_lanes_a_head": (3, 5, 1, 32),
    "idle_lanes": (2, 3, 1, 256),
    "a_wave_a_head": (1, 3, 2, 512),
    "several_blocks": (2, 12, 4, 128),
}


@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "rope_dim"), CASES.values(), ids=CASES.keys()
)
def test_rotates_pairs_half_a_head_apart(
    device: Device, tokens: int, heads: int, head_dim: int, rope_dim: int
) -> None:
    rng = np.random.default_rng(1)
    width = heads * head_dim
    stacked = rng.standard_normal((tokens, 3 * width)).astype(np.float16)  # q, k and v
    positions = rng.permutation(CONTEXT)[:tokens].astype(np.int32)
    angles = rng.uniform(0, 6, (CONTEXT, rope_dim // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    there = device.upload(stacked, "qkv")
    device.launch(
        "rf_rope_half",
        *(there, there.part(width), None, None),
        *(device.upload(cos), device.upload(sin), device.upload(positions)),
        *(3 * width, 3 * width, heads, heads, head_dim, rope_dim, 0.0),
        grid=(tokens, -(-2 * heads * (rope_dim // 16) // 128)),
        block=128,
    )
    got = there.get()
    np.testing.assert_array_equal(got[:, 2 * width :], stacked[:, 2 * width :])
    for first in (0, width):
        part = stacked[:, first : first + width].astype(np.float64)
        turned = part.reshape(tokens, heads, head_dim)
        expected = ops.rope(turned, cos[positions], sin[positions], RopeStyle.NEOX)
        found = got[:, first : first + width].reshape(expected.shape)
        check(found, expected, rtol=6e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "head_dim"), NORMED.values(), ids=NORMED.keys()
)
def test_norms_each_head_before_it_rotates(
    device: Device, tokens: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    rng = np.random.default_rng(2)
    width, total, eps = heads * head_dim, (heads + kv_heads) * head_dim, 0.25
    stacked = rng.standard_normal((tokens, total + head_dim)).astype(np.float16)
    positions = rng.permutation(CONTEXT)[:tokens].astype(np.int32)
    angles = rng.uniform(0, 6, (CONTEXT, head_dim // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    norms = rng.uniform(0.5, 2, (2, head_dim)).astype(np.float32)
    there = device.upload(stacked, "qkv")
    device.launch(
        "rf_rope_half",
        *(there, there.part(width), device.upload(norms[0]), device.upload(norms[1])),
        *(device.upload(cos), device.upload(sin), device.upload(positions)),
        *(total + head_dim, total + head_dim, heads, kv_heads, head_dim, head_dim, eps),
        grid=(tokens, -(-(heads + kv_heads) * (head_dim // 16) // 128)),
        block=128,
    )
    got = there.get()
    np.testing.assert_array_equal(got[:, total:], stacked[:, total:])
    for norm, first, last in ((norms[0], 0, width), (norms[1], width, total)):
        part = stacked[:, first:last].astype(np.float64).reshape(tokens, -1, head_dim)
        part = ops.rms_norm(part, norm, eps)
        expected = ops.rope(part, cos[positions], sin[positions], RopeStyle.NEOX)
        found = got[:, first:last].reshape(expected.shape)
        check(found, expected, rtol=6e-4, atol=1e-6)
