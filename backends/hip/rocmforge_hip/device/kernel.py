"""The launch of a kernel, whose arguments go by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, ParamSpec

from rocmforge_hip.device.arguments import (
    ArgumentPacker,
    KernelArgumentError,
    check_declaration,
    records_of,
)
from rocmforge_hip.device.driver import Dim3, Driver, HipError

_MAX_X: Final = 2**31 - 1
_MAX_YZ: Final = 65535

P = ParamSpec("P")


class Kernel(Generic[P]):
    """A kernel that can be launched on the stream of its library.

    Args:
        driver: Of the device.
        stream: To launch on.
        function: HIP's handle.
        name: For errors.
        entry: What the manifest says of it.
        declaration: Of its arguments: see `arguments`.

    Raises:
        KernelArgumentError: The kernel takes other arguments than its declaration has.
    """

    def __init__(
        self,
        driver: Driver,
        stream: int,
        function: int,
        name: str,
        entry: Mapping[str, Any],
        declaration: Callable[P, None],
    ) -> None:
        self.name = name
        self.max_threads: int = entry["max_threads"]
        self._driver = driver
        self._stream = stream
        self._function = function
        self._lds_bytes: int = entry.get("dynamic_lds_bytes", 0)
        lacking = check_declaration(name, declaration, entry["args"])
        self._packer = ArgumentPacker(name, entry["args"], lacking, records_of(declaration))

    def blocks_at_once(self, threads: int) -> int:
        """Returns how many blocks of so many threads a compute unit runs at once.

        Raises:
            HipError: HIP cannot say.
        """
        return self._driver.blocks_at_once(self._function, threads, self._lds_bytes)

    def launch(
        self,
        grid: Dim3,
        block: int,
        lds_bytes: int = 0,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Starts the kernel. Its arguments are keywords; None is a null pointer.

        Checks what can be known: names, kinds and sizes of arguments, and the size of grid and
        block. That arrays are as large as the kernel assumes is checked by `ops`.

        Raises:
            KernelArgumentError: The launch does not fit the kernel.
            HipError: HIP refused it.
        """
        x, y, z = grid
        if not (
            0 < block <= self.max_threads
            and 0 < x <= _MAX_X
            and 0 < y <= _MAX_YZ
            and 0 < z <= _MAX_YZ
        ):
            raise KernelArgumentError(
                self.name,
                f"grid {grid}, block {block} is out of bounds (at most {self.max_threads} threads)",
            )
        packed = self._packer.pack(kwargs)
        try:
            self._driver.launch(
                self._function,
                grid,
                (block, 1, 1),
                lds_bytes or self._lds_bytes,
                self._stream,
                packed,
            )
        except HipError as error:
            arguments = ", ".join(f"{name}={value}" for name, value in kwargs.items())
            raise HipError(
                error.call,
                error.code,
                error.device,
                f"kernel {self.name}, grid {grid}, block {block}, {arguments}",
            ) from error
