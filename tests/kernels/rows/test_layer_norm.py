"""rf_layer_norm, rf_add_layer_norm and rf_layer_norm_half against the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check
from tests.support.operands.norms import ALL_SHAPES, random_rows

EPS = 1e-12

Array = npt.NDArray[Any]


def expected_norm(x: Array, weight: Array, bias: Array) -> Array:
    return ops.layer_norm(x.astype(np.float64), weight, bias, EPS)


@ALL_SHAPES
def test_norm_in_float32_and_float16(device: Device, rows: int, dim: int, threads: int) -> None:
    x = random_rows(rows, dim) + 3
    weight, bias = random_rows(2, dim, seed=2)
    f32, f16 = device.empty((rows, dim), np.float32), device.empty((rows, dim), np.float16)
    if rows:
        inputs = [device.upload(each) for each in (x, weight, bias)]
        device.launch("rf_layer_norm", *inputs, f32, f16, dim, EPS, grid=rows, block=threads)
    expected = expected_norm(x, weight, bias)
    check(f32.get(), expected, rtol=2e-6, atol=2e-6, inputs={"x": x})
    check(f16.get(), expected, rtol=6e-4, atol=2e-6, inputs={"x": x})


@ALL_SHAPES
def test_the_sum_is_normalised_in_the_place_of_the_residual(
    device: Device, rows: int, dim: int, threads: int
) -> None:
    delta, old = random_rows(rows, dim), random_rows(rows, dim, seed=3)
    weight, bias = random_rows(2, dim, seed=2)
    residual = device.upload(old)
    if rows:
        args = (device.upload(delta), residual, device.upload(weight), device.upload(bias))
        outputs = (None, residual, None)
        device.launch("rf_add_layer_norm", *args, *outputs, dim, EPS, grid=rows, block=threads)
    check(residual.get(), expected_norm(delta + old, weight, bias), rtol=3e-6, atol=3e-6)


@ALL_SHAPES
def test_the_sum_may_be_kept_in_the_place_of_the_residual(
    device: Device, rows: int, dim: int, threads: int
) -> None:
    delta, old = random_rows(rows, dim), random_rows(rows, dim, seed=3)
    weight = random_rows(1, dim, seed=2)[0]
    residual, f16 = device.upload(old), device.empty((rows, dim), np.float16)
    if rows:
        args = (device.upload(delta), residual, device.upload(weight), None)
        outputs = (residual, None, f16)
        device.launch("rf_add_layer_norm", *args, *outputs, dim, EPS, grid=rows, block=threads)
    np.testing.assert_array_equal(residual.get(), delta + old)
    expected = expected_norm(delta + old, weight, np.zeros(dim))
    check(f16.get(), expected, rtol=6e-4, atol=3e-6)


def test_there_may_be_no_bias(device: Device) -> None:
    x, weight = random_rows(3, 96), random_rows(1, 96, seed=2)[0]
    f32 = device.empty(x.shape, np.float32)
    inputs = (device.upload(x), device.upload(weight), None)
    device.launch("rf_layer_norm", *inputs, f32, None, 96, EPS, grid=3, block=64)
    check(f32.get(), expected_norm(x, weight, np.zeros(96)), rtol=2e-6, atol=2e-6)


def test_the_sum_may_be_normalised_in_the_place_of_the_delta(device: Device) -> None:
    delta, old = random_rows(3, 576), random_rows(3, 576, seed=3)
    weight, bias = random_rows(2, 576, seed=2)
    there, residual = device.upload(delta), device.upload(old)
    args = (there, residual, device.upload(weight), device.upload(bias), None, there, None)
    device.launch("rf_add_layer_norm", *args, 576, EPS, grid=3, block=192)
    check(there.get(), expected_norm(delta + old, weight, bias), rtol=3e-6, atol=3e-6)
    np.testing.assert_array_equal(residual.get(), old)


@ALL_SHAPES
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no_bias"])
def test_halves_are_normalised_in_place_among_others(
    device: Device, rows: int, dim: int, threads: int, has_bias: bool
) -> None:
    whole = (random_rows(rows, 2 * dim + 4) + 1).astype(np.float16)
    weight, bias = random_rows(2, dim, seed=2)
    there = device.upload(whole)
    if rows:
        args = (device.upload(weight), device.upload(bias) if has_bias else None)
        sizes = (2 * dim + 4, dim, EPS)
        device.launch(
            "rf_layer_norm_half", there.part(dim), *args, *sizes, grid=rows, block=threads
        )
    found, own = there.get(), slice(dim, 2 * dim)
    expected = expected_norm(whole[:, own], weight, bias if has_bias else np.zeros(dim))
    check(found[:, own], expected, rtol=6e-4, atol=1e-5)
    np.testing.assert_array_equal(np.delete(found, own, 1), np.delete(whole, own, 1))


def test_a_mean_far_from_zero_costs_no_precision(device: Device) -> None:
    x = random_rows(2, 128) + 4096
    ones, zeros = np.ones(128, np.float32), np.zeros(128, np.float32)
    f32 = device.empty(x.shape, np.float32)
    inputs = [device.upload(each) for each in (x, ones, zeros)]
    device.launch("rf_layer_norm", *inputs, f32, None, 128, EPS, grid=2, block=64)
    # What is lost is in the input: its spacing is 5e-4 there.
    check(f32.get(), expected_norm(x, ones, zeros), atol=1e-3)


def test_equal_values_give_the_bias(device: Device) -> None:
    x, weight = np.full((1, 64), 7.0, np.float32), np.ones(64, np.float32)
    bias = random_rows(1, 64)[0]
    f32 = device.empty(x.shape, np.float32)
    inputs = [device.upload(each) for each in (x, weight, bias)]
    device.launch("rf_layer_norm", *inputs, f32, None, 64, EPS, grid=1, block=64)
    np.testing.assert_array_equal(f32.get()[0], bias)


def test_a_nan_stays_in_its_row(device: Device) -> None:
    x, weight = random_rows(3, 64), np.ones(64, np.float32)
    x[1, 7] = np.nan
    f32 = device.empty(x.shape, np.float32)
    inputs = [device.upload(each) for each in (x, weight, weight)]
    device.launch("rf_layer_norm", *inputs, f32, None, 64, EPS, grid=3, block=64)
    assert np.isnan(f32.get()).all(axis=1).tolist() == [False, True, False]
