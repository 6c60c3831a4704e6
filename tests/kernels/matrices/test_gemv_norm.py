"""rf_gemv_norm_*: a matrix product, and by its last block the sum with the residual and its norm.

It does what rf_gemv_* and rf_add_rms_norm do one after the other, so those are the oracle, to the
last bit; test_gemv.py and test_rms_norm.py compare them with float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_hip.ops.norms import norm_threads
from rocmforge_hip.weights.formats import FORMAT_NUMBERS
from tests.kernels.matrices.test_gemv_mixed import QUANTISED, end_for
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE, quantise
from tests.support.operands.linear import Layer, random_activation, random_layer

Float32 = npt.NDArray[np.float32]
EPS = 1e-5


class _Case:
    """A product and the arrays around it."""

    def __init__(
        self,
        device: Device,
        layer: Layer,
        rows: int,
        slices: int,
        *,
        biased: bool,
        post: bool,
        scaled: bool,
        normed: bool,
    ):
        rng = np.random.default_rng(3)
        x = random_activation(rng, rows, layer.quant_blocks * 32)
        features = layer.out_features
        self.is_quantised = layer.weights[0].name in QUANTISED
        quantised = quantise(x, slices)
        self.device, self.layer, self.rows, self.slices = device, layer, rows, slices
        self.shape = rows, features
        self.old = rng.standard_normal(self.shape).astype(np.float32)
        bias, norm, post_norm = rng.standard_normal((3, features)).astype(np.float32)
        scale = device.upload(np.array([0.37], np.float32)) if scaled else None
        self.of_sum = scale, device.upload(norm) if normed else None
        self.post_norm = device.upload(post_norm) if post else None
        of_x = (quantised.q, quantised.scales) if self.is_quantised else (x,)
        self.product = (
            device.upload(layer.packed()),
            *(device.upload(each) for each in of_x),
            device.upload(bias) if biased else None,
        )
        of_rows = (rows, slices) if self.is_quantised else (rows,)
        self.counts = *of_rows, features, layer.quant_blocks

    def results(self, variant: int, block: int, arrived: DeviceArray | None) -> list[bytes]:
        """The sum and all forms of its norm: of one launch if there is a counter, else of two."""
        device, (rows, features), name = self.device, self.shape, self.layer.weights[0].name
        threads, grid = norm_threads(features), self.layer.stored_rows // 16
        out, residual = device.empty(self.shape, np.float32), device.upload(self.old)
        forms = (
            device.empty(self.shape, np.float32),
            device.empty(self.shape, np.float16),
            device.empty((self.slices, *self.shape), np.int8),
            device.empty((self.slices, rows, features // 32), SCALE_DTYPE),
        )
        outputs = *self.of_sum, *forms, (self.slices - 1) * rows * features
        if arrived is None:
            kernel = f"rf_gemv_{name}_r{variant}"
            device.launch(kernel, *self.product, out, *self.counts, 0, grid=grid, block=block)
            if self.post_norm is not None:
                product, out = out, device.empty(self.shape, np.float32)
                nothing = None, None, None, 0
                device.launch(
                    "rf_rms_norm",
                    *(product, self.post_norm, out, *nothing, features, features, EPS),
                    grid=rows,
                    block=threads,
                )
            sums = out, residual
            if self.of_sum[1] is None:
                arguments = (*sums, None, *outputs[2:], features, EPS)
                device.launch("rf_add_rows", *arguments, grid=rows, block=threads)
            else:
                of_sum = (*sums, None, *outputs, features, EPS)
                device.launch("rf_add_rms_norm", *of_sum, grid=rows, block=threads)
        else:
            kernel = f"rf_gemv_norm_r{variant}{end_for(name)}"
            device.launch(
                kernel if self.is_quantised else f"rf_gemv_norm_{name}_r{variant}",
                *self.product,
                out,
                *self.counts,
                *((FORMAT_NUMBERS[name],) if self.is_quantised else ()),
                arrived,
                residual,
                self.post_norm,
                *outputs,
                device.empty((rows, features // 32), np.float32),
                EPS,
                grid=grid,
                block=block,
            )
        return [array.get().tobytes() for array in (residual, *forms)]


def _check(
    device: Device,
    name: str,
    features: int,
    in_features: int,
    *,
    rows: int = 1,
    slices: int = 1,
    variant: int = 1,
    block: int = 64,
    biased: bool = False,
    post: bool = False,
    scaled: bool = False,
    normed: bool = True,
) -> None:
    layer = random_layer(np.random.default_rng(4), name, features, in_features)
    case = _Case(
        device, layer, rows, slices, biased=biased, post=post, scaled=scaled, normed=normed
    )
    apart = case.results(variant, block, None)
    arrived = device.upload(np.zeros(1, np.uint32))
    for _ in range(2):  # the second launch finds the counter as the first did
        assert case.results(variant, block, arrived) == apart
    assert arrived.get() == [0]


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", *QUANTISED])
def test_the_last_block_norms_the_sum(device: Device, name: str) -> None:
    _check(device, name, 96, 256)


@pytest.mark.parametrize(
    ("name", "features", "rows", "slices", "variant", "block"),
    [
        ("q8_0", 1056, 2, 1, 2, 64),  # waves take several parts
        ("q8_0", 64, 3, 1, 4, 128),
        ("q8_0", 96, 7, 1, 8, 64),
        ("q8_0", 64, 1, 2, 2, 64),
        ("q8_0", 96, 2, 2, 4, 128),
        ("q5_1", 1056, 2, 1, 2, 64),
        ("q5_1", 64, 3, 1, 4, 128),
        ("q5_1", 96, 2, 2, 4, 128),
        ("f32", 1056, 2, 1, 2, 64),
        ("f16", 64, 3, 1, 4, 128),
        ("bf16", 96, 7, 1, 8, 64),
    ],
)
def test_rows_and_slices(
    device: Device, name: str, features: int, rows: int, slices: int, variant: int, block: int
) -> None:
    _check(
        device,
        name,
        features,
        64,
        rows=rows,
        slices=slices,
        variant=variant,
        block=block,
        biased=True,
    )


def test_rows_of_more_than_the_threads_of_a_block_hold(device: Device) -> None:
    _check(device, "q8_0", 4384, 32, block=256)


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_added_may_be_normed_first(device: Device, rows: int) -> None:
    _check(device, "q4_k", 288, 256, rows=rows, variant=4, post=True)


def test_the_sum_may_be_scaled(device: Device) -> None:
    _check(device, "q4_k", 288, 256, rows=3, variant=4, post=True, scaled=True)


def test_the_sum_may_be_given_as_it_is(device: Device) -> None:
    _check(device, "q4_k", 288, 256, rows=3, variant=4, post=True, normed=False)
