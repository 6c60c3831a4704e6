"""Checks of LoRA adapters: linear layers of steps whose sequences have different ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.step import NO_ADAPTER
from rocmforge.models.config import ActivationFunction
from rocmforge.models.weights import walk
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error, values_of
from rocmforge_hip.verify.matrices import exact_activation, gate_and_up, query_key_value
from rocmforge_hip.verify.workbench import Recipe, Workbench

# A, B and what comes of A are halves, and so is a gated result. Relative to the largest value.
_HALVES: Final = 2.0**-10
_RANKS: Final = (40, 4)

Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields few rows, which GEMV takes, and many."""
    cases = []
    for rows in (3, 40):
        cases += [
            Case("lora", f"{rows} rows", _HALVES, partial(_linear, rows=rows)),
            Case("lora", f"gated, {rows} rows", _HALVES, partial(_gated, rows=rows)),
        ]
    recipe = Recipe(
        format="f16", hidden_size=1056, intermediate_size=96, kv_heads=1, adapter_ranks=_RANKS
    )
    yield Group(recipe, tuple(cases))


def _adapters_of(rows: int) -> list[int]:
    """Returns the first adapter, none and the second one in turn."""
    return [(0, NO_ADAPTER, 1)[row % 3] for row in range(rows)]


def _product(bench: Workbench, path: str, x: Float64) -> Float64:
    """Returns the product of each row with what its adapter makes of a matrix."""
    place, tensor = next(found for found in walk(bench.weights) if found[0].path == path)
    product = x @ values_of(tensor).T
    for row, adapter in enumerate(_adapters_of(len(x))):
        if adapter != NO_ADAPTER:
            low_rank = bench.adapters[adapter].changes[place]
            a, b = (values.astype(np.float64) for values in low_rank.factors())
            product[row] += low_rank.scale * (b @ (a @ x[row]))
    return product


def _linear(bench: Workbench, rows: int) -> float:
    """Checks query, key and value, which are one matrix on the device."""
    values = exact_activation(rows, bench.config.hidden_size)
    x = bench.activation(bench.model.arena.normed, values)
    step = bench.step([(1, 1, [0])] * rows, adapters=_adapters_of(rows))
    products = bench.model.ops.qkv(step, x, *query_key_value(bench.model.weights))
    stored, exact = query_key_value(bench.weights), values.astype(np.float64)
    errors = []
    for role, got, bias in zip("qkv", products, stored[1], strict=True):
        want = _product(bench, f"layers.0.attention.{role}", exact) + values_of(bias)
        errors.append(error(bench.result(got), want))
    return max(errors)


def _gated(bench: Workbench, rows: int) -> float:
    values = exact_activation(rows, bench.config.hidden_size) / np.float32(16)
    x = bench.activation(bench.model.arena.normed, values)
    step = bench.step([(1, 1, [0])] * rows, adapters=_adapters_of(rows))
    kind, on_device = ActivationFunction.SILU, gate_and_up(bench.model.weights)
    got = bench.result(bench.model.ops.gated_linear(step, x, *on_device, kind))
    exact = values.astype(np.float64)
    gate, up = (_product(bench, f"layers.0.feed_forward.{part}", exact) for part in ("gate", "up"))
    return error(got, oracle.activate(gate, kind) * up)
