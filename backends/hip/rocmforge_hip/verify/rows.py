"""Checks of what works on rows: norms, roundings, gathers, token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import NormKind
from rocmforge.models.weights import present
from rocmforge_hip.device.constants import BLOCK_TOKENS, QUANT_BLOCK
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, Forms, PerLayerArrays
from rocmforge_hip.ops.linear.gemm import UnmadeSplits
from rocmforge_hip.ops.norms import RmsNorms
from rocmforge_hip.ops.operands import empty, part_of
from rocmforge_hip.ops.rows import HiddenRows, PerLayerRows, RowKernels
from rocmforge_hip.ops.step.device_step import StagedInputs, StagedRows
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error, values_of
from rocmforge_hip.verify.workbench import Recipe, Workbench

_FLOAT: Final = 4e-6  # relative to the largest value
_HALF: Final = 2.0**-11
_INT8: Final = 0.51 / 127  # relative to the largest value of a block of 32
_PRODUCT: Final = 2.0**-9  # halves in, and a sum of many
_TWO_SLICES: Final = 0.51 / 127 / 254 + 4e-6
_SCALE: Final = np.dtype([("scale", "f4"), ("sum_low", "i2"), ("sum_high", "i2")])

W = TypeVar("W")

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields widths below and above what a block of threads covers at once."""
    for width in (96, 4160):
        norms = (
            Case("rms_norm", f"width {width}, to int8", _INT8, partial(_norm, rows=3, form="q")),
            *_norms("rms_norm", width),
            Case("add_rms_norm", f"width {width}", _FLOAT, _add_norm),
            Case("add_splits_rms_norm", f"width {width}", _FLOAT, _add_splits_norm),
            Case("add", f"width {width}", _FLOAT, _add),
        )
        yield Group(Recipe(hidden_size=width), norms)
        case = Case("add_rms_norm", f"of a norm, width {width}", _FLOAT, _add_normed)
        yield Group(Recipe(architecture="gemma2", hidden_size=width), (case,))
    for width, heads in ((96, 130), (4160, 3)):
        recipe = Recipe(
            architecture="jina-bert-v2", hidden_size=width, heads=heads, kv_heads=heads, head_dim=32
        )
        norms = (
            *_norms("layer_norm", width),
            Case("add_layer_norm", f"width {width}", _FLOAT, _norm_of_sum),
            Case("add_two_norms", f"width {width}", _FLOAT, _two_norms_of_sum),
            _norm_of_projections("norm_projection", 32 * heads, _HALF, np.float16),
            Case("add_then_norm", f"width {width}", _HALF, _add_norm),
        )
        yield Group(recipe, norms)
    recipe = Recipe(architecture="olmoe", heads=65, kv_heads=13)
    yield Group(recipe, (_norm_of_projections("rms_norm_projection", 4160, _FLOAT, np.float32),))
    recipe = Recipe(architecture="internvl-6b-tower", heads=65, kv_heads=65)
    yield Group(recipe, (_norm_of_projections("rms_norm_projection", 4160, _HALF, np.float16),))
    cases = (
        Case("gelu", "12 rows", _HALF, _gelu),
        Case("sum_rows", "of a model without a cache", _FLOAT, _sum_rows),
    )
    yield Group(Recipe(architecture="bert", hidden_size=160, intermediate_size=160), cases)
    of_tower = (
        Case("gelu", "12 rows, with tanh", _HALF, _gelu),
        Case("image rows", "of 12 patches", _PRODUCT, _image_rows),
    )
    yield Group(Recipe(architecture="siglip", hidden_size=160, intermediate_size=160), of_tower)
    bounded = (
        Case("bounded", "12 rows, to f16", _PRODUCT, partial(_bounded, name="attention.q")),
        Case("bounded", "12 rows, to f32", _PRODUCT, partial(_bounded, name="feed_forward.down")),
        Case("bounded gate", "12 rows", _PRODUCT, _bounded_gate),
    )
    yield Group(Recipe(architecture="gemma4-tower", hidden_size=160, bounded=True), bounded)
    of_qwen2 = (Case("gelu", "12 rows, with a sigmoid", _HALF, _gelu),)
    yield Group(Recipe(architecture="qwen2vl-tower", intermediate_size=160), of_qwen2)
    others = (
        Case("quantize_act", "3 rows", _INT8, partial(_quantize, rows=3)),
        Case("half_act", "12 rows", _HALF, _half),
        Case("take_rows", "5 of 12 rows", 0.0, _take_rows),
        Case("sigmoid_gate", "3 rows", _FLOAT, partial(_sigmoid_gate, dtype=np.float32)),
        Case("sigmoid_gate", "12 rows of halves", _HALF, partial(_sigmoid_gate, dtype=np.float16)),
        Case("gate_per_layer", "3 rows", _FLOAT, _gate_per_layer),
        Case("store_hidden", "12 rows", 0.0, _store_hidden),
        Case("beside_hidden", "3 rows, to int8", _INT8, partial(_beside_hidden, rows=3)),
        Case("beside_hidden", "12 rows, to f16", _HALF, partial(_beside_hidden, rows=12)),
        Case("squared_relu", "3 rows", _INT8, partial(_squared_relu, dtype=np.float32)),
        Case("squared_relu", "12 rows of halves", _HALF, partial(_squared_relu, dtype=np.float16)),
        Case("sum_rows", "a few rows and many", _FLOAT, _sum_rows),
        Case("embed", "rows of embeddings", _FLOAT, _embed_rows),
        Case("begin_step", "tokens from the host and from the step before", 0.0, _begin),
    )
    yield Group(Recipe(hidden_size=160), others)
    two_slices = (
        Case("rms_norm", "to two slices", _TWO_SLICES, partial(_norm, rows=2, form="q")),
        Case("quantize_act", "2 rows to two slices", _TWO_SLICES, partial(_quantize, rows=2)),
    )
    yield Group(Recipe(hidden_size=160, activation_bits="16"), two_slices)


