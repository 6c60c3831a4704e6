"""rf_gemv_mixed_*: several matrices of different formats in one launch.

A block does what one of rf_gemv_* does for its matrix, so those are the oracle, to the last bit;
test_gemv.py compares them with float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kernels.table import read_formats
from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import quantise
from tests.support.operands.linear import Layer, multiply_few, random_activation, random_layer
from tests.support.operands.weights import block_features

Float32 = npt.NDArray[np.float32]
Factor = tuple[Layer, Float32 | None]

MIXED = [format.name for format in read_formats() if format.is_mixed]
QUANTISED = [format.name for format in read_formats() if format.is_quantised]


def end_for(name: str) -> str:
    """What the names of kernels for one matrix of this format end with."""
    return "" if name in MIXED else "_unmixed"


def end_for_all(*names: str) -> str:
    """What the names of kernels for matrices of these formats in one launch end with."""
    return "" if set(MIXED).issuperset(names) else "_quantised"


ROWS_AND_SLICES = (
    ("q4_k", 2, 1, 2, 128),
    ("q4_k", 3, 1, 4, 64),
    ("q4_k", 8, 1, 8, 64),
    ("q4_k", 1, 2, 2, 256),
    ("q4_k", 2, 2, 8, 64),
    ("iq3_s", 2, 1, 2, 128),
    ("iq3_s", 3, 1, 4, 64),
    ("iq3_s", 2, 2, 4, 64),
)
"""Of kernels for one matrix: its format, rows, slices, the kernel's rows, and threads."""


def _multiply(
    device: Device, variant: int, factors: list[Factor], x: Float32, slices: int, block: int
) -> list[Float32]:
    quantised = quantise(x, slices)
    outs: list[DeviceArray] = []
    arguments: list[DeviceArray | int | None] = []
    for layer, bias in factors:
        outs.append(device.empty((x.shape[0], layer.out_features), np.float32, "out"))
        arguments += [
            device.upload(layer.packed(), "weight"),
            None if bias is None else device.upload(bias, "bias"),
            outs[-1],
            layer.out_features,
            FORMAT_NUMBERS[layer.weights[0].name],
        ]
    for _ in range(len(factors), 3):
        arguments += [None, None, None, 0, 0]
    names = (layer.weights[0].name for layer, _ in factors)
    device.launch(
        f"rf_gemv_mixed_r{variant}{end_for_all(*names)}",
        *arguments,
        device.upload(quantised.q, "q"),
        device.upload(quantised.scales, "scale"),
        x.shape[0],
        slices,
        x.shape[1] // 32,
        grid=sum(layer.stored_rows for layer, _ in factors) // 16,
        block=block,
    )
    return [out.get() for out in outs]


def _check(
    device: Device,
    factors: list[Factor],
    *,
    rows: int = 1,
    slices: int = 1,
    variant: int = 1,
    block: int = 64,
) -> None:
    x = random_activation(np.random.default_rng(1), rows, factors[0][0].quant_blocks * 32)
    found = _multiply(device, variant, factors, x, slices, block)
    for (layer, bias), out in zip(factors, found, strict=True):
        kernel = f"rf_gemv_{layer.weights[0].name}_r{variant}"
        alone = multiply_few(device, kernel, layer, x, slices=slices, block=block, bias=bias)
        np.testing.assert_array_equal(out, alone)


def _layers(in_features: int, *names_and_rows: tuple[str, int]) -> list[Factor]:
    rng = np.random.default_rng(2)
    return [(random_layer(rng, name, rows, in_features), None) for name, rows in names_and_rows]


@pytest.mark.parametrize("name", QUANTISED)
def test_each_format_beside_another(device: Device, name: str) -> None:
    other = "q6_k" if name != "q6_k" else "q4_k"
    _check(device, _layers(3 * max(block_features(name), 256), (name, 48), (other, 16)))


@pytest.mark.parametrize(
    ("rows", "slices", "variant", "block"),
    [(2, 1, 2, 128), (3, 1, 4, 64), (7, 1, 8, 256), (1, 2, 2, 64), (4, 2, 8, 128)],
    ids=["two", "absent_row", "seven", "two_slices", "two_slices_of_four"],
)
def test_rows_and_slices(device: Device, rows: int, slices: int, variant: int, block: int) -> None:
    factors = _layers(768, ("q4_k", 40), ("q6_k", 8))
    _check(device, factors, rows=rows, slices=slices, variant=variant, block=block)


@pytest.mark.parametrize(("rows", "slices", "variant"), [(2, 1, 2), (3, 1, 4), (2, 2, 4)])
def test_rows_and_slices_of_formats_that_files_do_not_mix(
    device: Device, rows: int, slices: int, variant: int
) -> None:
    factors = _layers(768, ("iq3_s", 40), ("q6_k", 8), ("q4_1", 16))
    _check(device, factors, rows=rows, slices=slices, variant=variant)


def test_three_matrices_with_biases(device: Device) -> None:
    """Of which one has none, and two are of one format: those with a bias are apart from others."""
    factors = _layers(512, ("q5_k", 64), ("q5_k", 37), ("q8_0", 33))
    rng = np.random.default_rng(3)
    biased = [
        (layer, rng.standard_normal(layer.out_features).astype(np.float32)) for layer, _ in factors
    ]
    _check(device, [biased[0], factors[1], biased[2]])
