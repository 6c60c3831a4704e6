"""Checks of LoRA adapters: linear layers of steps whose sequences have different ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.protocol import NO_ADAPTER
from rocmforge.models.config import ActivationFunction
from rocmforge.models.weights import walk
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error
from rocmforge_hip.verify.matrices import exact_activation, gate_and_up
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
        format="f16",
        hidden_size=1056,
        intermediate_size=96,
        heads=4,
        kv_heads=1,
        adapter_ranks=_RANKS,
    )
    yield Group(recipe, tuple(cases))


def _adapters_of(rows: int) -> list[int]:
    """Returns the first adapter, none and the second one in turn."""
    return [(0, NO_ADAPTER, 1)[row % 3] for row in range(rows)]


def _product(bench: Workbench, path: str, x: Float64) -> Float64:
    """Returns the product of each row with what its adapter makes of a matrix."""
    place, tensor = next(found for found in walk(bench.weights) if found[0].path == path)
    product = x @ tensor.to_float32().astype(np.float64).T
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
    stored, on_device = bench.weights.layers[0].attention, bench.model.weights.layers[0].attention
    worst = 0.0
    matrices = on_device.q, on_device.k, on_device.v
    biases = on_device.q_bias, on_device.k_bias, on_device.v_bias
    products = bench.model.ops.qkv(step, x, matrices, biases)
    for role, got in zip("qkv", products, strict=True):
        bias = getattr(stored, f"{role}_bias").to_float32().astype(np.float64)
        want = _product(bench, f"layers.0.attention.{role}", values.astype(np.float64)) + bias
        worst = max(worst, error(bench.result(got), want))
    return worst


def _gated(bench: Workbench, rows: int) -> float:
    values = exact_activation(rows, bench.config.hidden_size) / np.float32(16)
    x = bench.activation(bench.model.arena.normed, values)
    step = bench.step([(1, 1, [0])] * rows, adapters=_adapters_of(rows))
    kind, on_device = ActivationFunction.SILU, gate_and_up(bench.model.weights)
    got = bench.result(bench.model.ops.gated_linear(step, x, *on_device, kind))
    exact = values.astype(np.float64)
    gate, up = (_product(bench, f"layers.0.feed_forward.{part}", exact) for part in ("gate", "up"))
    return error(got, oracle.activate(gate, kind) * up)