def _norms(op: str, width: int) -> Iterator[Case]:
    for form, limit in (("f16", _HALF), ("f32", _FLOAT)):
        yield Case(op, f"width {width}, to {form}", limit, partial(_norm, rows=12, form=form))


def _norm_of_projections(op: str, width: int, limit: float, dtype: npt.DTypeLike) -> Case:
    return Case(op, f"width {width}", limit, partial(_norm_projection, dtype=dtype))


def random_values(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Returns normally distributed values, the same for the same number of rows."""
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def int8_values(bench: Workbench, x: Activation) -> Float64:
    """Returns what the int8 form stands for, [rows, features]; NaN if its sums are not right."""
    assert x.q is not None
    assert x.q_scale is not None
    slices, quant_blocks = 2 if x.q_lo_offset else 1, x.features // QUANT_BLOCK
    rows = slices * x.rows
    codes = bench.get(x.q.first(rows, x.features)).reshape(rows, quant_blocks, QUANT_BLOCK)
    scales = bench.get(x.q_scale.first(rows, quant_blocks)).view(_SCALE)
    sums = codes.astype(np.int64).reshape(rows, quant_blocks, 2, QUANT_BLOCK // 2).sum(axis=-1)
    if (sums[..., 0] != scales["sum_low"]).any() or (sums[..., 1] != scales["sum_high"]).any():
        return np.full((x.rows, x.features), np.nan)
    values = codes * scales["scale"][..., None].astype(np.float64)
    of_slices: Float64 = values.reshape(slices, x.rows, x.features).sum(axis=0)
    return of_slices


def int8_error(bench: Workbench, x: Activation, want: Float64) -> float:
    """Returns the error of the int8 form, relative to each block's largest value."""
    got, blocks = int8_values(bench, x), want.reshape(x.rows, -1, QUANT_BLOCK)
    return error(got.reshape(blocks.shape), blocks, np.abs(blocks).max(axis=-1, keepdims=True))


def _norm(bench: Workbench, rows: int, form: str) -> float:
    values = random_values(rows, bench.config.hidden_size) + 1
    x = bench.activation(bench.residual, values)
    got = bench.model.ops.norm(x, *_last_norm(bench.model.weights))
    want = _normed(bench, values, *_last_norm(bench.weights))
    if form == "q":
        return int8_error(bench, got, want)
    array = got.f16 if form == "f16" else got.f32
    assert array is not None
    return error(bench.get(array).astype(np.float64), want)


def _add_norm(bench: Workbench) -> float:
    old, delta, residual, added = _sum_to_norm(bench)
    total, normed = bench.model.ops.add_norm(residual, added, *_last_norm(bench.model.weights))
    want = _normed(bench, old + delta, *_last_norm(bench.weights))
    return max(
        error(bench.result(total), (old + delta).astype(np.float64)),
        error(bench.result(normed), want),
    )


def _add_splits_norm(bench: Workbench) -> float:
    old, delta, residual, added = _sum_to_norm(bench)
    parts = random_values(6 * len(old), delta.shape[1]).reshape(6, *delta.shape)
    product = UnmadeSplits(
        *(added.arrays, added.rows, added.features),
        partial=bench.put(parts, bench.new(parts.shape, "f4")),
        splits=len(parts),
        bias=bench.put(delta[0], bench.new(delta[0].shape, "f4")),
    )
    norms, arrays = RmsNorms(bench.device.library, bench.config.norm_eps), bench.model.arena.normed
    normed = empty(arrays, added.rows, added.features, half=False)
    weight, _ = _last_norm(bench.model.weights)
    norms.add_splits_norm(residual, product, weight, normed, None)
    total = parts.astype(np.float64).sum(axis=0) + delta[0] + old
    want = _normed(bench, total.astype(np.float32), *_last_norm(bench.weights))
    return max(error(bench.result(residual), total), error(bench.result(normed), want))


def _add_normed(bench: Workbench) -> float:
    """Checks the norm that behind a part of a layer comes before the sum, with and without one."""
    ops, post = bench.model.ops, bench.model.weights.layers[0].attention_post_norm
    assert post is not None
    post_values = present(bench.weights.layers[0].attention_post_norm)
    found = []
    for normed in (False, True):
        old, delta, residual, added = _sum_to_norm(bench)
        last, of_last = _last_norm(bench.weights), _last_norm(bench.model.weights)
        weights = of_last if normed else (None, None)
        total, x = ops.add_norm(residual, ops.norm(added, post, None), *weights)
        want = old + _normed(bench, delta, post_values, None)
        found.append(error(bench.result(total), want))
        found.append(error(bench.result(x), _normed(bench, want, *last) if normed else want))
    return max(found)


def _add(bench: Workbench) -> float:
    """Checks rows that are taken as they are, and their sum."""
    old, delta, residual, added = _sum_to_norm(bench)
    ops, want = bench.model.ops, (old + delta).astype(np.float64)
    given = bench.result(ops.norm(residual, None, None))
    total, same = ops.add_norm(residual, added, None, None)
    return max(
        error(given, old.astype(np.float64)),
        error(bench.result(total), want),
        error(bench.result(same), want),
    )


def _norm_of_sum(bench: Workbench) -> float:
    old, delta, residual, added = _sum_to_norm(bench)
    got = bench.model.ops.norm_of_sum(residual, added, *_last_norm(bench.model.weights))
    return error(bench.result(got), _normed(bench, old + delta, *_last_norm(bench.weights)))


def _two_norms_of_sum(bench: Workbench) -> float:
    old, delta, residual, added = _sum_to_norm(bench)
    got = bench.model.ops.two_norms_of_sum(residual, added, *_two_norms(bench.model.weights))
    first, second = _two_norms(bench.weights)
    between = _normed(bench, old + delta, *first)
    return error(bench.result(got), _normed(bench, old + between, *second))


def _norm_projection(bench: Workbench, dtype: npt.DTypeLike) -> float:
    """Checks columns of a wider matrix: queries, and keys."""
    layer = bench.config.layers[0]
    edges = np.cumsum([0, layer.query_features, layer.key_features, layer.value_features])
    values = random_values(5, edges[-1]).astype(dtype)
    queries_and_keys, norms = bench.qkv(values)[:2], _head_norms(bench.model.weights)
    ops = bench.model.ops
    got = [
        bench.result(ops.norm_projection(x, *norm))
        for x, norm in zip(queries_and_keys, norms, strict=False)
    ]
    want = [
        _normed(bench, values[:, first:end], *norm)
        for (first, end), norm in zip(pairwise(edges), _head_norms(bench.weights), strict=False)
    ]
    return error(np.concatenate(got, axis=1), np.concatenate(want, axis=1))


def _sum_to_norm(bench: Workbench) -> tuple[Float32, Float32, Activation, Activation]:
    """Returns residual and delta, as values and on the device."""
    width = bench.config.hidden_size
    old, delta = random_values(9, width) + 1, random_values(10, width)[:9]
    added = bench.activation(bench.model.arena.delta, delta)
    return old, delta, bench.activation(bench.residual, old), added


def _last_norm(weights: ModelWeights[W]) -> tuple[W, W | None]:
    """Returns weight and bias of a norm."""
    layer = weights.layers[0]
    return present(layer.feed_forward_norm), layer.feed_forward_norm_bias


def _two_norms(weights: ModelWeights[W]) -> tuple[tuple[W, W | None], tuple[W, W | None]]:
    """Returns weight and bias of the two norms behind attention."""
    layer = weights.layers[0]
    return (
        (present(layer.attention_norm), layer.attention_norm_bias),
        (present(layer.attention_norm_2), layer.attention_norm_2_bias),
    )


def _head_norms(weights: ModelWeights[W]) -> tuple[tuple[W, W | None], tuple[W, W | None]]:
    """Returns weight and bias of the norms of queries and keys."""
    attention = present(weights.layers[0].attention)
    return (
        (present(attention.q_norm), attention.q_norm_bias),
        (present(attention.k_norm), attention.k_norm_bias),
    )


def _normed(bench: Workbench, x: Array, weight: Tensor, bias: Tensor | None) -> Float64:
    """Returns the norm of each row, of the model's kind."""
    eps = bench.config.norm_eps
    if bench.config.norm is NormKind.RMS:
        return oracle.rms_norm(x.astype(np.float64), values_of(weight), eps)
    return oracle.layer_norm(x.astype(np.float64), values_of(weight), values_of(bias), eps)


def _gelu(bench: Workbench) -> float:
    halves = (2 * random_values(12, bench.config.layers[0].intermediate_size)).astype(np.float16)
    kind = bench.config.activation
    got = bench.model.ops.gelu(bench.activation(bench.model.arena.intermediate, halves), kind)
    return error(bench.result(got), oracle.activate(halves.astype(np.float64), kind))


def _bounded(bench: Workbench, name: str) -> float:
    """Returns the error of a product whose bounds about a third of all numbers are beyond."""
    weight, bounds = (
        attrgetter(name + end)(bench.model.weights.layers[0]) for end in ("", "_bounds")
    )
    halves = random_values(12, part_of(weight).matrix.in_features).astype(np.float16)
    x = bench.activation(bench.model.arena.intermediate, halves)
    got = bench.model.ops.bounded_linear(bench.step([(12, 12, [0])]), x, weight, bounds)
    return error(bench.result(got), _within_bounds(bench, halves, name))


def _bounded_gate(bench: Workbench) -> float:
    halves = random_values(12, bench.config.hidden_size).astype(np.float16)
    layer = bench.model.weights.layers[0].feed_forward
    assert layer is not None
    assert layer.gate is not None
    assert layer.gate_bounds is not None
    assert layer.up_bounds is not None
    pair, bounds = (layer.gate, layer.up), (layer.gate_bounds, layer.up_bounds)
    x, kind = bench.activation(bench.model.arena.normed, halves), bench.config.activation
    got = bench.model.ops.bounded_gated_linear(bench.step([(12, 12, [0])]), x, pair, bounds, kind)
    gate, up = (_within_bounds(bench, halves, f"feed_forward.{name}") for name in ("gate", "up"))
    return error(bench.result(got), oracle.activate(gate, kind) * up)


def _within_bounds(bench: Workbench, x: npt.NDArray[Any], name: str) -> Float64:
    """Returns a product within its bounds in float64, of what is within others."""
    stored = bench.weights.layers[0]
    matrix, numbers = (values_of(attrgetter(name + end)(stored)) for end in ("", "_bounds"))
    least, most, *of_product = numbers.reshape(-1).tolist()
    product = np.clip(x.astype(np.float64), least, most) @ matrix.T
    found: Float64 = np.clip(product, of_product[0], of_product[1])
    return found


def _image_rows(bench: Workbench) -> float:
    tower, weights, stored = bench.config.tower, bench.model.weights, bench.weights.projector
    assert tower is not None
    assert stored is not None
    assert weights.projector is not None
    halves = random_values(12, bench.config.hidden_size).astype(np.float16)
    ops, hidden = bench.model.ops, bench.activation(bench.model.arena.normed, halves)
    got = ops.products.multiply(
        ops.merge_rows(hidden, tower.merged), part_of(weights.projector.matrix), None
    )
    rows = halves.astype(np.float64).reshape(12 // tower.merged, -1)
    return error(bench.result(got), rows @ values_of(stored.matrix).T)


def _quantize(bench: Workbench, rows: int) -> float:
    values = random_values(rows, bench.config.hidden_size)
    x = bench.activation(bench.model.arena.normed, values)
    x.q, x.q_scale = bench.model.ops.products.forms.int8(x)
    return int8_error(bench, x, values.astype(np.float64))


def _half(bench: Workbench) -> float:
    values = random_values(12, bench.config.hidden_size)
    got = bench.get(
        bench.model.ops.products.forms.half(bench.activation(bench.model.arena.normed, values))
    )
    return error(got.astype(np.float64), values.astype(np.float64))


def _sigmoid_gate(bench: Workbench, dtype: npt.DTypeLike) -> float:
    rows = 12 if dtype == np.float16 else 3
    values = random_values(rows, bench.config.hidden_size).astype(dtype)
    gate = random_values(rows + 1, bench.config.hidden_size)[1:]
    x = bench.activation(bench.model.arena.normed, values)
    kernels = RowKernels(bench.device.library, frozenset(), adds=False, gates=True)
    kernels.sigmoid_gate(x, bench.activation(bench.residual, gate))
    array = x.f16 if dtype == np.float16 else x.f32
    assert array is not None
    want = values.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
    return error(bench.get(array).astype(np.float64), want)


def _gate_per_layer(bench: Workbench) -> float:
    rows, size, layer = 3, 64, 2
    gate, taken, projected = random_values(3 * rows, 3 * size).reshape(3, rows, -1)
    config = replace(bench.config, per_layer_size=size)
    table = RowKernels(bench.device.library, frozenset(), adds=False, gates=False)
    there = bench.put(taken, bench.new((rows, 3 * size), "f4"))
    forms: Forms[DeviceArray] = Forms(f32=bench.new((rows, size), "f4"))
    arrays = PerLayerArrays(rows=there, gated=forms)
    kernels = PerLayerRows(bench.device.library, config, table, arrays)
    other = bench.activation(Forms(f32=bench.new((rows, 3 * size), "f4")), projected)
    gates = bench.activation(bench.residual, gate[:, :size].copy())
    out = empty(forms, rows, size, half=False)
    kernels.gate(gates, kernels.own(other, layer), out)
    x = gate[:, :size].astype(np.float64)
    gelu = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    own = (taken.astype(np.float64) + projected)[:, layer * size :]
    return error(bench.result(out), gelu * own * np.sqrt(0.5))


def _store_hidden(bench: Workbench) -> float:
    values = random_values(12, bench.config.hidden_size)
    kept = bench.new((4 * BLOCK_TOKENS, bench.config.hidden_size), "f2")
    old = random_values(4 * BLOCK_TOKENS, bench.config.hidden_size).astype(np.float16)
    bench.put(old, kept)
    step = bench.step([(BLOCK_TOKENS + 8, 11, [2, 1]), (1, 1, [0])])
    hidden = HiddenRows(bench.device.library, bench.config.norm_eps, kept)
    hidden.store(step, bench.activation(bench.model.arena.normed, values))
    last = BLOCK_TOKENS + 8
    first = 3 * BLOCK_TOKENS - 3
    old[[*range(first, first + 3), *range(BLOCK_TOKENS, last), 0]] = values
    return error(bench.get(kept).astype(np.float64), old.astype(np.float64))


def _beside_hidden(bench: Workbench, rows: int) -> float:
    width, norms = bench.config.hidden_size, _norms_of_layer(bench.model.weights)
    values, others = random_values(rows, width), random_values(40, width).astype(np.float16)
    before = np.arange(39, 39 - rows, -1)  # to halves, the first has none before it
    before[0] = 39 if rows < 4 else -1
    kept, slots = bench.new((40, width), "f2"), bench.new((rows,), "i8")
    bench.put(others, kept)
    step = bench.step([(rows, rows, [0])])
    step = replace(step, inputs=replace(step.inputs, slots_before=bench.put(before, slots)))
    arrays: Forms[DeviceArray] = Forms(
        f16=bench.new((rows, 2 * width), "f2"),
        q=bench.new((rows, 2 * width), "i1"),
        q_scale=bench.new((rows, 2 * width // QUANT_BLOCK), "u8"),
    )
    out = Activation(arrays, rows, 2 * width, f16=arrays.f16)
    if rows < 4:
        out = Activation(arrays, rows, 2 * width)
        bench.model.ops.products.forms.give_int8(out)
    hidden = HiddenRows(bench.device.library, bench.config.norm_eps, kept)
    hidden.beside(step, bench.activation(bench.residual, values), norms, out)
    states = np.where(before[:, None] < 0, 0, others[before].astype(np.float64))
    parts = zip((values, states), _norms_of_layer(bench.weights), strict=True)
    want = np.concatenate([_normed(bench, each, norm, None) for each, norm in parts], axis=1)
    return int8_error(bench, out, want) if rows < 4 else error(bench.result(out), want)


def _norms_of_layer(weights: ModelWeights[W]) -> tuple[W, W]:
    layer = weights.layers[0]
    return present(layer.attention_norm), present(layer.feed_forward_norm)


def _squared_relu(bench: Workbench, dtype: npt.DTypeLike) -> float:
    rows, forms = 12 if dtype == np.float16 else 3, bench.model.ops.products.forms
    values = random_values(rows, bench.config.hidden_size).astype(dtype)
    x = bench.activation(bench.model.arena.normed, values)
    want = np.maximum(values.astype(np.float64), 0) ** 2
    if dtype == np.float32:
        forms.give_int8(x)
    forms.squared_relu(x)
    if x.f16 is not None:
        return error(bench.get(x.f16).astype(np.float64), want)
    assert x.f32 is not None
    return max(error(bench.get(x.f32).astype(np.float64), want), int8_error(bench, x, want))


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
    bench.sampler.begin(step)
    got = bench.result(
        bench.model.ops.embed(step, bench.model.weights.embedding.token, None, None, 3.0)
    )
    want = 3.0 * values_of(bench.weights.embedding.token)[ids]
    want[tokens] = rows
    return error(got, want)


def _begin(bench: Workbench) -> float:
    """Checks what comes from pinned memory, and that a row without a token, -1, is token 0."""
    before = np.array([41, -1, 43], np.int32)
    bench.put(before, bench.sampler.tokens)
    step = bench.step([(5, 5, [0])], tokens=[7, 0, 9, 0, 0], sources=[-1, 2, -1, 1, 0])
    inputs, memory = bench.model.inputs, bench.device.memory
    wanted = bench.get(inputs)
    staged = StagedInputs(memory.pinned(wanted.nbytes, "inputs of a step"), inputs, wanted.nbytes)
    staged.host.bytes[:] = wanted
    bench.put(np.zeros_like(wanted), inputs)
    bench.sampler.begin(step, staged)
    assert bench.model.arena.tokens is not None
    got = bench.get(bench.model.arena.tokens.first(5))
    if (bench.get(inputs) != wanted).any():
        return float("inf")
    return error(got.astype(np.float64), np.array([7.0, 43, 9, 0, 41]))
