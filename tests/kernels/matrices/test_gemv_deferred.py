"""rf_gemv_deferred_*, and the kernels that complete the norm that it leaves for later.

Together they do what rf_gemv_*, rf_add_rms_norm and another rf_gemv_* do one after the other, so
those are the oracle, to the last bit; their own tests compare them with float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rocmforge_hip.ops.linear.gemv import GEMV_THREADS
from rocmforge_hip.ops.norms import norm_threads
from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.kernels.matrices.test_gemv_mixed import MIXED, QUANTISED, end_for, end_for_all
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.linear import NOT_GATED, SILU, random_activation, random_layer

EPS = 1e-3  # so large that it counts


def _check(
    device: Device,
    name: str,
    features: int,
    in_features: int,
    *,
    block: int = 64,
    biased: bool = False,
    reader: str = "q8_0",
) -> None:
    rng = np.random.default_rng(4)
    layer = random_layer(rng, name, features, in_features)
    quantised = quantise(random_activation(rng, 1, in_features), 1)
    old = rng.standard_normal((1, features)).astype(np.float32) * np.float32(0.1)
    bias, norm = (device.upload(each) for each in rng.standard_normal((2, features), np.float32))
    product = (
        device.upload(layer.packed()),
        device.upload(quantised.q),
        device.upload(quantised.scales),
        bias if biased else None,
    )
    found = []
    for defers in (False, True):
        residual, q = device.upload(old), device.empty((1, features), np.int8)
        scale = device.empty((features // 32,), SCALE_DTYPE)
        squares: DeviceArray | None = None
        if defers:
            squares = device.empty((features // 32,), np.float32)
            device.launch(
                f"rf_gemv_deferred{end_for(name)}",
                *product,
                *(features, layer.quant_blocks, FORMAT_NUMBERS[name]),
                *(residual, norm, q, scale, squares),
                grid=features // 32,
                block=2 * block,
            )
        else:
            out, counts = device.empty(old.shape, np.float32), (1, 1, features, layer.quant_blocks)
            kernel, grid = f"rf_gemv_{name}_r1", layer.stored_rows // 16
            device.launch(kernel, *product, out, *counts, 0, grid=grid, block=block)
            device.launch(
                "rf_add_rms_norm",
                *(out, residual, None, None, norm, None, None, q, scale, 0, features, EPS),
                grid=1,
                block=norm_threads(features),
            )
        read = _read(device, q, scale, squares, block, reader)
        found.append([array.get().tobytes() for array in (residual, q, *read)])
    assert found[1] == found[0]


def _read(
    device: Device,
    q: DeviceArray,
    scale: DeviceArray,
    squares: DeviceArray | None,
    block: int,
    name: str = "q8_0",
) -> list[DeviceArray]:
    """What the launches make of it that may complete a norm: of q, k, v and of gate and up."""
    rng, in_features = np.random.default_rng(6), q.shape[1]
    first, second, gated = (
        random_layer(rng, name, features, in_features, activation)
        for features, activation in ((32, NOT_GATED), (64, NOT_GATED), (32, SILU))
    )
    outs = [device.empty((1, layer.out_features), np.float32) for layer in (first, second, gated)]
    number, blocks = FORMAT_NUMBERS[name], first.quant_blocks
    of_norm = () if squares is None else (squares, EPS)
    rows = (1, 1) if squares is None else ()
    device.launch(
        f"rf_gemv_{'mixed_r1' if squares is None else 'deferred_mixed'}{end_for_all(name)}",
        *(device.upload(first.packed()), None, outs[0], first.out_features, number),
        *(device.upload(second.packed()), None, outs[1], second.out_features, number),
        *(None, None, None, 0, 0),
        *(q, scale, *rows, blocks, *of_norm),
        grid=(first.stored_rows + second.stored_rows) // 16,
        block=block,
    )
    device.launch(
        f"rf_gemv_{'gated_r1' if squares is None else 'deferred_gated'}{end_for(name)}",
        *(device.upload(gated.packed()), q, scale, outs[2], None, None, None, 0),
        *(*rows, gated.out_features, blocks, SILU, number, *of_norm),
        grid=gated.out_features // 32,
        block=block,
    )
    return outs


@pytest.mark.parametrize("name", QUANTISED)
def test_who_reads_a_norm_completes_it(device: Device, name: str) -> None:
    _check(device, name, 256, 256, reader=name)


def test_a_bias_is_added_first(device: Device) -> None:
    _check(device, "q8_0", 1056, 192, block=128, biased=True)


def test_a_row_of_more_sums_of_squares_than_a_wave_has_lanes(device: Device) -> None:
    _check(device, "q4_k", 4384, 512, block=GEMV_THREADS)


@pytest.mark.parametrize("completes", [False, True], ids=["made", "left_for_later"])
@pytest.mark.parametrize("apart", [False, True], ids=["one_matrix", "two_matrices"])
@pytest.mark.parametrize("name", MIXED)
def test_the_first_columns_are_those_of_a_norm(
    device: Device, name: str, apart: bool, completes: bool
) -> None:
    """As where all columns are made before, and some then normed."""
    rng, in_features, normed, others = np.random.default_rng(4), 256, 96, 72
    sizes = (normed, others) if apart else (normed + others,)
    layers = [random_layer(rng, name, features, in_features) for features in sizes]
    quantised = quantise(random_activation(rng, 1, in_features), 1)
    norm = device.upload(rng.standard_normal(normed).astype(np.float32))
    x = device.upload(quantised.q), device.upload(quantised.scales), layers[0].quant_blocks
    sums = device.upload(rng.uniform(0.5, 32, 8).astype(np.float32)) if completes else None
    stored, found = sum(layer.stored_rows for layer in layers), []
    for defers in (False, True):
        outs = [device.empty((1, layer.out_features), np.float32) for layer in layers]
        factors: list[tuple[Any, ...]] = [
            (device.upload(layer.packed()), None, out, layer.out_features, FORMAT_NUMBERS[name])
            for layer, out in zip(layers, outs, strict=True)
        ]
        factors += [(None, None, None, 0, 0)] * (3 - len(factors))
        q, scale = device.empty((1, normed), np.int8), device.empty((normed // 32,), SCALE_DTYPE)
        squares: DeviceArray | None = None
        if defers:
            squares = device.empty((normed // 32,), np.float32)
            device.launch(
                "rf_gemv_deferred_first",
                *(*factors[0], *factors[1], *x, sums, EPS, normed, norm, q, scale, squares),
                grid=stored // 32,
                block=128,
            )
        else:
            arguments = *factors[0], *factors[1], *factors[2], *x[:2]
            rest = (x[2], sums, EPS) if completes else (1, 1, x[2])
            device.launch(
                "rf_gemv_deferred_mixed" if completes else "rf_gemv_mixed_r1",
                *(*arguments, *rest),
                grid=stored // 16,
                block=64,
            )
            device.launch(
                "rf_rms_norm",
                *(outs[0], norm, None, None, q, scale, 0, outs[0].get().shape[1], normed, EPS),
                grid=1,
                block=norm_threads(normed),
            )
        read = _read(device, q, scale, squares, 64)
        found.append([array.get().tobytes() for array in (*outs, q, *read)])
    assert found[1] == found[0]
