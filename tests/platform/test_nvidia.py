"""The NVIDIA platform's library, on a CUDA driver made of the host platform."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.build import NVIDIA_SOURCES
from kernels.builder import ROOT, build_library
from tests.support.launches.host_platform import LIBRARY
from tests.support.launches.kernels import Device

MOCK = ROOT / "tests/platform/mock_cuda"
FAULTS = [
    "214 hipErrorECCNotCorrectable memory",
    "220 hipErrorUnknown lost",  # CUDA_ERROR_NVLINK_UNCORRECTABLE, which HIP does not have
    "700 hipErrorIllegalAddress address",
    "715 hipErrorLaunchFailure kernel",  # CUDA_ERROR_ILLEGAL_INSTRUCTION
    "702 hipErrorLaunchTimeOut hang",
    "46 hipErrorNoDevice lost",  # CUDA_ERROR_DEVICE_UNAVAILABLE
    "809 hipErrorUnknown lost",  # CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with lib/libamdhip64.so for NVIDIA and the mock lib/libcuda.so.1."""
    folder = tmp_path_factory.mktemp("nvidia")
    include = (NVIDIA_SOURCES, NVIDIA_SOURCES.parent)
    hip = folder / "lib/libamdhip64.so"
    build_library(sorted(NVIDIA_SOURCES.glob("*.c")), include, hip)
    build_library([MOCK / "mock_cuda.c"], include, folder / "lib/libcuda.so.1")
    return folder


def run_python(*arguments: str, libraries: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python with hip-python on the NVIDIA platform."""
    environment = os.environ | {
        "ROCM_PATH": str(libraries),
        "LD_LIBRARY_PATH": str(libraries / "lib"),
        "RF_MOCK_HOST_LIBRARY": str(LIBRARY),
        "RF_HOST_WAVE": "32",
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_forwards_what_the_backend_uses(device: Device, libraries: Path) -> None:
    device.function("rf_fill")
    image = next((ROOT / "build/kernels/host-w32").glob("faulty-*/faulty.so"), None)
    if image is None:
        pytest.skip("the mock runs kernels of wave size 32")
    done = run_python(str(MOCK / "exercise.py"), str(image), libraries=libraries)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "the argument buffer has 12 bytes, 3 arguments take 16" in done.stderr
    assert "mock CUDA compiles no PTX" in done.stderr
    parts = re.split("kernels that wait:|other kernels:", done.stderr)
    assert [part.count("launched early") for part in parts] == [0, 3, 0]


def test_a_failing_device_is_told_by_hips_name_and_kind(
    device: Device, libraries: Path, tmp_path: Path
) -> None:
    device.function("rf_fill")
    image = next((ROOT / "build/kernels/host-w32").glob("faulty-*/faulty.so"), None)
    if image is None:
        pytest.skip("the mock runs kernels of wave size 32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RF_HOST_FAULT", str(tmp_path / "fault"))
        codes = [row.split()[0] for row in FAULTS]
        done = run_python(str(MOCK / "faults.py"), str(image), *codes, libraries=libraries)
    assert done.stdout.splitlines() == FAULTS, done.stderr


def test_says_no_device_without_a_driver(libraries: Path) -> None:
    (libraries / "lib/libcuda.so.1").rename(libraries / "lib/hidden")
    try:
        script = "from hip import hip; print(hip.hipGetDeviceCount(), hip.hipMalloc(8)[0].name)"
        done = run_python("-c", script, libraries=libraries)
    finally:
        (libraries / "lib/hidden").rename(libraries / "lib/libcuda.so.1")
    if "hipSuccess" in done.stdout:
        pytest.skip("this machine has a CUDA driver")
    assert "hipErrorNoDevice" in done.stdout


def test_has_the_functions_that_are_called_and_no_other() -> None:
    callers = ("backends/hip/rocmforge_hip/device", "benchmarks/kernels", "tests/support")
    sources = [path.read_text() for folder in callers for path in (ROOT / folder).rglob("*.py")]
    called = {name for text in sources for name in re.findall(r"\bhip\.(hip\w+)\(", text)}
    of_c = "".join(path.read_text() for path in NVIDIA_SOURCES.glob("*.c"))
    defined = set(re.findall(r"^HIP_API hipError_t (hip\w+)\(", of_c, re.MULTILINE))
    assert {name.removesuffix("R0600") for name in defined} == called
