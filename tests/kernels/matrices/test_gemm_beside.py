"""Few rows times two matrices, the second one in Q6_K, in one launch: rf_gemm_beside_q6_k_*.

A block has 128 stored rows of one of them and a part of K, in steps of 256. What blocks leave is
added up for both at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.checkpoint.formats import FORMATS
from tests.support.launches.kernels import Device, check
from tests.support.operands.gemm import FEW, ROUNDING, Float16, Float32, add_up
from tests.support.operands.linear import Layer, random_activation, random_layer, worst_error

NAMES = [name for name, each in FORMATS.items() if each.is_beside_q6_k]


@dataclass(frozen=True, slots=True)
class Both:
    """Two layers, and what is multiplied with them."""

    first: Layer
    second: Layer
    x: Float16

    @classmethod
    def random(cls, name: str, rows: int, features: tuple[int, int], in_features: int) -> Both:
        """Returns layers of that type and of Q6_K, with so many features."""
        rng = np.random.default_rng(rows)
        first = random_layer(rng, name, features[0], in_features)
        second = random_layer(rng, "q6_k", features[1], in_features)
        x = random_activation(rng, rows, in_features).astype(np.float16)
        return cls(first, second, x)

    def multiply(
        self,
        device: Device,
        most: int,
        splits: int,
        biases: tuple[Float32 | None, Float32 | None] = (None, None),
        dtype: type[np.floating] = np.float32,
    ) -> tuple[npt.NDArray[np.floating], ...]:
        """Returns both products, by the kernel for up to `most` rows."""
        layers, rows = (self.first, self.second), self.x.shape[0]
        features = [layer.out_features for layer in layers]
        partial = device.empty((splits, rows, sum(features)), np.float32, "partial")
        quant_blocks = self.first.quant_blocks
        tiles = sum(-(-each // 128) for each in features)
        kernel = f"rf_gemm_beside_q6_k_{self.first.weights[0].name}_r{most}"
        device.launch(
            kernel,
            *(device.upload(layer.packed(), "weight") for layer in layers),
            device.upload(self.x, "x"),
            partial,
            rows,
            *features,
            quant_blocks,
            -(-quant_blocks // (8 * splits)) * 8,
            grid=(1, tiles, splits),
            block=device.max_threads(kernel),
        )
        outs = [device.empty((rows, each), dtype, "out") for each in features]
        products = []
        for out, bias in zip(outs, biases, strict=True):
            forms = (None, out) if dtype == np.float16 else (out, None)
            products.append((None if bias is None else device.upload(bias, "bias"), *forms))
        add_up(device, partial, tuple(products), tuple(features))
        return tuple(out.get() for out in outs)

    def check(self, found: tuple[npt.NDArray[np.floating], ...]) -> None:
        """Compares the products with those of float64."""
        seen = self.x.astype(np.float64)
        for layer, product in zip((self.first, self.second), found, strict=True):
            expected, magnitude = layer.apply(seen), layer.magnitude(seen)
            assert worst_error(product.astype(np.float32), expected, magnitude) < ROUNDING


@pytest.mark.parametrize(
    ("most", "rows"), [(16, 1), (16, 16), (32, 17), (32, 32), (64, 33), (64, 64)]
)
@pytest.mark.parametrize("name", NAMES)
def test_multiplies_with_both(hopper: Device, name: str, most: int, rows: int) -> None:
    both = Both.random(name, rows, (96, 64), 512)
    both.check(both.multiply(hopper, most, splits=2))


@pytest.mark.parametrize("features", [(32, 32), (128, 32), (160, 128), (64, 288), (256, 160)])
def test_blocks_have_rows_of_one_matrix(hopper: Device, features: tuple[int, int]) -> None:
    both = Both.random("q4_k", 11, features, 512)
    both.check(both.multiply(hopper, 16, splits=2))


@pytest.mark.parametrize(("splits", "in_features"), [(1, 256), (2, 768), (3, 1280), (5, 1280)])
@pytest.mark.parametrize("most", FEW)
def test_blocks_share_k(hopper: Device, most: int, splits: int, in_features: int) -> None:
    both = Both.random("q5_k", min(most, 20), (96, 96), in_features)
    both.check(both.multiply(hopper, most, splits))


def test_each_product_has_its_own_bias_and_form(hopper: Device) -> None:
    both = Both.random("q4_k", 9, (64, 96), 512)
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(each).astype(np.float32) * 10 for each in (64, 96))
    plain = both.multiply(hopper, 16, 2)
    for own in ((first, second), (first, None), (None, second)):
        found = both.multiply(hopper, 16, 2, own, np.float16)
        for product, before, bias in zip(found, plain, own, strict=True):
            check(product, before + (0 if bias is None else bias), rtol=1e-3, atol=1e-2)


def test_the_same_rows_give_the_same_bits(hopper: Device) -> None:
    both = Both.random("q4_k", 40, (160, 64), 1024)
    once, again = (both.multiply(hopper, 64, 4) for _ in range(2))
    assert all(np.array_equal(*each) for each in zip(once, again, strict=True))
