"""The device under test, shared by all kernel tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kernels import Device, PlatformOptions, select_platform


@pytest.fixture(scope="session")
def _session_device(request: pytest.FixtureRequest) -> Device:
    options = PlatformOptions(
        platform=request.config.getoption("--platform"),
        wave=request.config.getoption("--wave"),
        lane_order=request.config.getoption("--lane-order"),
    )
    select_platform(options.platform)
    return Device(options)


@pytest.fixture
def device(_session_device: Device) -> Iterator[Device]:
    """The device under test; arrays made with it are freed after the test."""
    yield _session_device
    _session_device.release()
