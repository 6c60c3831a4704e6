"""Declarations of kernels with a mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def swapped(declaration: Callable[..., None], first: str, second: str) -> Callable[..., None]:
    """The declaration with two arguments in each other's place."""

    def swap(**arguments: Any) -> None:
        """Is never called."""

    signature = inspect.signature(declaration)
    places = {first: second, second: first}
    swap.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[signature.parameters[places.get(name, name)] for name in signature.parameters]
    )
    swap.__annotations__ = get_type_hints(declaration, include_extras=True)
    swap.__name__ = declaration.__name__
    return swap
