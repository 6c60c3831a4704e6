"""rf_gemm_* for groups of rows, each of which has the matrix of its expert.

Names of cases follow what the groups are: the loops of a tile are those of test_gemm.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.experts import ExpertLayer, random_choice, upload_experts
from tests.support.operands.groups import group, groups_of
from tests.support.operands.linear import (
    CLAMPED_SWIGLU,
    GELU_TANH,
    NOT_GATED,
    SILU,
    Layer,
    random_activation,
    random_layer,
    worst_error,
)
from tests.support.operands.weights import ALL_TYPES, block_features

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Biases = tuple[Float32, ...]  # [experts, out_features] of each weight
_ROUNDING = 2.0**-11  # as in test_gemm.py


def _experts(
    name: str, count: int, out_features: int, in_features: int, activation: int = NOT_GATED
) -> list[Layer]:
    rng = np.random.default_rng(0)
    return [random_layer(rng, name, out_features, in_features, activation) for _ in range(count)]


def _check(
    device: Device,
    experts: list[Layer],
    chosen: Int32,
    *,
    tile: int = 32,
    biases: Biases = (),
    gathered: bool = True,
    half: bool = False,
    scattered: bool = False,
    factor: float = 1.0,
) -> None:
    """Compares with each expert's product with its rows; `gathered`: with rows of tokens."""
    layer, pairs = experts[0], chosen.size
    groups, arrays = groups_of(chosen), group(device, chosen, len(experts), tile)
    rows = chosen.shape[0] if gathered else pairs
    x = factor * random_activation(np.random.default_rng(1), rows, 32 * layer.quant_blocks)
    halves = x.astype(np.float16)
    weight = ExpertLayer(tuple(experts), ()).packed()
    out = device.empty((pairs, layer.out_features), np.float16 if half else np.float32, "out")
    kernel = f"rf_gemm_{layer.weights[0].name}_m{tile}"
    device.launch(
        kernel,
        *upload_experts(device, weight, scattered=scattered),
        device.upload(halves, "x"),
        arrays.tiles,
        arrays.tokens if gathered else None,
        *[device.upload(bias, "bias") for bias in biases],
        *(None,) * (2 - len(biases)),
        *((None, out) if half else (out, None)),
        None,
        weight.shape[1],
        0,
        layer.out_features,
        layer.quant_blocks,
        layer.activation,
        layer.quant_blocks,
        grid=(arrays.tiles.shape[0], -(-layer.stored_rows // 128)),
        block=device.max_threads(kernel),
    )
    seen = halves.astype(np.float64)[groups.tokens if gathered else slice(None)]
    expected = np.empty((pairs, layer.out_features))
    magnitude = np.empty_like(expected)
    for expert, each in enumerate(experts):
        own = groups.experts == expert
        of_expert = tuple(bias[expert] for bias in biases)
        expected[own] = each.apply(seen[own], of_expert)
        added = sum(np.abs(bias) for bias in of_expert)
        magnitude[own] = each.magnitude(seen[own]) + (3.0 if layer.activation else 1.0) * added
    assert worst_error(out.get(), expected, magnitude) < _ROUNDING * (2 if half else 1)


def _random(tokens: int, num_chosen: int, num_experts: int) -> Int32:
    return random_choice(np.random.default_rng(tokens), tokens, num_experts, num_chosen)


CASES = {
    "one_token": np.array([[1]], np.int32),
    "two_of_three_experts": np.array([[0, 2], [2, 0]], np.int32),
    "one_expert_has_all": np.full((40, 1), 1, np.int32),
    "ragged_tiles": _random(41, 2, 3),
    "whole_tiles": np.repeat(np.arange(3, dtype=np.int32), 32)[:, None],
}


@pytest.mark.parametrize("chosen", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("gathered", [True, False], ids=["of_tokens", "of_pairs"])
def test_multiplies_groups(device: Device, chosen: Int32, gathered: bool) -> None:
    _check(device, _experts("q8_0", 3, 72, 96), chosen, gathered=gathered)


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize("tile", [32, 64])
def test_multiplies_every_type(device: Device, name: str, tile: int) -> None:
    _check(device, _experts(name, 3, 37, block_features(name)), _random(5, 2, 3), tile=tile)


def test_activations_may_be_small(device: Device) -> None:
    """As those between gate and down are; a half below 2^-14 counts as zero on MI200."""
    _check(device, _experts("q4_k", 3, 37, 256), _random(5, 2, 3), factor=2.0**-10)


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("name", ["f16", "mxfp4"])
def test_larger_tiles_are_ragged_too(device: Device, name: str, tile: int) -> None:
    _check(device, _experts(name, 2, 136, 64), _random(tile + 5, 1, 2), tile=tile)


@pytest.mark.parametrize("in_features", [704, 1408, 2688, 2880])
def test_rows_need_not_fill_super_blocks(device: Device, in_features: int) -> None:
    _check(device, _experts("q8_0", 2, 32, in_features), _random(3, 1, 2))


@pytest.mark.parametrize("activation", [SILU, GELU_TANH, CLAMPED_SWIGLU])
@pytest.mark.parametrize(("name", "tile"), [("q4_k", 32), ("mxfp4", 32), ("bf16", 64)])
def test_gates(device: Device, name: str, tile: int, activation: int) -> None:
    experts = _experts(name, 3, 72, 256, activation)
    _check(device, experts, _random(9, 2, 3), tile=tile, half=True)


@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("activation", [NOT_GATED, SILU, CLAMPED_SWIGLU])
@pytest.mark.parametrize("out_features", [40, 37], ids=["fours", "ragged"])
def test_adds_the_biases_of_experts(
    device: Device, tile: int, activation: int, out_features: int
) -> None:
    rng = np.random.default_rng(2)
    count = 1 if activation == NOT_GATED else 2
    biases = tuple(
        rng.standard_normal((3, out_features)).astype(np.float32) * 4 for _ in range(count)
    )
    experts = _experts("mxfp4", 3, out_features, 64, activation)
    _check(device, experts, _random(6, 2, 3), tile=tile, biases=biases)


@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("name", ["f16", "q4_k"])
def test_experts_are_read_where_the_table_says(device: Device, name: str, tile: int) -> None:
    _check(device, _experts(name, 5, 40, 256), _random(9, 2, 5), tile=tile, scattered=True)


@pytest.mark.parametrize("chosen", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("tile", [32, 64])
def test_warpgroups_multiply_groups(hopper: Device, chosen: Int32, tile: int) -> None:
    experts = _experts("q8_0", 3, 72, 288)
    _check(hopper, experts, chosen, tile=tile)
    _check(hopper, experts, chosen, tile=tile, gathered=False)


@pytest.mark.parametrize("tile", [32, 64])
def test_warpgroups_read_scattered_experts(hopper: Device, tile: int) -> None:
    biases = tuple(np.linspace(-4, 4, 5 * 40, dtype=np.float32).reshape(2, 5, 20))
    experts = _experts("q4_k", 5, 20, 256, SILU)
    _check(hopper, experts, _random(9, 2, 5), tile=tile, biases=biases, scattered=True)
