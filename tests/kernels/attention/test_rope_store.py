"""rf_rope_store_*: norm, rotation and cache write against the reference in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.rope_config import RopeStyle
from rocmforge_hip.device.constants import NARROW_HEAD_DIM
from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check
from tests.support.operands.paged_cache import turned, unpack

BLOCK_TOKENS = 32
NUM_BLOCKS = 3
CONTEXT = 50
EPS = 1e-6

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64  # of queries and keys, and of values unless those are given
    value_dim: int | None = None
    rope_dim: int = 64
    style: RopeStyle = RopeStyle.NEOX
    norm: bool = False
    rotates_first: bool = False
    norms_values: bool = False
    gains: bool = False
    tokens: int = 3

    @property
    def dims(self) -> tuple[int, int, int]:
        """Of heads of queries, keys and values."""
        return self.head_dim, self.head_dim, self.value_dim or self.head_dim

    @property
    def wide(self) -> str:
        """As in the kernels' names."""
        return "wide_" if max(self.dims) > NARROW_HEAD_DIM else ""


CASES = {
    "neox": Case(),
    "normal": Case(style=RopeStyle.NORMAL),
    "neox_partial": Case(head_dim=80, rope_dim=32),
    "normal_partial": Case(head_dim=96, rope_dim=20, style=RopeStyle.NORMAL),
    "no_rotation": Case(rope_dim=0),
    "head_norm": Case(norm=True, head_dim=128, rope_dim=128),
    "head_norm_largest_head": Case(norm=True, head_dim=256, rope_dim=256),
    "head_norm_behind_rope": Case(norm=True, rotates_first=True, rope_dim=48),
    "more_heads_than_waves_of_a_block": Case(heads=9, kv_heads=3, head_dim=16, rope_dim=16),
    "longer_queries": Case(heads=4, kv_heads=2, gains=True),
    "one_token": Case(tokens=1),
    "smaller_values": Case(heads=4, kv_heads=2, head_dim=192, value_dim=128, norm=True),
    "larger_values": Case(heads=3, kv_heads=3, head_dim=64, value_dim=96, rope_dim=32),
    "wide": Case(head_dim=512, rope_dim=512, norm=True),
    "normed_values": Case(heads=4, kv_heads=2, norm=True, norms_values=True),
    "wide_normed_values": Case(head_dim=512, rope_dim=512, norm=True, norms_values=True),
    "widest": Case(heads=4, kv_heads=2, head_dim=576, value_dim=512, style=RopeStyle.NORMAL),
}


