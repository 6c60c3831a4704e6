"""The device under test, shared by all kernel tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.launches.kernels import Device, PlatformOptions, select_platform


@pytest.fixture(scope="session")
def _options(request: pytest.FixtureRequest) -> PlatformOptions:
    options = PlatformOptions(
        platform=request.config.getoption("--platform"),
        wave=request.config.getoption("--wave"),
        lane_order=request.config.getoption("--lane-order"),
    )
    select_platform(options.platform)
    return options


@pytest.fixture(scope="session")
def _session_device(_options: PlatformOptions) -> Device:
    return Device(_options)


@pytest.fixture(scope="session")
def _session_hopper(_options: PlatformOptions, _session_device: Device) -> Device:
    if _options.platform == "host":
        return Device(_options, defines=("RF_AS_HOPPER=1",))
    return _session_device


@pytest.fixture
def device(_session_device: Device) -> Iterator[Device]:
    """The device under test; arrays made with it are freed after the test."""
    yield _session_device
    _session_device.release()


@pytest.fixture
def host_or_hopper(device: Device) -> None:
    """Skips tests of kernels that only Hopper GPUs, and the host with such waves, have."""
    if device.wave != 32 or not device.has("rf_gemv_deferred_stream"):
        pytest.skip("this device has no such kernels")


@pytest.fixture
def hopper(_session_hopper: Device) -> Iterator[Device]:
    """The same, if it has the matrix instructions of Hopper GPUs; the host has them then."""
    if _session_hopper.wave != 32 or not _session_hopper.has("rf_gemm_wide_q4_k_r272"):
        pytest.skip("this device has no matrix instructions of warpgroups")
    yield _session_hopper
    _session_hopper.release()


@pytest.fixture(params=["device", "hopper"])
def either(request: pytest.FixtureRequest) -> Device:
    """The device, and what stands for a Hopper GPU, whose kernels are partly others."""
    device: Device = request.getfixturevalue(request.param)
    return device
