"""Norms by root mean square (rf_rms_norm and others) against the reference in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_reference import ops
from tests.support.launches.kernels import Device, check
from tests.support.operands.activations import SCALE_DTYPE as ACT_SCALE
from tests.support.operands.activations import QuantisedActivation
from tests.support.operands.gemm import add_up
from tests.support.operands.norms import ALL_SHAPES, random_rows

EPS = 1e-5

Array = npt.NDArray[Any]


def expected_norm(x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]) -> Array:
    return ops.rms_norm(x.astype(np.float64), weight.astype(np.float64), EPS)


@ALL_SHAPES
def test_norm_in_float32_and_float16(device: Device, rows: int, dim: int, threads: int) -> None:
    x, weight = random_rows(rows, dim), random_rows(1, dim, seed=2)[0]
    f32, f16 = device.empty((rows, dim), np.float32), device.empty((rows, dim), np.float16)
    if rows:
        args = (device.upload(x), device.upload(weight), f32, f16, None, None, 0, dim, dim, EPS)
        device.launch("rf_rms_norm", *args, grid=rows, block=threads)
    expected = expected_norm(x, weight)
    check(f32.get(), expected, rtol=2e-6, inputs={"x": x})
    check(f16.get(), expected, rtol=6e-4, atol=1e-7, inputs={"x": x})


@ALL_SHAPES
def test_residual_is_added_before_the_norm(
    device: Device, rows: int, dim: int, threads: int
) -> None:
    delta, old = random_rows(rows, dim), random_rows(rows, dim, seed=3)
    weight = random_rows(1, dim, seed=2)[0]
    residual, f32 = device.upload(old), device.empty((rows, dim), np.float32)
    if rows:
        weights = None, None, device.upload(weight)
        args = (device.upload(delta), residual, *weights, f32, None, None, None, 0)
        device.launch("rf_add_rms_norm", *args, dim, EPS, grid=rows, block=threads)
    check(residual.get(), delta + old)
    check(f32.get(), expected_norm(delta + old, weight), rtol=2e-6)


def test_rows_are_given_and_added_as_they_are(device: Device) -> None:
    delta, old = random_rows(3, 96), random_rows(3, 96, seed=3)
    residual = device.upload(old)
    alone, total = (device.empty((3, 96), np.float32) for _ in range(2))
    halves = device.empty((3, 96), np.float16)
    x, outputs = device.upload(delta), (total, None, None, None, 0)
    device.launch("rf_give_rows", x, alone, halves, None, None, 0, 96, grid=3, block=64)
    device.launch("rf_add_rows", x, residual, None, *outputs, 96, EPS, grid=3, block=64)
    np.testing.assert_array_equal(alone.get(), delta)
    np.testing.assert_array_equal(halves.get(), delta.astype(np.float16))
    np.testing.assert_array_equal(residual.get(), delta + old)
    np.testing.assert_array_equal(total.get(), delta + old)


@ALL_SHAPES
@pytest.mark.parametrize("normed", [False, True])
def test_what_is_added_may_be_normed(
    device: Device, rows: int, dim: int, threads: int, normed: bool
) -> None:
    """In one launch as in two, to the last bit."""
    delta, old = random_rows(rows, dim), random_rows(rows, dim, seed=3)
    post, weight = (device.upload(random_rows(1, dim, seed=seed)[0]) for seed in (2, 4))
    x, between = device.upload(delta), device.empty((rows, dim), np.float32)
    if rows:
        args = (x, post, between, None, None, None, 0, dim, dim, EPS)
        device.launch("rf_rms_norm", *args, grid=rows, block=threads)
    found = []
    for added, post_norm in ((between, None), (x, post)):
        total, f32 = device.upload(old), device.empty((rows, dim), np.float32)
        outputs = f32, None, None, None, 0, dim, EPS
        kernel, *norm = ("rf_add_rms_norm", None, weight) if normed else ("rf_add_rows",)
        if rows:
            sums = added, total, post_norm
            device.launch(kernel, *sums, *norm, *outputs, grid=rows, block=threads)
        found.append((total.get().tobytes(), f32.get().tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("splits", [2, 4, 7])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize(
    ("rows", "dim", "threads"),
    [(1, 32, 64), (3, 576, 192), (2, 1024, 64), (9, 384, 128)],
    ids=["part_of_one_wave", "one_group_a_thread", "four_groups_a_thread", "many_rows"],
)
def test_splits_are_added_up_as_in_launches_of_their_own(
    device: Device, rows: int, dim: int, threads: int, with_bias: bool, splits: int
) -> None:
    """To the last bit: the sum, the norm of it that is added, and the norm of the whole."""
    parts, old = random_rows(splits * rows, dim), random_rows(rows, dim, seed=3)
    post, weight, bias = (device.upload(random_rows(1, dim, seed=seed)[0]) for seed in (2, 4, 5))
    partial, offset = device.upload(parts.reshape(splits, rows, dim)), bias if with_bias else None
    delta = device.empty((rows, dim), np.float32)
    add_up(device, partial, ((offset, delta, None),), (dim,))
    scale = device.upload(np.array([0.37], np.float32))
    for post_norm, factor in ((None, None), (post, scale)):
        found = []
        for apart in (True, False):
            residual, f32 = device.upload(old), device.empty((rows, dim), np.float32)
            f16 = device.empty((rows, dim), np.float16)
            outputs = post_norm, factor, weight, f32, f16, None, None, 0
            if apart:
                args: tuple[Any, ...] = (delta, residual, *outputs, dim, EPS)
                device.launch("rf_add_rms_norm", *args, grid=rows, block=threads)
            else:
                args = (partial, offset, residual, *outputs, splits, dim, EPS)
                device.launch("rf_add_splits_rms_norm", *args, grid=rows, block=threads)
            found.append([each.get().tobytes() for each in (residual, f32, f16)])
        assert found[0] == found[1]


@ALL_SHAPES
def test_sums_may_be_scaled(device: Device, rows: int, dim: int, threads: int) -> None:
    delta, old = random_rows(rows, dim), random_rows(rows, dim, seed=3)
    weight, scale = random_rows(1, dim, seed=2)[0], np.array([0.37], np.float32)
    residual, f32 = device.upload(old), device.empty((rows, dim), np.float32)
    if rows:
        given = None, device.upload(scale), device.upload(weight)
        args = (device.upload(delta), residual, *given, f32, None, None, None, 0)
        device.launch("rf_add_rms_norm", *args, dim, EPS, grid=rows, block=threads)
    total = (delta + old) * scale
    check(residual.get(), total, rtol=2e-7)
    check(f32.get(), expected_norm(total, weight), rtol=2e-6)


@pytest.mark.parametrize(
    ("kernel", "dtype", "rtol", "atol"),
    [("rf_rms_norm_columns", np.float32, 2e-6, 0), ("rf_rms_norm_half", np.float16, 6e-4, 6e-8)],
    ids=["float32", "halves"],
)
@ALL_SHAPES
def test_columns_of_a_wider_matrix_are_normalised_in_place(
    device: Device,
    rows: int,
    dim: int,
    threads: int,
    kernel: str,
    dtype: type[np.floating[Any]],
    rtol: float,
    atol: float,
) -> None:
    whole = random_rows(rows, 2 * dim + 4).astype(dtype)
    weight, there = random_rows(1, dim, seed=2)[0], device.upload(whole)
    if rows:
        others = (None, None, 0, 0) if kernel == "rf_rms_norm_columns" else ()
        args = (there.part(dim), device.upload(weight), 2 * dim + 4, dim, *others, EPS)
        device.launch(kernel, *args, grid=rows, block=threads)
    found, own = there.get(), slice(dim, 2 * dim)
    check(found[:, own], expected_norm(whole[:, own], weight), rtol=rtol, atol=atol)
    np.testing.assert_array_equal(np.delete(found, own, 1), np.delete(whole, own, 1))


def test_columns_may_be_normalised_beside_others(device: Device) -> None:
    """Queries and keys: of several sizes, in one matrix."""
    whole, weights = random_rows(3, 388), random_rows(1, 384, seed=2)[0]
    there, first, second = device.upload(whole), weights[:256], weights[256:]
    device.launch(
        "rf_rms_norm_columns",
        *(there, device.upload(first), 388, 256),
        *(there.part(256), device.upload(second), 388, 128, EPS),
        grid=(3, 2),
        block=64,
    )
    wanted = expected_norm(whole[:, :256], first), expected_norm(whole[:, 256:384], second)
    check(there.get()[:, :384], np.hstack(wanted), rtol=2e-6)
    np.testing.assert_array_equal(there.get()[:, 384:], whole[:, 384:])


@pytest.mark.parametrize(
    ("rows", "dim", "threads"), [(1, 32, 64), (3, 576, 64), (2, 1024, 256)], ids=str
)
def test_int8_blocks(device: Device, rows: int, dim: int, threads: int) -> None:
    x, weight = random_rows(rows, dim), random_rows(1, dim, seed=2)[0]
    x[0, :32] = 0  # a block without a largest value
    q = device.empty((rows, dim), np.int8)
    scale = device.empty((rows, dim // 32), ACT_SCALE)
    args = (device.upload(x), device.upload(weight), None, None, q, scale, 0, dim, dim, EPS)
    device.launch("rf_rms_norm", *args, grid=rows, block=threads)

    blocks = q.get().reshape(rows, dim // 32, 32).astype(np.float64)
    expected = expected_norm(x, weight).reshape(blocks.shape)
    info = scale.get()
    check(info["scale"], np.abs(expected).max(axis=-1) / 127, rtol=3e-6)
    scales = info["scale"].astype(np.float64)[..., None]
    check(blocks * scales, expected, atol=float(scales.max()) * 0.501)
    assert (np.abs(blocks * scales - expected) <= scales * 0.501).all()
    np.testing.assert_array_equal(info["sum_low"], blocks[..., :16].sum(axis=-1))
    np.testing.assert_array_equal(info["sum_high"], blocks[..., 16:].sum(axis=-1))


@pytest.mark.parametrize("adds", [False, True], ids=["norm", "sum_and_norm"])
def test_int8_blocks_with_two_slices(device: Device, adds: bool) -> None:
    x, weight = random_rows(3, 576), random_rows(1, 576, seed=2)[0]
    q = device.empty((2, 3, 576), np.int8)
    scale = device.empty((2, 3, 18), ACT_SCALE)
    residual = (device.upload(np.zeros_like(x)), None, None) if adds else ()
    args = (device.upload(x), *residual, device.upload(weight), None, None, q, scale, x.size)
    sizes = (576,) if adds else (576, 576)
    device.launch(f"rf_{'add_' * adds}rms_norm", *args, *sizes, EPS, grid=3, block=64)
    expected = expected_norm(x, weight)
    values = QuantisedActivation(q.get(), scale.get()).values()
    check(values, expected, rtol=3e-6, atol=float(np.abs(expected).max()) * 0.51 / 127 / 254)


def test_rows_may_be_columns_of_a_wider_matrix(device: Device) -> None:
    wide, weight = random_rows(3, 100), random_rows(1, 64, seed=2)[0]
    f32 = device.empty((3, 64), np.float32)
    args = (device.upload(wide), device.upload(weight), f32, None, None, None, 0, 100, 64, EPS)
    device.launch("rf_rms_norm", *args, grid=3, block=64)
    check(f32.get(), expected_norm(wide[:, :64], weight), rtol=2e-6)


def test_all_outputs_at_once(device: Device) -> None:
    x, weight = random_rows(2, 128), random_rows(1, 128, seed=2)[0]
    f32, f16 = device.empty(x.shape, np.float32), device.empty(x.shape, np.float16)
    q, scale = device.empty(x.shape, np.int8), device.empty((2, 4), ACT_SCALE)
    args = (device.upload(x), device.upload(weight), f32, f16, q, scale, 0, 128, 128, EPS)
    device.launch("rf_rms_norm", *args, grid=2, block=64)
    check(f16.get(), f32.get().astype(np.float16).astype(np.float64))
    scales = np.repeat(scale.get()["scale"], 32, axis=1).astype(np.float64)
    check(q.get() * scales, f32.get().astype(np.float64), atol=float(scales.max()) * 0.501)


def test_values_beyond_float16_saturate(device: Device) -> None:
    x, weight = np.ones((1, 32), np.float32), np.full(32, 1e6, np.float32)
    f16 = device.empty(x.shape, np.float16)
    args = (device.upload(x), device.upload(weight), None, f16, None, None, 0, 32, 32, EPS)
    device.launch("rf_rms_norm", *args, grid=1, block=64)
    check(f16.get(), np.full((1, 32), 65504.0))


def test_a_nan_stays_in_its_row(device: Device) -> None:
    x, weight = random_rows(3, 64), np.ones(64, np.float32)
    x[1, 7] = np.nan
    f32 = device.empty(x.shape, np.float32)
    args = (device.upload(x), device.upload(weight), f32, None, None, None, 0, 64, 64, EPS)
    device.launch("rf_rms_norm", *args, grid=3, block=64)
    assert np.isnan(f32.get()).all(axis=1).tolist() == [False, True, False]
