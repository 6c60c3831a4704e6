"""Lets a device fail in many ways, each with what the HIP backend makes of it; see test_nvidia.py.

python faults.py IMAGE CODE...: prints name and kind of the errors that kernels end with.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from rocmforge_hip.device.driver import ArgumentBuffer, Driver, HipError


def main() -> None:
    """Runs a kernel for each code, on a device that fails with it."""
    host = ctypes.CDLL(os.environ["RF_MOCK_HOST_LIBRARY"])
    driver = Driver(0)
    module = driver.load_module(Path(sys.argv[1]).read_bytes(), "faulty")
    function = driver.function(module, "rf_fill")
    stream, y = driver.create_stream(), driver.allocate(512, "y")
    arguments = ArgumentBuffer(16)
    arguments.data.raw = y.to_bytes(8, "little") + bytes(4) + (100).to_bytes(4, "little")
    fault = Path(os.environ["RF_HOST_FAULT"])
    for code in sys.argv[2:]:
        with fault.open("w") as file:
            driver.launch(function, (1, 1, 1), (128, 1, 1), 0, stream, arguments)
            driver.synchronize_stream(stream)  # before anything is in it: no fault yet
            file.write(code)
        driver.launch(function, (1, 1, 1), (128, 1, 1), 0, stream, arguments)
        try:
            driver.synchronize_stream(stream)
        except HipError as error:
            print(code, error.code, error.fault)
        host.rf_host_clear()


if __name__ == "__main__":
    main()
