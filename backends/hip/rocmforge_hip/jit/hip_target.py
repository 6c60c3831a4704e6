"""Numba's HIP target (numba-hip, which needs a ROCm installation): code objects for AMD GPUs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

from rocmforge_hip.jit.toolchain import Unavailable

_SYMBOL: Final = "rf_logits_processor"


class HipToolchain:
    """Compiles for an AMD GPU, present or not."""

    def __init__(self, target: str) -> None:
        try:
            self.gpu: Any = import_module("numba.hip")
            self._compiler: Any = import_module("numba.hip.compiler")
            dispatcher: Any = import_module("numba.hip.dispatcher")
        except (ImportError, OSError, RuntimeError, AttributeError, SystemError) as error:
            raise Unavailable(
                f"numba-hip cannot be imported ({error}); it needs ROCm's libraries"
            ) from error
        self._target = target
        # As in `cuda_target`; also, numba-hip takes every device for one like the first.
        device = SimpleNamespace(amdgpu_arch=target)
        dispatcher.get_current_device = lambda: device

    def device_function(self, function: Callable[..., Any]) -> Any:
        """Returns what a kernel can call."""
        return self.gpu.jit(function, device=True)

    def compile(self, kernel: Callable[..., Any], types: list[Any]) -> tuple[str, bytes]:
        """Returns symbol and code object of a kernel."""
        options = {"fastmath": False, "opt": 3}
        compiled = self._compiler.compile_hip(
            kernel, None, tuple(types), options=options, amdgpu_arch=self._target
        )
        library, _ = compiled.target_context.prepare_hip_kernel(
            compiled.library,
            compiled.fndesc,
            False,  # debug
            False,  # line information
            options,
            kernel.__code__.co_filename,
            kernel.__code__.co_firstlineno,
            name=_SYMBOL,
        )
        return _SYMBOL, bytes(library.get_codeobj(self._target))
