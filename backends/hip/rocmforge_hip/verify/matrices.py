"""Checks of what multiplies or reads stored matrices, for every stored type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ActivationFunction
from rocmforge.models.weights import present
from rocmforge_hip.ops.activations import Activation, Forms, PerLayerArrays
from rocmforge_hip.ops.geometry import MAX_GEMV_ROWS
from rocmforge_hip.ops.linear.gemv import GemvKernels
from rocmforge_hip.ops.linear.later import is_norm_later
from rocmforge_hip.ops.linear.mixed_gemv import MixedGemvKernels
from rocmforge_hip.ops.operands import empty, part_of
from rocmforge_hip.ops.rows import PerLayerRows, RowKernels
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.step.variants import VARIANTS
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Array, Case, Group, error, values_of
from rocmforge_hip.verify.rows import int8_error, int8_values, random_values
from rocmforge_hip.verify.workbench import Recipe, Workbench
from rocmforge_hip.weights.formats import FLOAT_FORMATS, FORMATS

W = TypeVar("W")

# Relative to the sum of the absolute values of what is added up.
_FLOAT_SUM: Final = 4e-6  # float32
_TWO_SLICES: Final = 2.0**-14  # what is left of a value by two slices
_HALF_WEIGHTS: Final = 2.0**-11  # GEMM rounds weights to halves
_HALF_RESULT: Final = 2.0**-10  # and a gated one its result too
_INT8: Final = 0.51 / 127  # relative to the largest value of a block of 32
_EMBEDDING: Final = 1e-5
_SOFTCAP: Final = 30.0
_EMBEDDING_SCALE: Final = 2.5
_TOWER_FORMATS: Final = ("f32", "f16", "bf16", "q8_0")  # of files that have towers


def groups() -> Iterator[Group]:
    """Yields a group for each stored type."""
    square = Recipe(hidden_size=256, intermediate_size=256, vocab=96, kv_heads=1)
    for name in FORMATS:
        yield Group(replace(square, format=name), tuple(_cases(name)))
    for name in ("q4_k", "q6_k"):
        recipe = replace(square, format=name, least_wide_blocks=1)
        yield Group(recipe, tuple(_wide_cases(name)))
    for name in (name for name, format in FORMATS.items() if format.is_streamed):
        recipe = replace(square, format=name, least_streamed_rows=1)
        yield Group(recipe, tuple(_streamed_cases(name)))
    # As very many rows are multiplied, on devices that take more of them at once.
    quantised = [name for name, format in FORMATS.items() if format.is_quantised]
    for name, other in zip_longest(quantised[::2], quantised[1::2], fillvalue=""):
        recipe = replace(square, format=name, value_format=other, least_wide_rows=1)
        title = f"{name} and {other or name}"
        # Of more than 256, some devices take all together.
        yield Group(recipe, _linear_cases("gemm", title, _HALF_WEIGHTS, (17, 258), " as of many"))
    recipe = replace(square, format="q4_k", value_format="q6_k")
    yield Group(recipe, _linear_cases("gemv", "q4_k and q6_k", _FLOAT_SUM, (1, 2, 3, 8)))
    recipe = replace(square, format="q4_0", value_format="q6_k")
    yield Group(recipe, _linear_cases("gemv", "q4_0 and q6_k", _FLOAT_SUM, (1, 2, 3)))
    recipe = replace(square, format="q6_k")
    yield Group(recipe, tuple(_joined_cases("q6_k, one slice", (1, 2, 3, 8), _INT8)))
    yield Group(recipe, _deferred_cases("q6_k"))
    for name in (name for name in quantised if not FORMATS[name].is_mixed):
        recipe = replace(square, format=name)
        yield Group(recipe, tuple(_joined_cases(f"{name}, one slice", (1, 2, 3), _INT8)))
        yield Group(recipe, _deferred_cases(name))
    for name in sorted(FLOAT_FORMATS):
        normed = (
            Case("normed gemv", f"{name}, {_rows(rows)}", _FLOAT_SUM, partial(_normed, rows=rows))
            for rows in (1, 2, 3, 8)
        )
        yield Group(replace(square, format=name), tuple(normed))
    for name, format in FORMATS.items():
        if format.is_quantised:
            yield Group(replace(square, format=name), _deferred_cases(f"{name}, 8 rows", 8))
        if format.is_streamed:
            recipe = replace(square, format=name, least_streamed_rows=2 * square.intermediate_size)
            yield Group(recipe, _deferred_cases(f"{name}, 7 rows, copied ahead", 7))
    recipe = replace(square, format="q6_k")
    yield from _rows_copied_ahead()
    recipe = replace(recipe, activation_bits="16")
    yield Group(recipe, tuple(_joined_cases("q6_k, two slices", (1, 2), _TWO_SLICES)))
    for name in ("q4_1", "q6_k"):
        recipe = replace(square, format=name, activation_bits="16")
        yield Group(recipe, tuple(_two_term_cases(name)))
    # Long rows and few of them: several blocks share the columns of a result.
    recipe = Recipe(format="q8_0", hidden_size=1024, intermediate_size=64, heads=2, kv_heads=1)
    cases = [Case("split gemm", "9 rows", _HALF_WEIGHTS, partial(_linear, rows=9))]
    for kind in (ActivationFunction.SILU, ActivationFunction.GELU):
        gated = partial(_gated, rows=12, kind=kind)
        cases.append(Case("split gemm", f"gated, {kind}, 12 rows", _HALF_RESULT, gated))
    yield Group(recipe, tuple(cases))
    # Query and key of one type and value of another: some devices multiply with both in one launch.
    for name in (name for name, format in FORMATS.items() if format.is_beside_q6_k):
        beside = replace(recipe, architecture="qwen2", intermediate_size=256, heads=4)
        beside = replace(beside, format=name, value_format="q6_k")
        title = f"{name} and q6_k"
        yield Group(beside, _linear_cases("split gemm", title, _HALF_WEIGHTS, (9, 30, 50)))
    for name in ("f32", "f16", "bf16"):
        recipe = Recipe(architecture="bert", format=name, hidden_size=160, vocab=96, kv_heads=4)
        cases = [
            Case("embed_add", f"{name} positions", _FLOAT_SUM, _embed),
            Case("linear", f"{name}, 5 rows of halves", _HALF_RESULT, _all_linear),
            Case("linear", f"{name}, stack to halves", _HALF_RESULT, partial(_linear, rows=5)),
        ]
        yield Group(recipe, tuple(cases))
        recipe = replace(recipe, architecture="qwen3vl-tower", intermediate_size=160)
        between = Case("embed_between", f"{name} positions", _FLOAT_SUM, _embed_between)
        yield Group(recipe, (between,))
    # As those of Qwen2.5-VL's tower; without biases, K would be split.
    recipe = Recipe(architecture="qwen25vl-tower", hidden_size=320, intermediate_size=160)
    for name in _TOWER_FORMATS:
        cases = []
        for rows in (16, 40, 100):
            measure = partial(_gated, rows=rows, kind=ActivationFunction.SILU)
            case_name = f"{name}, with biases, {_rows(rows)}"
            cases.append(Case("biased gated gemm", case_name, _HALF_RESULT, measure))
        yield Group(replace(recipe, format=name), tuple(cases))


def _linear_cases(
    op: str, title: str, limit: float, counts: tuple[int, ...], remark: str = ""
) -> tuple[Case, ...]:
    """Returns products of so many rows with query, key and value."""
    return tuple(
        Case(op, f"{title}, {_rows(rows)}{remark}", limit, partial(_linear, rows=rows))
        for rows in counts
    )


def _cases(format: str) -> Iterator[Case]:
    yield Case("embed", format, _EMBEDDING, _embed)
    for rows in (1, 2, 3, 8, 9, 40, 100):
        op, limit = ("gemv", _FLOAT_SUM) if rows <= MAX_GEMV_ROWS else ("gemm", _HALF_WEIGHTS)
        yield Case(op, f"{format}, {_rows(rows)}", limit, partial(_linear, rows=rows))
    for rows, kind in ((2, ActivationFunction.SILU), (20, ActivationFunction.GELU_TANH)):
        op, limit = (
            ("gated gemv", _FLOAT_SUM) if rows <= MAX_GEMV_ROWS else ("gated gemm", _HALF_RESULT)
        )
        gated = partial(_gated, rows=rows, kind=kind)
        yield Case(op, f"{format}, {kind}, {_rows(rows)}", limit, gated)
    yield Case("logits", f"{format}, capped", _FLOAT_SUM, _logits)


def _wide_cases(format: str) -> Iterator[Case]:
    """Yields products that int8 matrix instructions take in wide blocks, where they are used."""
    yield Case("gemv", f"{format}, wide, 8 rows", _FLOAT_SUM, partial(_linear, rows=8))
    for rows, op, limit in ((7, "gated gemv", _FLOAT_SUM), (16, "gated gemm", _HALF_RESULT)):
        gated = partial(_gated, rows=rows, kind=ActivationFunction.SILU)
        yield Case(op, f"{format}, wide, {_rows(rows)}", limit, gated)


def _streamed_cases(format: str) -> Iterator[Case]:
    """Yields products whose waves copy weights ahead, where there are such."""
    name = f"{format}, copied ahead"
    yield Case("gemv", f"{name}, 8 rows", _FLOAT_SUM, partial(_linear, rows=8))
    gated = partial(_gated, rows=7, kind=ActivationFunction.SILU)
    yield Case("gated gemv", f"{name}, 7 rows", _FLOAT_SUM, gated)


def _deferred_cases(title: str, rows: int = 1) -> tuple[Case, ...]:
    """Returns the cases of norms that are left for later, and of what completes them."""
    rounded = Case("deferred norm", title, _INT8, partial(_deferred, rows=rows))
    return rounded, Case("completed norm", title, _FLOAT_SUM, partial(_completed, rows=rows))


def _rows_copied_ahead() -> Iterator[Group]:
    """Yields the same with long rows, whose weights come through LDS, where there are kernels.

    A block takes several tiles, of rows that take a wave more than one step, so that places in LDS
    are used again.
    """
    recipe = Recipe(intermediate_size=256, least_streamed_features=1, compute_units=1)
    long = replace(recipe, hidden_size=2304, kv_heads=1, format="q4_k", value_format="q6_k")
    yield Group(long, _deferred_cases("q4_k and q6_k, copied ahead"))
    # Of the last kernel, each block has the tiles of one unit: it needs longer rows.
    longer = replace(recipe, hidden_size=256, heads=28, head_dim=256)
    for name in ("q4_k", "q6_k"):
        _, case = _deferred_cases(f"{name}, longer rows")
        yield Group(replace(longer, format=name), (case,))


def _joined_cases(title: str, counts: tuple[int, ...], rounding: float) -> Iterator[Case]:
    """Yields products of which one launch makes more than the sums."""
    for rows in counts:
        name = f"{title}, {_rows(rows)}"
        yield Case("rounded gemv", name, rounding, partial(_rounded, rows=rows))
        yield Case("normed gemv", name, _FLOAT_SUM, partial(_normed, rows=rows))
        yield Case("gemv to another embedding", name, rounding, partial(_per_layer, rows=rows))


def _two_term_cases(format: str) -> Iterator[Case]:
    for rows in (1, 2):
        name = f"{format}, two slices, {_rows(rows)}"
        yield Case("gemv", name, _TWO_SLICES, partial(_linear, rows=rows, exact=False))
    name, kind = f"{format}, two slices, 2 rows", ActivationFunction.SILU
    yield Case("gated gemv", name, _TWO_SLICES, partial(_gated, rows=2, kind=kind, exact=False))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def exact_activation(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """Returns the values that neither the int8 nor the float16 form of an activation rounds."""
    rng = np.random.default_rng(rows)
    steps = rng.integers(-127, 128, (rows, columns // 32, 32))
    steps[:, :, 0] = 127  # of each block of 32 the largest: the int8 step is then 1/128
    return (steps.reshape(rows, columns) / 128).astype(np.float32)


def _embed(bench: Workbench) -> float:
    tokens = [5, 0, 95, 17, 5, 64, 33]
    step = bench.step([(len(tokens), len(tokens), [0])], tokens=tokens)
    if bench.config.causal:
        bench.sampler.begin(step)
    on_device, stored = bench.model.weights.embedding, bench.weights.embedding
    got = bench.model.ops.embed(
        step, on_device.token, on_device.position, on_device.type, _EMBEDDING_SCALE
    )
    want = _EMBEDDING_SCALE * values_of(stored.token)[tokens]
    if stored.position is not None:
        want += values_of(stored.position)[: len(tokens)] + values_of(stored.type)[0]
    return error(bench.result(got), want)


def _embed_between(bench: Workbench) -> float:
    rng, count = np.random.default_rng(3), 7
    ids, shares = rng.integers(0, bench.config.vocab_size, (count, 4)), rng.random((count, 4))
    step = bench.step([(count, count, [0])], places=(ids, shares))
    got = bench.model.ops.embed_between(step, bench.model.weights.embedding.token)
    rows = values_of(bench.weights.embedding.token)[ids]
    return error(bench.result(got), (rows * shares.astype(np.float32)[..., None]).sum(axis=1))


def _activation(rows: int, columns: int, exact: bool) -> npt.NDArray[np.float32]:
    return exact_activation(rows, columns) if exact else random_values(rows, columns)


def _linear(bench: Workbench, rows: int, exact: bool = True) -> float:
    """Returns all matrices of the stack of query, key and value: each must be found in it."""
    values = _activation(rows, bench.config.hidden_size, exact)
    x = bench.activation(bench.model.arena.normed, values)
    step = bench.step([(rows, rows, [])])
    return _qkv_error(bench, step, x, values)


def _qkv_error(bench: Workbench, step: DeviceStep, x: Activation, values: Array) -> float:
    """Returns the error of x, which has these values, times query, key and value."""
    products = bench.model.ops.qkv(step, x, *query_key_value(bench.model.weights))
    return max(
        _linear_error(bench.result(product), values, matrix, bias)
        for product, matrix, bias in zip(products, *query_key_value(bench.weights), strict=True)
    )


def query_key_value(
    weights: ModelWeights[W],
) -> tuple[tuple[W, W, W], tuple[W | None, W | None, W | None]]:
    """Returns three matrices and their biases."""
    layer = present(weights.layers[0].attention)
    matrices = layer.q, present(layer.k), present(layer.v)
    return matrices, (layer.q_bias, layer.k_bias, layer.v_bias)


def _linear_error(got: Array, x: Array, matrix: Tensor, bias: Tensor | None) -> float:
    """Returns the error of x times the matrix plus the bias, relative to what is added up."""
    wide, weight, added = x.astype(np.float64), values_of(matrix), values_of(bias)
    return error(got, wide @ weight.T + added, np.abs(wide) @ np.abs(weight).T + np.abs(added))


def _all_linear(bench: Workbench) -> float:
    """Returns each matrix that is not multiplied together with others."""

    def linears(weights: ModelWeights[W]) -> tuple[tuple[W, W | None], ...]:
        layer, head = weights.layers[0], present(weights.head)
        attention, feed_forward = present(layer.attention), present(layer.feed_forward)
        return (
            (attention.output, attention.output_bias),
            (feed_forward.up, feed_forward.up_bias),
            (feed_forward.down, feed_forward.down_bias),
            (present(head.dense), head.dense_bias),
            (head.scores, head.scores_bias),
        )

    step, arena = bench.step([(5, 5, [])]), bench.model.arena
    inputs = arena.attended, arena.normed, arena.intermediate, arena.pooled, arena.dense
    errors = []
    for arrays, on_device, (matrix, bias) in zip(
        inputs, linears(bench.model.weights), linears(bench.weights), strict=True
    ):
        values = exact_activation(5, matrix.shape[1]).astype(np.float16)
        got = bench.model.ops.linear(step, bench.activation(arrays, values), *on_device)
        errors.append(_linear_error(bench.result(got), values, matrix, bias))
    return max(errors)


def _gated(bench: Workbench, rows: int, kind: ActivationFunction, exact: bool = True) -> float:
    values = _activation(rows, bench.config.hidden_size, exact) / np.float32(16)
    x = bench.activation(bench.model.arena.normed, values)
    step = bench.step([(rows, rows, [])])
    on_device = gate_and_up(bench.model.weights)
    there = _gated_biases(bench.model.weights)
    got = bench.model.ops.gated_linear(step, x, *on_device, kind, there)
    return _gated_error(bench, got, values, kind)


def _gated_error(
    bench: Workbench, got: Activation, values: Array, kind: ActivationFunction
) -> float:
    """Returns the error of what gate and up make of these values."""
    wide, matrices = values.astype(np.float64), [values_of(w) for w in gate_and_up(bench.weights)]
    biases = [0 if b is None else values_of(b) for b in _gated_biases(bench.weights)]
    gate, up = (wide @ w.T + b for w, b in zip(matrices, biases, strict=True))
    # Both activations have slopes below 1.2, so errors of gate and up add up to less than:
    sizes = [np.abs(wide) @ np.abs(w).T + np.abs(b) for w, b in zip(matrices, biases, strict=True)]
    activated = oracle.activate(gate, kind)
    return error(bench.result(got), activated * up, 2.4 * sizes[0] * sizes[1])


def _rounded(bench: Workbench, rows: int) -> float:
    """Returns the error of the int8 form, which the launch of the product writes."""
    values = exact_activation(rows, bench.config.hidden_size) / np.float32(16)
    x = bench.activation(bench.model.arena.normed, values)
    step = replace(bench.step([(rows, rows, [])]), variant=VARIANTS["rounded"])
    kind = ActivationFunction.SILU
    got = bench.model.ops.gated_linear(step, x, *gate_and_up(bench.model.weights), kind)
    bench.model.ops.products.forms.int8(got)  # where int8 matrix instructions take so many rows
    wide, gate, up = values.astype(np.float64), *map(values_of, gate_and_up(bench.weights))
    return int8_error(bench, got, oracle.activate(wide @ gate.T, kind) * (wide @ up.T))


def _per_layer(bench: Workbench, rows: int) -> float:
    """Returns the error of another embedding of tokens, which the launch of its gate gates."""
    arena, on_device = bench.model.arena, bench.model.weights.layers[0]
    part, forms = part_of(present(on_device.attention).output), bench.model.ops.products.forms
    size, layer, library = part.out_features, 1, bench.device.library
    values = exact_activation(rows, _attended(bench)) / np.float32(16)
    taken, projected = random_values(2 * rows, 3 * size).reshape(2, rows, -1)
    arrays = PerLayerArrays(
        rows=bench.put(taken, bench.new(taken.shape, "f4")), gated=arena.intermediate
    )
    config = replace(bench.config, per_layer_size=size)
    table = RowKernels(library, frozenset(), adds=False, gates=False)
    other = bench.activation(Forms(f32=bench.new(projected.shape, "f4")), projected)
    own = PerLayerRows(library, config, table, arrays).own(other, layer)
    formats = frozenset({part.matrix.format.name})
    kernels = MixedGemvKernels(
        *(library, replace(arena, other_embedding=arrays), formats),
        *(GemvKernels(library, formats, forms), forms, None),
    )
    out = empty(arrays.gated, rows, size, half=False)
    forms.give_int8(out)
    kernels.gate_per_layer(bench.activation(arena.attended, values), part.matrix, own, out)
    gate = (
        values.astype(np.float64) @ values_of(present(bench.weights.layers[0].attention).output).T
    )
    of_layer = (taken.astype(np.float64) + projected)[:, layer * size : (layer + 1) * size]
    activated = oracle.activate(gate, ActivationFunction.GELU_TANH)
    return int8_error(bench, out, activated * of_layer * np.sqrt(0.5))


def _normed(bench: Workbench, rows: int) -> float:
    """Returns the error of a product that its own launch adds to the residual and norms."""
    # No two cases share values, so that what an earlier one has left is wrong.
    old = random_values(rows + 20, bench.config.hidden_size)[:rows]
    step = replace(bench.step([(rows, rows, [])]), variant=VARIANTS["fewest"])
    wrong, want, normed = _added(bench, step, exact_activation(rows, _attended(bench)), old)
    weight = values_of(present(bench.weights.layers[0].feed_forward_norm))
    norm = oracle.rms_norm(want, weight, bench.config.norm_eps)
    return max(wrong, error(bench.result(normed), norm))


def _attended(bench: Workbench) -> int:
    """Returns the columns of what attention gives."""
    return present(bench.weights.layers[0].attention).output.shape[1]


def _added(
    bench: Workbench, step: DeviceStep, values: Array, old: Array
) -> tuple[float, npt.NDArray[np.float64], Activation]:
    """Adds the product of attention's result to a residual, and norms the sum.

    Returns:
        The error of the sum, what it should be, and the norm.
    """
    layer, on_device = bench.weights.layers[0], bench.model.weights.layers[0]
    own, there = present(layer.attention), present(on_device.attention)
    x, ops = bench.activation(bench.model.arena.attended, values), bench.model.ops
    delta = ops.linear(step, x, there.output, there.output_bias)
    residual = bench.activation(bench.residual, old)
    assert on_device.feed_forward_norm is not None
    total, normed = ops.add_norm(residual, delta, on_device.feed_forward_norm, None)
    wide, weight = values.astype(np.float64), values_of(own.output)
    want = old + wide @ weight.T + values_of(own.output_bias)
    sizes = np.abs(old) + np.abs(wide) @ np.abs(weight).T
    return error(bench.result(total), want, sizes), want, normed


def _left_for_later(
    bench: Workbench, rows: int
) -> tuple[float, npt.NDArray[np.float64], Activation]:
    """Returns what `_added` does, where the norms are left for what reads them, if they can be."""
    values = exact_activation(rows, _attended(bench)) / np.float32(4)
    old = random_values(39 + rows, bench.config.hidden_size)[39:]
    return _added(bench, _deferred_step(bench, rows), values, old)


def _deferred_step(bench: Workbench, rows: int) -> DeviceStep:
    return replace(bench.step([(rows, rows, [])]), variant=VARIANTS["deferred"])


def _deferred(bench: Workbench, rows: int) -> float:
    """Returns the error of products added to the residual, and of the int8 form of their norms."""
    wrong, want, normed = _left_for_later(bench, rows)
    norm = values_of(present(bench.weights.layers[0].feed_forward_norm))
    left = want if is_norm_later(normed) else want * _norm_factors(bench, want)
    return max(wrong, int8_error(bench, normed, left * norm))


def _completed(bench: Workbench, rows: int) -> float:
    """Returns the error of such sums, and of what reads the int8 form of their norms."""
    wrong, want, normed = _left_for_later(bench, rows)
    kind = ActivationFunction.SILU
    on_device = gate_and_up(bench.model.weights)
    made = bench.model.ops.gated_linear(_deferred_step(bench, rows), normed, *on_device, kind)
    of_gated = _gated_error(bench, made, _completed_norm(bench, normed, want), kind)
    return max(wrong, of_gated, completed_error(bench, normed, want))


def completed_error(bench: Workbench, normed: Activation, total: Array) -> float:
    """Returns the error of products that complete a norm, whose int8 form is as it should be.

    Args:
        bench: Its model multiplies with the norm.
        normed: The norm, without its factor.
        total: What is normed.
    """
    exact = _completed_norm(bench, normed, total)
    return _qkv_error(bench, _deferred_step(bench, normed.rows), normed, exact)


def _completed_norm(bench: Workbench, normed: Activation, total: Array) -> npt.NDArray[np.float64]:
    """Returns the values of norms that what reads them completes: so rounding them is no error."""
    values: npt.NDArray[np.float64] = int8_values(bench, normed)
    return values * _norm_factors(bench, total) if is_norm_later(normed) else values


def _norm_factors(bench: Workbench, total: Array) -> npt.NDArray[np.float64]:
    """Returns 1 / root mean square of each row."""
    squares = (total.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)
    factors: npt.NDArray[np.float64] = 1 / np.sqrt(squares + bench.config.norm_eps)
    return factors


def gate_and_up(weights: ModelWeights[W]) -> tuple[W, W]:
    """Returns two matrices of the model."""
    feed_forward = present(weights.layers[0].feed_forward)
    return present(feed_forward.gate), feed_forward.up


def _gated_biases(weights: ModelWeights[W]) -> tuple[W | None, W | None]:
    """Returns theirs."""
    feed_forward = present(weights.layers[0].feed_forward)
    return feed_forward.gate_bias, feed_forward.up_bias


def _logits(bench: Workbench) -> float:
    values = exact_activation(3, bench.config.hidden_size)
    x = bench.activation(bench.model.arena.logit_rows, values)
    # Of this model, the output matrix is that of the embedding.
    output = bench.model.weights.embedding.token
    got = bench.result(bench.model.ops.logits(x, output, _SOFTCAP))
    matrix, exact = values_of(bench.weights.embedding.token), values.astype(np.float64)
    want = _SOFTCAP * np.tanh(exact @ matrix.T / _SOFTCAP)
    return error(got, want, np.abs(exact) @ np.abs(matrix).T)
