"""Numba's CUDA target: PTX, for the nvidia platform."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from rocmforge_hip.jit.toolchain import THREADS, Unavailable


class CudaToolchain:
    """Compiles for an NVIDIA GPU, present or not."""

    def __init__(self, target: str) -> None:
        try:
            self.gpu: Any = import_module("numba.cuda")
            dispatcher: Any = import_module("numba.cuda.dispatcher")
        except (ImportError, OSError, RuntimeError, AttributeError, SystemError) as error:
            raise Unavailable(f"numba-cuda cannot be imported ({error})") from error
        number = target.removeprefix("sm_")
        self._capability = int(number[:-1]), int(number[-1])
        # Functions that a kernel calls are compiled for "the current device", which numba would
        # open here; the target is known, and the device is the engine's.
        device = SimpleNamespace(compute_capability=self._capability)
        dispatcher.get_current_device = lambda: device

    def device_function(self, function: Callable[..., Any]) -> Any:
        """Returns what a kernel can call."""
        return self.gpu.jit(function, device=True)

    def compile(self, kernel: Callable[..., Any], types: list[Any]) -> tuple[str, bytes]:
        """Returns symbol and PTX of a kernel."""
        ptx, _ = self.gpu.compile(
            kernel, tuple(types), device=False, abi="numba", cc=self._capability, output="ptx"
        )
        text = ptx if isinstance(ptx, str) else ptx.decode()
        found = re.search(r"\.entry\s+(\w+)\([^)]*\)", text)
        assert found is not None, "PTX of a kernel has an entry"
        # So many threads must find registers.
        bounded = f"{text[: found.end()]}\n.maxntid {THREADS}, 1, 1{text[found.end() :]}"
        return found.group(1), bounded.encode()
