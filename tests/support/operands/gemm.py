"""What tests of rf_gemm_* share: the launch, and the comparison with float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.support.launches.kernels import Device, DeviceArray, check
from tests.support.operands.linear import Layer, random_activation, random_layer, worst_error

Float16 = npt.NDArray[np.float16]
Float32 = npt.NDArray[np.float32]

ROUNDING = 2.0**-11
"""Weights and their scales are rounded to halves, with 11 significant bits."""
FEW = (16, 32, 64)
"""The most rows of rf_gemm_*_r{16,32,64}, which take no groups of rows."""
PAIRED = 128
"""The most rows of rf_gemm_*_r128, which takes none either, and is there for some types."""
WIDE = (256, 272)
"""The rows of a tile of rf_gemm_wide_*, which take none either."""


def _kernel(name: str, tile: int, *, grouped: bool) -> str:
    if grouped:
        return f"rf_gemm_{name}_m{tile}"
    return f"rf_gemm_wide_{name}_r{tile}" if tile in WIDE else f"rf_gemm_{name}_r{tile}"


def gemm(
    device: Device,
    layer: Layer,
    x: Float16,
    *,
    tile: int = 32,
    grouped: bool = True,
    splits: int = 1,
    biases: tuple[Float32, ...] = (),
    out: DeviceArray | None = None,
    out_half: DeviceArray | None = None,
) -> None:
    """Launches the kernel with tiles of `tile` rows, and the sum of what `splits` blocks made.

    Unless `grouped`, the kernel takes no groups, and is that for few rows or in wide tiles.
    """
    rows = x.shape[0]
    partial = None
    split_quant_blocks = layer.quant_blocks
    if splits > 1:
        split_quant_blocks = -(-layer.quant_blocks // (8 * splits)) * 8
        partial = device.empty((splits, rows, layer.stored_rows), np.float32, "partial")
    bias, up_bias = (*(device.upload(each, "bias") for each in biases), None, None)[:2]
    results = (bias, up_bias, out, out_half, partial)
    weight, halves = device.upload(layer.packed(), "weight"), device.upload(x, "x")
    kernel = _kernel(layer.weights[0].name, tile, grouped=grouped)
    ungrouped_arrays = (weight, halves, *results)
    grouped_arrays = (weight, None, halves, None, None, *results, 0)
    device.launch(
        kernel,
        *(grouped_arrays if grouped else ungrouped_arrays),
        rows,
        layer.out_features,
        layer.quant_blocks,
        layer.activation,
        split_quant_blocks,
        grid=(-(-rows // tile), -(-layer.stored_rows // 128), splits),
        block=device.max_threads(kernel),
    )
    if partial is not None:
        products = ((bias, out, out_half),)
        add_up(device, partial, products, (layer.out_features,), layer.activation)


Product = tuple[DeviceArray | None, DeviceArray | None, DeviceArray | None]
"""A bias and the places of a result in float32 and float16, or None for each."""


def add_up(
    device: Device,
    partial: DeviceArray,
    products: tuple[Product, ...],
    features: tuple[int, ...],
    activation: int = 0,
) -> None:
    """Launches the sum of what splits left, [splits, rows, stored rows], of one product or two."""
    splits, rows, _ = partial.shape
    no_second = ((None, None, None),) if len(products) == 1 else ()
    pointers = (pointer for product in (*products, *no_second) for pointer in product)
    both = (*features, 0)[:2]
    grid = (-(-sum(features) // 256), rows)
    arguments = (partial, *pointers, splits, *both, activation)
    device.launch("rf_gemm_sum", *arguments, grid=grid, block=256)


def check_gemm(
    device: Device,
    layer: Layer,
    x: Float32,
    *,
    tile: int = 32,
    grouped: bool = True,
    splits: int = 1,
) -> None:
    """Compares the product with that of float64."""
    halves = x.astype(np.float16)
    out = device.empty((x.shape[0], layer.out_features), np.float32, "out")
    gemm(device, layer, halves, tile=tile, grouped=grouped, splits=splits, out=out)
    seen = halves.astype(np.float64)
    assert worst_error(out.get(), layer.apply(seen), layer.magnitude(seen)) < ROUNDING


def check_bias(
    device: Device,
    rng: np.random.Generator,
    name: str,
    rows: int,
    out_features: int,
    *,
    tile: int = 32,
    grouped: bool = True,
    splits: int = 1,
) -> None:
    """Compares the product with a bias of a layer of such a type, in float32."""
    layer = random_layer(rng, name, out_features, 512)
    x = random_activation(rng, rows, 512).astype(np.float16)
    bias = rng.standard_normal(out_features).astype(np.float32)
    out = device.empty((rows, out_features), np.float32, "out")
    gemm(device, layer, x, tile=tile, grouped=grouped, splits=splits, biases=(bias,), out=out)
    check(out.get(), layer.apply(x.astype(np.float64)) + bias, rtol=1e-3, atol=2e-2)


def check_finite_halves(
    device: Device,
    rng: np.random.Generator,
    name: str,
    rows: int,
    *,
    tile: int = 32,
    grouped: bool = True,
    splits: int = 1,
) -> None:
    """Compares halves with results that are cut off at the largest of them."""
    layer = random_layer(rng, name, 32, 512)
    x = random_activation(rng, rows, 512).astype(np.float16)
    bias = np.zeros(32, np.float32)
    bias[:2] = 1e6, -1e6
    out = device.empty((rows, 32), np.float16, "out")
    gemm(device, layer, x, tile=tile, grouped=grouped, splits=splits, biases=(bias,), out_half=out)
    expected = np.clip(layer.apply(x.astype(np.float64)) + bias, -65504, 65504)
    check(out.get(), expected, rtol=1e-3, atol=1e-2)
