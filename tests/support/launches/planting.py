"""Mistakes that tests plant in the launches of kernels."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest

from rocmforge_hip.device.driver import Dim3
from rocmforge_hip.device.kernel import Kernel

Launch = Callable[..., None]


def change_launches(
    patch: pytest.MonkeyPatch, kernels: str, change: Callable[[Launch, dict[str, Any]], None]
) -> None:
    """Lets `change` do the launches of the kernels whose names match."""
    real = Kernel.launch

    def launch(self: Kernel[...], grid: Dim3, block: int, **arguments: Any) -> None:
        def go(**changed: Any) -> None:
            real(self, grid, block, **changed)

        if fnmatchcase(self.name, kernels):
            change(go, arguments)
        else:
            go(**arguments)

    patch.setattr(Kernel, "launch", launch)


def do_nothing(launch: Launch, arguments: dict[str, Any]) -> None:
    """A kernel that has no effect."""


def scale_numbers(launch: Launch, arguments: dict[str, Any]) -> None:
    """A kernel whose factors are 2% too large."""
    launch(**scaled(arguments, 1.02))


def scaled(arguments: dict[str, Any], factor: float) -> dict[str, Any]:
    """The arguments with all float numbers times a factor."""
    return {
        name: factor * value if isinstance(value, float) else value
        for name, value in arguments.items()
    }
