"""rf_gemm_int8_deferred_*, and the int8 products that complete the norms that it leaves for later.

Together they do what rf_gemm_int8_*, rf_add_rms_norm and another rf_gemm_int8_* do one after the
other, so those are the oracle, to the last bit; their own tests compare them with float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_hip.ops.norms import norm_threads
from tests.kernels.matrices.test_gemv_mixed import MIXED, QUANTISED
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.linear import (
    NOT_GATED,
    SILU,
    Layer,
    random_activation,
    random_layer,
)

EPS = 1e-3  # so large that it counts


@dataclass(frozen=True, slots=True)
class _Norms:
    """Norms of rows as products read them; with squares, they are still to be completed."""

    q: DeviceArray
    scale: DeviceArray
    squares: DeviceArray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A product of rows that is added to the residual and normed."""

    layer: Layer
    rows: int
    is_biased: bool = False
    block: int = 64  # of the product alone
    wide: bool = False
    ahead: bool = False  # weights come through LDS

    def made(self, device: Device, defers: bool) -> tuple[DeviceArray, _Norms]:
        """The sums and the norms, of one launch that leaves these for later or of two."""
        rng, rows, features = np.random.default_rng(4), self.rows, self.layer.out_features
        name = self.layer.weights[0].name
        quantised = quantise(random_activation(rng, rows, 32 * self.layer.quant_blocks), 1)
        old = rng.standard_normal((rows, features)).astype(np.float32)
        bias, weight = (
            device.upload(each) for each in rng.standard_normal((2, features), np.float32)
        )
        product = (
            device.upload(self.layer.packed()),
            device.upload(quantised.q),
            device.upload(quantised.scales),
            bias if self.is_biased else None,
        )
        residual = device.upload(old, "residual")
        q = device.empty((rows, features), np.int8, "q")
        scale = device.empty((rows, features // 32), SCALE_DTYPE, "scale")
        if defers:
            squares = device.empty((rows, features // 32), np.float32, "squares")
            kernel, side_by_side = f"rf_gemm_int8_deferred_{name}", 2
            if self.ahead:
                kernel, side_by_side = f"rf_gemm_int8_deferred_ahead_{name}", 1
            alone = device.max_threads(f"rf_gemm_int8_wide_{name}_r8") // 2
            device.launch(
                kernel,
                *(*product, rows, features, self.layer.quant_blocks),
                *(residual, weight, q, scale, squares),
                grid=features // 32,
                block=side_by_side * (alone if self.wide else self.block),
            )
            return residual, _Norms(q, scale, squares)
        out = device.empty(old.shape, np.float32)
        _launch(device, self.layer, (*product, out), rows, None, self.block, wide=self.wide)
        device.launch(
            "rf_add_rms_norm",
            *(out, residual, None, None, weight, None, None, q, scale, 0, features, EPS),
            grid=rows,
            block=norm_threads(features),
        )
        return residual, _Norms(q, scale, None)


def _launch(
    device: Device,
    layer: Layer,
    product: tuple[DeviceArray | None, ...],
    rows: int,
    squares: DeviceArray | None,
    block: int,
    *,
    wide: bool,
) -> None:
    name = layer.weights[0].name
    kernel = f"rf_gemm_int8_wide_{name}_r8" if wide else f"rf_gemm_int8_{name}"
    device.launch(
        kernel,
        *(*product, None, rows, 1, layer.out_features, layer.quant_blocks, layer.activation),
        *(squares, EPS),
        grid=layer.stored_rows // (32 if wide else 16),
        block=device.max_threads(kernel) if wide else block,
    )


def _read(device: Device, norms: _Norms, layer: Layer, *, wide: bool) -> npt.NDArray[np.float32]:
    """What a product makes of the norms."""
    rows = norms.q.get().shape[0]
    out = device.empty((rows, layer.out_features), np.float32, "out")
    product = device.upload(layer.packed()), norms.q, norms.scale, None, out
    _launch(device, layer, product, rows, norms.squares, 128, wide=wide)
    return out.get()


def _check(device: Device, name: str, total: _Sum, out_features: int, activation: int) -> None:
    rng = np.random.default_rng(6)
    layer = random_layer(rng, name, out_features, total.layer.out_features, activation)
    found = []
    for defers in (False, True):
        residual, norms = total.made(device, defers)
        made = [_read(device, norms, layer, wide=wide) for wide in (False, True)]
        found.append([residual.get().tobytes(), norms.q.get().tobytes(), *map(bytes, made)])
    assert found[1] == found[0]


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_who_reads_norms_completes_them(device: Device, name: str, rows: int) -> None:
    layer = random_layer(np.random.default_rng(5), name, 256, 512)
    _check(device, name, _Sum(layer=layer, rows=rows), 40, NOT_GATED)


@pytest.mark.parametrize("wide", [False, True], ids=["waves_of_a_tile", "waves_side_by_side"])
def test_a_bias_is_added_first(device: Device, wide: bool) -> None:
    layer = random_layer(np.random.default_rng(5), "q8_0", 1056, 768)
    total = _Sum(layer=layer, rows=5, is_biased=True, block=128, wide=wide)
    _check(device, "q8_0", total, 72, SILU)


@pytest.mark.parametrize("quant_blocks", [8, 40, 72])
def test_as_many_waves_go_along_k(device: Device, quant_blocks: int) -> None:
    """Those that would reach beyond the last chunk begin earlier, and count nothing twice."""
    layer = random_layer(np.random.default_rng(5), "q4_k", 256, 32 * quant_blocks)
    _check(device, "q6_k", _Sum(layer=layer, rows=7, block=256), 32, SILU)


def test_rows_of_more_sums_of_squares_than_a_wave_has_lanes(device: Device) -> None:
    layer = random_layer(np.random.default_rng(5), "q4_k", 4352, 256)
    _check(device, "q4_k", _Sum(layer=layer, rows=6), 32, NOT_GATED)


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("steps", [1, 3, 8, 42], ids=lambda steps: f"{steps}_steps")
@pytest.mark.parametrize("block", [64, 256])
def test_weights_come_through_lds(hopper: Device, name: str, steps: int, block: int) -> None:
    """Of fewer steps than waves, and of so many that places in LDS are used again."""
    layer = random_layer(np.random.default_rng(5), name, 512, 256 * steps)
    total = _Sum(layer=layer, rows=7, is_biased=True, block=block, ahead=True)
    _check(hopper, name, total, 32, SILU)


@pytest.mark.parametrize("rows", [1, 8])
def test_products_with_large_matrices_complete_norms(hopper: Device, rows: int) -> None:
    rng, kernel = np.random.default_rng(6), "rf_gemm_int8_stream_q4_k"
    total = _Sum(layer=random_layer(rng, "q8_0", 768, 512), rows=rows)
    layer = random_layer(rng, "q4_k", 72, 768, SILU)
    found = []
    for defers in (False, True):
        _, norms = total.made(hopper, defers)
        out = hopper.empty((rows, layer.out_features), np.float32, "out")
        hopper.launch(
            kernel,
            *(hopper.upload(layer.packed()), norms.q, norms.scale, None, out, None, rows, 1),
            *(layer.out_features, layer.quant_blocks, layer.activation, norms.squares, EPS),
            grid=2,
            block=hopper.max_threads(kernel),
        )
        found.append(out.get().tobytes())
    assert found[1] == found[0]
