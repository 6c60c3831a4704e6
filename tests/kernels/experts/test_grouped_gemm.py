"""rf_gemm_* for groups of rows, each of which has the matrix of its expert.

Names of cases follow what the groups are: the loops of a tile are those of test_gemm.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.experts import random_choice
from tests.support.operands.grouped_gemm import check_groups, random_experts
from tests.support.operands.linear import CLAMPED_SWIGLU, GELU_TANH, NOT_GATED, SILU
from tests.support.operands.weights import ALL_TYPES, block_features

Int32 = npt.NDArray[np.int32]


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
    check_groups(device, random_experts("q8_0", 3, 72, 96), chosen, gathered=gathered)


@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize("tile", [32, 64])
def test_multiplies_every_type(device: Device, name: str, tile: int) -> None:
    check_groups(
        device, random_experts(name, 3, 37, block_features(name)), _random(5, 2, 3), tile=tile
    )


def test_activations_may_be_small(device: Device) -> None:
    """As those between gate and down are; a half below 2^-14 counts as zero on MI200."""
    check_groups(device, random_experts("q4_k", 3, 37, 256), _random(5, 2, 3), factor=2.0**-10)


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("name", ["f16", "mxfp4"])
def test_larger_tiles_are_ragged_too(device: Device, name: str, tile: int) -> None:
    check_groups(device, random_experts(name, 2, 136, 64), _random(tile + 5, 1, 2), tile=tile)


@pytest.mark.parametrize("in_features", [704, 1408, 2688, 2880])
def test_rows_need_not_fill_super_blocks(device: Device, in_features: int) -> None:
    check_groups(device, random_experts("q8_0", 2, 32, in_features), _random(3, 1, 2))


@pytest.mark.parametrize("activation", [SILU, GELU_TANH, CLAMPED_SWIGLU])
@pytest.mark.parametrize(("name", "tile"), [("q4_k", 32), ("mxfp4", 32), ("bf16", 64)])
def test_gates(device: Device, name: str, tile: int, activation: int) -> None:
    experts = random_experts(name, 3, 72, 256, activation)
    check_groups(device, experts, _random(9, 2, 3), tile=tile, half=True)


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
    experts = random_experts("mxfp4", 3, out_features, 64, activation)
    check_groups(device, experts, _random(6, 2, 3), tile=tile, biases=biases)


@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("name", ["f16", "q4_k"])
def test_experts_are_read_where_the_table_says(device: Device, name: str, tile: int) -> None:
    check_groups(
        device, random_experts(name, 5, 40, 256), _random(9, 2, 5), tile=tile, scattered=True
    )


@pytest.mark.parametrize("chosen", CASES.values(), ids=CASES.keys())
def test_warpgroups_multiply_groups(hopper: Device, chosen: Int32) -> None:
    experts = random_experts("q8_0", 3, 72, 288)
    check_groups(hopper, experts, chosen, tile=64)
    check_groups(hopper, experts, chosen, tile=64, gathered=False)


def test_warpgroups_read_scattered_experts(hopper: Device) -> None:
    biases = tuple(np.linspace(-4, 4, 5 * 40, dtype=np.float32).reshape(2, 5, 20))
    experts = random_experts("q4_k", 5, 20, 256, SILU)
    check_groups(hopper, experts, _random(9, 2, 5), tile=64, biases=biases, scattered=True)
