"""Checks of what works on rows: norms, roundings, gathers, token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.step import StagedRows
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error
from rocmforge_hip.verify.workbench import Recipe, Workbench

_FLOAT: Final = 4e-6  # relative to the largest value
_HALF: Final = 2.0**-11
_INT8: Final = 0.51 / 127  # relative to the largest value of a block of 32
_TWO_SLICES: Final = 0.51 / 127 / 254 + 4e-6
_SCALE: Final = np.dtype([("scale", "f4"), ("sum_low", "i2"), ("sum_high", "i2")])

Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields widths below and above what a block of threads covers at once."""
    for width in (96, 4160):
        norms = [
            Case("rms_norm", f"width {width}, to int8", _INT8, partial(_norm, rows=3, form="q")),
            Case("rms_norm", f"width {width}, to f16", _HALF, partial(_norm, rows=12, form="f16")),
            Case("rms_norm", f"width {width}, to f32", _FLOAT, partial(_norm, rows=12, form="f32")),
            Case("add_rms_norm", f"width {width}", _FLOAT, _add_norm),
        ]
        yield Group(Recipe(hidden_size=width), tuple(norms))
    others = (
        Case("quantize_act", "3 rows", _INT8, partial(_quantize, rows=3)),
        Case("half_act", "12 rows", _HALF, _half),
        Case("take_rows", "5 of 12 rows", 0.0, _take_rows),
        Case("sum_rows", "a few rows and many", _FLOAT, _sum_rows),
        Case("embed", "rows of embeddings", _FLOAT, _embed_rows),
        Case("resolve_tokens", "from the host and from the step before", 0.0, _resolve),
    )
    yield Group(Recipe(hidden_size=160), others)
    two_slices = (
        Case("rms_norm", "to two slices", _TWO_SLICES, partial(_norm, rows=2, form="q")),
        Case("quantize_act", "2 rows to two slices", _TWO_SLICES, partial(_quantize, rows=2)),
    )
    yield Group(Recipe(hidden_size=160, activation_bits="16"), two_slices)


