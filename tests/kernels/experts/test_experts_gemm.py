"""rf_experts_gemm_*: short rows of experts that stay in LDS, where there are warpgroups.

Names of cases follow the kernel's loops: a block takes up to 64 rows of an expert, with
instructions for 8, 16, 32, 48 or 64 of them, 256 stored rows of its matrix after the other, and K
in steps of 256.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.launches.kernels import Device
from tests.support.operands.experts import random_choice
from tests.support.operands.grouped_gemm import check_groups, random_experts, two_of_three

_NAMES = ("q4_k", "q6_k")
_TILE = 64


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 32, 33, 48, 49, 64, 65])
@pytest.mark.parametrize("name", _NAMES)
def test_multiplies_as_many_rows_as_there_are(hopper: Device, name: str, rows: int) -> None:
    experts = random_experts(name, 3, 40, 512)
    check_groups(hopper, experts, two_of_three(rows), tile=_TILE, gathered=False, multiprocessors=2)


@pytest.mark.parametrize("rows", [8, 16, 32, 48, 64])
@pytest.mark.parametrize("name", _NAMES)
def test_rows_of_up_to_1280_features_have_room(hopper: Device, name: str, rows: int) -> None:
    chosen = np.zeros((rows, 1), np.int32)
    check_groups(hopper, random_experts(name, 1, 20, 1280), chosen, tile=_TILE, multiprocessors=2)


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 5, 9, 12, 40])
@pytest.mark.parametrize("name", _NAMES)
def test_blocks_share_the_last_tiles(hopper: Device, name: str, multiprocessors: int) -> None:
    """Of nine tiles: all have a block of their own, or some, or none."""
    chosen = random_choice(np.random.default_rng(0), 11, 3, 2)
    experts = random_experts(name, 3, 549, 256)
    check_groups(hopper, experts, chosen, tile=3, multiprocessors=multiprocessors)


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 4, 8])
def test_a_tile_is_shared_by_up_to_eight_blocks(hopper: Device, multiprocessors: int) -> None:
    experts, chosen = random_experts("q4_k", 1, 2048, 256), np.zeros((3, 1), np.int32)
    check_groups(hopper, experts, chosen, tile=_TILE, multiprocessors=multiprocessors)


@pytest.mark.parametrize("out_features", [40, 37], ids=["fours", "ragged"])
def test_adds_the_biases_of_experts(hopper: Device, out_features: int) -> None:
    biases = np.random.default_rng(2).standard_normal((3, out_features)).astype(np.float32) * 4
    experts, chosen = random_experts("q6_k", 3, out_features, 256), two_of_three(5)
    check_groups(hopper, experts, chosen, tile=_TILE, biases=(biases,), multiprocessors=2)


def test_reads_scattered_experts(hopper: Device) -> None:
    chosen = random_choice(np.random.default_rng(1), 9, 5, 2)
    experts = random_experts("q6_k", 5, 40, 256)
    check_groups(hopper, experts, chosen, tile=_TILE, scattered=True, multiprocessors=1)
