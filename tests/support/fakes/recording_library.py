"""A library of kernels that does nothing but write down what is launched, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmforge_hip.device.library import KernelLibrary

Grid = tuple[int, int, int]


class RecordingLibrary:
    """Has every kernel that is asked for; `has` says so only of some.

    Args:
        has: Whether it says that there is a kernel of this name.
        max_threads: Of each.
    """

    def __init__(self, has: Callable[[str], bool] = lambda name: False, max_threads: int = 256):
        self.has = has
        self.launched: list[tuple[str, Grid]] = []
        self.threads: list[int] = []
        """Of each launch."""
        self.arguments: list[dict[str, Any]] = []
        """The same."""
        self._max_threads = max_threads

    @property
    def blocks(self) -> list[tuple[str, int]]:
        """Names of what was launched, and how many blocks side by side."""
        return [(name, grid[0]) for name, grid in self.launched]

    def kernel(self, name: str, declaration: object) -> RecordingKernel:
        """Returns the kernel of this name."""
        return RecordingKernel(name, self, self._max_threads)

    available = KernelLibrary.available  # asks for no more than the two above


class RecordingKernel:
    """One of them."""

    def __init__(self, name: str, library: RecordingLibrary, max_threads: int) -> None:
        self.max_threads = max_threads
        self._name = name
        self._library = library

    def launch(self, grid: Grid, threads: int, **arguments: Any) -> None:
        """Writes the launch down."""
        self._library.launched.append((self._name, grid))
        self._library.threads.append(threads)
        self._library.arguments.append(arguments)