def random_values(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Returns normally distributed values, the same for the same number of rows."""
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def int8_error(bench: Workbench, x: Activation, want: Float64) -> float:
    """Returns the error of the int8 form, relative to each block's largest value."""
    assert x.q is not None
    assert x.q_scale is not None
    slices, quant_blocks = 2 if x.q_lo_offset else 1, x.features // QUANT_BLOCK
    rows = slices * x.rows
    codes = bench.get(x.q.first(rows, x.features)).reshape(rows, quant_blocks, QUANT_BLOCK)
    scales = bench.get(x.q_scale.first(rows, quant_blocks)).view(_SCALE)
    sums = codes.astype(np.int64).reshape(rows, quant_blocks, 2, QUANT_BLOCK // 2).sum(axis=-1)
    if (sums[..., 0] != scales["sum_low"]).any() or (sums[..., 1] != scales["sum_high"]).any():
        return float("inf")
    values = codes * scales["scale"][..., None].astype(np.float64)
    blocks = want.reshape(x.rows, quant_blocks, QUANT_BLOCK)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    return error(values.reshape(slices, *blocks.shape).sum(axis=0), blocks, largest)


def _norm(bench: Workbench, rows: int, form: str) -> float:
    values = random_values(rows, bench.config.hidden_size)
    x = bench.activation(bench.model.arena.residual, values)
    got = bench.model.ops.norm(x, bench.model.weights.layers[0].feed_forward_norm, None)
    norm = bench.weights.layers[0].feed_forward_norm
    weight = norm.to_float32().astype(np.float64)
    want = oracle.rms_norm(values.astype(np.float64), weight, bench.config.norm_eps)
    if form == "q":
        return int8_error(bench, got, want)
    array = got.f16 if form == "f16" else got.f32
    assert array is not None
    return error(bench.get(array).astype(np.float64), want)


def _add_norm(bench: Workbench) -> float:
    old, delta = (
        random_values(5, bench.config.hidden_size),
        random_values(7, bench.config.hidden_size)[:5],
    )
    residual, normed = bench.model.ops.add_norm(
        bench.activation(bench.model.arena.residual, old),
        bench.activation(bench.model.arena.delta, delta),
        bench.model.weights.layers[0].feed_forward_norm,
        None,
    )
    total = (old + delta).astype(np.float64)
    weight = bench.weights.layers[0].feed_forward_norm.to_float32().astype(np.float64)
    want = oracle.rms_norm(total, weight, bench.config.norm_eps)
    return max(
        error(bench.result(residual), total),
        error(bench.result(Activation(normed.arrays, 5, normed.features, f32=normed.f32)), want),
    )


def _quantize(bench: Workbench, rows: int) -> float:
    values = random_values(rows, bench.config.hidden_size)
    x = bench.activation(bench.model.arena.normed, values)
    x.q, x.q_scale = bench.model.ops.products.int8(x)
    return int8_error(bench, x, values.astype(np.float64))


def _half(bench: Workbench) -> float:
    values = random_values(12, bench.config.hidden_size)
    got = bench.get(
        bench.model.ops.products.half(bench.activation(bench.model.arena.normed, values))
    )
    return error(got.astype(np.float64), values.astype(np.float64))


def _take_rows(bench: Workbench) -> float:
    values, rows = random_values(12, bench.config.hidden_size), [11, 0, 3, 3, 7]
    step = bench.step([(12, 12, [0])], rows=rows)
    got = bench.model.ops.take_logit_rows(step, bench.activation(bench.model.arena.normed, values))
    assert got.arrays is bench.model.arena.logit_rows
    return error(bench.result(got), values[rows].astype(np.float64))


def _sum_rows(bench: Workbench) -> float:
    values, ranges = random_values(300, bench.config.hidden_size), [(0, 7), (7, 300)]
    step = bench.step([(7, 7, [0]), (293, 293, range(10))], ranges=ranges)
    got = bench.model.ops.sum_hidden(step, bench.activation(bench.model.arena.normed, values))
    want = [values[first:end].astype(np.float64).sum(axis=0) for first, end in ranges]
    return error(bench.result(got), np.array(want))


def _embed_rows(bench: Workbench) -> float:
    """Checks that rows from the host's memory are there behind the table's."""
    device, tokens = bench.device, np.array([0, 2, 3, 6], np.int32)
    rows = random_values(len(tokens), bench.config.hidden_size)
    pinned = device.memory.pinned(rows.nbytes, "rows of embeddings")
    pinned.bytes.view(np.float32)[:] = rows.reshape(-1)
    staged = StagedRows(device.driver, device.stream, pinned.address, tokens)
    ids = [5, 0, 41, 17, 5, 63, 33]
    step = replace(bench.step([(len(ids), len(ids), [0])], tokens=ids), embeddings=staged)
    bench.sampler.resolve_tokens(step)
    got = bench.result(
        bench.model.ops.embed(step, bench.model.weights.embedding.token, None, None, 3.0)
    )
    want = 3.0 * bench.weights.embedding.token.to_float32().astype(np.float64)[ids]
    want[tokens] = rows
    return error(got, want)


def _resolve(bench: Workbench) -> float:
    """Checks that a row that could not be sampled, -1, stands for token 0."""
    before = np.array([41, -1, 43], np.int32)
    bench.put(before, bench.sampler.tokens)
    step = bench.step([(5, 5, [0])], tokens=[7, 0, 9, 0, 0], sources=[-1, 2, -1, 1, 0])
    bench.sampler.resolve_tokens(step)
    assert bench.model.arena.tokens is not None
    got = bench.get(bench.model.arena.tokens.first(5))
    return error(got.astype(np.float64), np.array([7.0, 43, 9, 0, 41]))
