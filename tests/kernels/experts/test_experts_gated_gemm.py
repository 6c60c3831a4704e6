"""rf_experts_gated_gemm_*: gate and up of experts whose rows stay in LDS, with warpgroups.

Names of cases follow the kernel's loops: a block takes up to 48 rows of an expert, with
instructions for 16, 32 or 48 of them, 256 stored rows of its matrix after the other, which are 128
columns, and K in steps of 256.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.experts import random_choice
from tests.support.operands.grouped_gemm import check_groups, random_experts, two_of_three
from tests.support.operands.linear import CLAMPED_SWIGLU, GELU, SILU

_NAMES = ("q4_k", "q6_k")
_TILE = 48


@pytest.mark.parametrize("rows", [1, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49])
@pytest.mark.parametrize("name", _NAMES)
def test_multiplies_as_many_rows_as_there_are(hopper: Device, name: str, rows: int) -> None:
    experts = random_experts(name, 3, 40, 512, SILU)
    check_groups(hopper, experts, two_of_three(rows), tile=_TILE, half=True, multiprocessors=2)


@pytest.mark.parametrize("rows", [16, 32, 48])
@pytest.mark.parametrize("name", _NAMES)
def test_rows_of_up_to_2048_features_have_room(hopper: Device, name: str, rows: int) -> None:
    chosen = np.zeros((rows, 1), np.int32)
    experts = random_experts(name, 1, 20, 2048, SILU)
    check_groups(hopper, experts, chosen, tile=_TILE, half=True, multiprocessors=2)


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 5, 9, 12, 40])
@pytest.mark.parametrize("name", _NAMES)
def test_blocks_share_the_last_tiles(hopper: Device, name: str, multiprocessors: int) -> None:
    """Of nine tiles: all have a block of their own, or some, or none."""
    chosen = random_choice(np.random.default_rng(0), 11, 3, 2)
    experts = random_experts(name, 3, 277, 256, SILU)
    check_groups(hopper, experts, chosen, tile=3, half=True, multiprocessors=multiprocessors)


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 4, 8])
def test_a_tile_is_shared_by_up_to_eight_blocks(hopper: Device, multiprocessors: int) -> None:
    experts, chosen = random_experts("q4_k", 1, 1024, 256, SILU), np.zeros((3, 1), np.int32)
    check_groups(hopper, experts, chosen, tile=_TILE, half=True, multiprocessors=multiprocessors)


@pytest.mark.parametrize("activation", [GELU, CLAMPED_SWIGLU])
def test_gate_and_up_become_one_number_in_each_way(hopper: Device, activation: int) -> None:
    experts = random_experts("q4_k", 3, 40, 256, activation)
    check_groups(hopper, experts, two_of_three(5), tile=_TILE, half=True, multiprocessors=2)


@pytest.mark.parametrize("out_features", [40, 37], ids=["fours", "ragged"])
def test_adds_the_biases_of_experts(hopper: Device, out_features: int) -> None:
    rng = np.random.default_rng(2)
    biases = tuple(rng.standard_normal((2, 3, out_features)).astype(np.float32) * 4)
    experts, chosen = random_experts("q6_k", 3, out_features, 256, SILU), two_of_three(5)
    check_groups(hopper, experts, chosen, tile=_TILE, biases=biases, half=True, multiprocessors=2)


def test_takes_rows_that_are_sorted(hopper: Device) -> None:
    experts = random_experts("q4_k", 3, 40, 256, SILU)
    check_groups(
        hopper, experts, two_of_three(20), tile=_TILE, gathered=False, half=True, multiprocessors=2
    )


def test_reads_scattered_experts(hopper: Device) -> None:
    chosen = random_choice(np.random.default_rng(1), 9, 5, 2)
    experts = random_experts("q6_k", 5, 40, 256, SILU)
    check_groups(hopper, experts, chosen, tile=_TILE, half=True, scattered=True, multiprocessors=1)