class Inputs:
    """Random arguments of one launch; the token before the last one is padding."""

    def __init__(self, case: Case) -> None:
        random = np.random.default_rng(7)

        def normal(*shape: int) -> npt.NDArray[np.float32]:
            return random.standard_normal(shape).astype(np.float32)

        heads = case.heads, case.kv_heads, case.kv_heads
        self.q, self.k, self.v = (
            normal(case.tokens, count * dim) for count, dim in zip(heads, case.dims, strict=True)
        )
        self.norms = [normal(case.head_dim) for _ in range(2)]
        self.positions = random.permutation(CONTEXT)[: case.tokens].astype(np.int32)
        self.slots = random.permutation(NUM_BLOCKS * BLOCK_TOKENS)[: case.tokens].astype(np.int64)
        self.padding = case.tokens - 2 if case.tokens > 2 else None
        if self.padding is not None:
            self.slots[self.padding] = -1
        angles = random.uniform(0, 6, (CONTEXT, case.rope_dim // 2))
        self.gains = random.uniform(1, 2, CONTEXT).astype(np.float32)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    @property
    def kept(self) -> npt.NDArray[np.intp]:
        """The tokens that are no padding."""
        return np.flatnonzero(self.slots >= 0)


def expected_heads(case: Case, inputs: Inputs) -> tuple[Array, Array, Array]:
    """q, k and v as [T, heads, key_dim or value_dim] in float64."""
    cos, sin = (table[inputs.positions].astype(np.float64) for table in (inputs.cos, inputs.sin))
    results = []
    for index, x in enumerate((inputs.q, inputs.k, inputs.v)):
        values = x.astype(np.float64)
        values = values.reshape(len(values), -1, case.dims[index])
        if index < 2:
            if case.rotates_first:
                values = ops.rope(values, cos, sin, case.style)
            if case.norm:
                values = ops.rms_norm(values, inputs.norms[index].astype(np.float64), EPS)
            if not case.rotates_first:
                values = ops.rope(values, cos, sin, case.style)
        if index == 2 and case.norms_values:
            values = ops.rms_norm(values, np.ones(case.dims[2]), EPS)
        if index == 0 and case.gains:
            values = values * inputs.gains[inputs.positions].astype(np.float64)[:, None, None]
        results.append(values)
    return results[0], results[1], results[2]


def launch(
    device: Device, case: Case, inputs: Inputs, kernel: str, *outputs: Any, threads: int
) -> None:
    # Rows are farther apart than they are wide, as in the result of one fused projection.
    wide = [np.pad(x, ((0, 0), (0, 8)), constant_values=np.nan) for x in (inputs.q, inputs.k)]
    wide.append(inputs.v)
    norms = [device.upload(norm) if case.norm else None for norm in inputs.norms]
    tables = [device.upload(inputs.cos), device.upload(inputs.sin)]
    waves = threads // device.wave
    blocks = -(-(case.heads + 2 * case.kv_heads) // waves)
    device.launch(
        kernel,
        *(device.upload(x) for x in wide),
        *norms,
        *tables,
        device.upload(inputs.gains) if case.gains else None,
        device.upload(inputs.positions),
        device.upload(inputs.slots),
        *outputs,
        *(x.shape[1] for x in wide),
        *(case.heads, case.kv_heads, *case.dims[1:], case.rope_dim),
        int(case.style is RopeStyle.NEOX),
        int(case.rotates_first),
        int(case.norms_values),
        EPS,
        grid=(case.tokens, blocks),
        block=threads,
    )


def cache_shapes(case: Case) -> list[tuple[int, int, int, int]]:
    return [(NUM_BLOCKS, case.kv_heads, BLOCK_TOKENS, dim) for dim in case.dims[1:]]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_float16_cache(device: Device, case: Case) -> None:
    inputs = Inputs(case)
    q = device.empty((case.tokens, case.heads, case.head_dim), np.float16, "q")
    caches = [device.empty(shape, np.float16, "cache") for shape in cache_shapes(case)]
    launch(device, case, inputs, f"rf_rope_store_{case.wide}f16", q, *caches, threads=128)

    expected_q, k, v = expected_heads(case, inputs)
    if inputs.padding is not None:
        expected_q[inputs.padding] = np.nan  # stays what it was: poison
    check(q.get(), expected_q, rtol=5e-4, atol=2e-6)
    for cache, values, shape in zip(caches, (k, v), cache_shapes(case), strict=True):
        expected = np.full(shape, np.nan)
        ops.store(expected, values[inputs.kept], inputs.slots[inputs.kept])
        check(cache.get(), expected, rtol=5e-4, atol=2e-6)


@pytest.mark.parametrize(
    "name",
    [
        *("neox", "normal_partial", "head_norm_largest_head", "head_norm_behind_rope"),
        *("smaller_values", "widest", "longer_queries", "normed_values"),
    ],
)
def test_int8_cache(device: Device, name: str) -> None:
    case = CASES[name]
    inputs = Inputs(case)
    inputs.v[0, : case.dims[2]] = 0  # a head without a largest value
    q = device.empty((case.tokens, case.heads, case.head_dim), np.float16, "q")
    caches = [device.empty(shape, np.int8) for shape in cache_shapes(case)]
    scales = [device.empty(shape[:3], np.float32) for shape in cache_shapes(case)]
    name = f"rf_rope_store_{case.wide}int8"
    launch(device, case, inputs, name, q, *caches, *scales, threads=256)

    expected_q, k, v = expected_heads(case, inputs)
    check(q.get()[inputs.kept], expected_q[inputs.kept], rtol=5e-4, atol=2e-6)
    for cache, scale, values in zip(caches, scales, (k, v), strict=True):
        expected = np.full((*scale.shape, values.shape[-1]), np.nan)
        ops.store(expected, values[inputs.kept], inputs.slots[inputs.kept])
        step = np.abs(expected).max(axis=-1) / 127
        check(scale.get(), step, rtol=1e-5)
        written = ~np.isnan(step)
        error = np.abs(cache.get() * step[..., None] - expected)
        assert (error[written] <= 0.501 * step[written][:, None]).all()
        assert (cache.get()[~written] == -1).all()  # poison


@pytest.mark.parametrize(
    "name", ["neox", "head_norm", "head_norm_largest_head", "longer_queries", "normed_values"]
)
def test_values_of_four_bits(device: Device, name: str) -> None:
    case = CASES[name]
    inputs = Inputs(case)
    inputs.v[0, : case.dims[2]] = 0  # a head without a largest value
    inputs.v[-1, 5] = 40  # stands out, and would spoil the step of the others
    q = device.empty((case.tokens, case.heads, case.head_dim), np.float16, "q")
    keys, values = cache_shapes(case)
    caches = [
        device.empty(keys, np.int8),
        device.empty((*values[:3], values[3] // 8), np.uint32),
    ]
    scales = [device.empty(shape[:3], np.float32) for shape in (keys, values)]
    launch(device, case, inputs, "rf_rope_store_k8v4", q, *caches, *scales, threads=256)

    expected_q, k, v = expected_heads(case, inputs)
    check(q.get()[inputs.kept], expected_q[inputs.kept], rtol=5e-4, atol=2e-6)
    found = caches[0].get(), unpack(caches[1].get())
    for codes, most, scale, stored in zip(found, (127, 7), scales, (k, turned(v)), strict=True):
        expected = np.full((*scale.shape, stored.shape[-1]), np.nan)
        ops.store(expected, stored[inputs.kept], inputs.slots[inputs.kept])
        step = np.abs(expected).max(axis=-1) / most
        check(scale.get(), step, rtol=1e-5)
        written = ~np.isnan(step)
        error = np.abs(codes * step[..., None] - expected)
        assert (error[written] <= 0.501 * step[written][:, None]).all()
