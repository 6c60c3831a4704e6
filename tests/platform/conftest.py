"""The host platform with kernels that make mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.kernels import Device, PlatformOptions


@pytest.fixture(scope="session")
def _faulty_device(request: pytest.FixtureRequest) -> Device:
    if request.config.getoption("--platform") != "host":
        pytest.skip("these tests are about the host platform")
    options = PlatformOptions(
        platform="host",
        wave=request.config.getoption("--wave"),
        lane_order=request.config.getoption("--lane-order"),
    )
    return Device(options, table=Path(__file__).parent / "faulty")


@pytest.fixture
def device(_faulty_device: Device) -> Iterator[Device]:
    """The host platform; what a test leaves behind is cleared."""
    yield _faulty_device
    _faulty_device.release()


@pytest.fixture
def host(device: Device) -> HostPlatform:
    """The library's functions beyond HIP."""
    assert device.host is not None
    return device.host
