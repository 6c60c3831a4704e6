"""The host platform reports what a kernel does not wait for: copies, and products of warpgroups."""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.kernels import Device, KernelFault

Float32 = npt.NDArray[np.float32]


class Mistake(IntEnum):
    """Those of faulty/src/warpgroup.hip, in the same order."""

    NONE = 0
    NO_WAIT = auto()
    NO_BARRIER = auto()
    NO_COMMIT = auto()
    NO_FENCE = auto()
    NO_PUBLICATION = auto()
    LATE_PUBLICATION = auto()
    OVERWRITES_TILE = auto()
    OVERWRITES_REGISTERS = auto()
    LEAVES_TILE = auto()
    ODD_ADDRESS = auto()
    NOT_UNIFORM = auto()


@pytest.fixture(autouse=True)
def _waves_of_32(device: Device) -> None:
    if device.wave != 32:
        pytest.skip("warps have 32 lanes")


def _copy(device: Device, mistake: Mistake, first: int = 4, n: int = 512) -> Float32:
    x = device.upload(np.arange(516, dtype=np.float32), "x")
    y = device.empty(512, np.float32, "y")
    device.launch("rf_copy_beside", y, x, first, n, mistake, grid=1, block=64)
    copied: Float32 = y.get()
    return copied


@pytest.mark.parametrize("n", [512, 300])
def test_copies_are_there_after_their_wait(device: Device, n: int) -> None:
    expected = np.arange(4, 516, dtype=np.float32)
    expected[n:] = 0
    np.testing.assert_array_equal(_copy(device, Mistake.NONE, n=n), expected)


@pytest.mark.parametrize(
    ("mistake", "finding"),
    [
        (Mistake.NO_WAIT, "reads .*tile.*, which nothing in this block has written"),
        (Mistake.NO_COMMIT, "reads .*tile.*, which nothing in this block has written"),
        (Mistake.NO_BARRIER, r"reads .*tile.*, which (thread \d+ wrote|nothing in this block has)"),
        (Mistake.ODD_ADDRESS, "copies 16 bytes between addresses of which one is no multiple"),
    ],
)
def test_mistakes_of_copies(device: Device, mistake: Mistake, finding: str) -> None:
    with pytest.raises(KernelFault, match=finding):
        _copy(device, mistake)


def test_copies_stay_in_their_buffers(device: Device) -> None:
    with pytest.raises(KernelFault, match=r"reads 16 bytes .*x"):
        _copy(device, Mistake.NONE, first=8)


def _multiply(device: Device, mistake: Mistake) -> tuple[Float32, Float32]:
    """Returns the product and what it should be: small integers, which are exact."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, (rows, 16)).astype(np.float16) for rows in (64, 16))
    y = device.empty((64, 16), np.float32, "y")
    inputs = device.upload(a, "a"), device.upload(b, "b")
    device.launch("rf_multiply_in_warpgroup", y, *inputs, mistake, grid=1, block=128)
    return y.get(), a.astype(np.float32) @ b.astype(np.float32).T


def test_warpgroups_multiply(device: Device) -> None:
    np.testing.assert_array_equal(*_multiply(device, Mistake.NONE))


def test_they_do_in_launches_that_are_not_watched(device: Device, host: HostPlatform) -> None:
    with host.watching(1):
        for _ in range(3):
            np.testing.assert_array_equal(*_multiply(device, Mistake.NONE))


@pytest.mark.parametrize(
    ("mistake", "finding"),
    [
        (Mistake.NO_BARRIER, "reads .*tile.*, which thread .* wrote without a barrier"),
        (Mistake.NO_FENCE, "multiplies without a fence since it last waited"),
        (Mistake.NO_PUBLICATION, "multiplies .*tile.*, which thread .* had not published"),
        (Mistake.LATE_PUBLICATION, "multiplies .*tile.*, which thread .* had not published"),
        (Mistake.OVERWRITES_TILE, "(reads|writes) .*tile.*, which .* without a barrier"),
        (Mistake.LEAVES_TILE, "reads 16 bytes at offset 512 of .*tile.*, which has 512 bytes"),
        (Mistake.NOT_UNIFORM, r"lane 0 brings|brings \d+ to"),
    ],
)
def test_mistakes_around_products(device: Device, mistake: Mistake, finding: str) -> None:
    with pytest.raises(KernelFault, match=finding):
        _multiply(device, mistake)


@pytest.mark.parametrize(
    "mistake", [Mistake.NO_WAIT, Mistake.NO_COMMIT, Mistake.OVERWRITES_REGISTERS]
)
def test_products_come_when_they_are_waited_for(device: Device, mistake: Mistake) -> None:
    """What they are made of may change until then; if nothing waits, they never come."""
    product, expected = _multiply(device, mistake)
    assert not np.array_equal(product, expected)
