"""Makes functions written against NumPy into functions of a GPU target.

A function finds `where`, `exp` and its own helpers among the globals of its module. What is
compiled is a copy of it whose globals name the target's functions instead.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, Final

import numpy as np

from rocmforge.logits.processor import Function


def choose(condition: Any, chosen: Any, other: Any) -> Any:
    """Computes `numpy.where` for numbers."""
    return chosen if condition else other


def smaller(a: Any, b: Any) -> Any:
    """Computes `numpy.minimum` for numbers."""
    return a if a < b else b


def larger(a: Any, b: Any) -> Any:
    """Computes `numpy.maximum` for numbers."""
    return a if a > b else b


def exp(x: Any) -> Any:
    """Computes `numpy.exp` of float32: numba would take double precision for anything else."""
    return math.exp(np.float32(x))


def log(x: Any) -> Any:
    """Computes `numpy.log` of float32."""
    return math.log(np.float32(x))


def sqrt(x: Any) -> Any:
    """Computes `numpy.sqrt` of float32."""
    return math.sqrt(np.float32(x))


ON_DEVICE: Final[Mapping[Any, Function]] = {
    np.where: choose,
    np.exp: exp,
    np.log: log,
    np.sqrt: sqrt,
    np.minimum: smaller,
    np.maximum: larger,
}
"""What the functions of `rocmforge.logits` become."""


def bind(
    function: Function,
    compile_device: Callable[[Function], Any],
    replaced: Mapping[Any, Function] = ON_DEVICE,
) -> Any:
    """Makes the function for a device, with everything it calls.

    Args:
        function: written in Python.
        compile_device: makes a device function of a Python function.
        replaced: what stands for the functions of NumPy.
    """
    return _bind(function, compile_device, replaced, {})


def _bind(
    function: Function,
    compile_device: Callable[[Function], Any],
    replaced: Mapping[Any, Function],
    done: dict[Function, Any],
) -> Any:
    if function in done:
        return done[function]
    names = {}
    for name, value in global_values(function).items():
        value = replaced[value] if _is_in(value, replaced) else value
        if isinstance(value, FunctionType):
            value = _bind(value, compile_device, replaced, done)
        names[name] = value
    copy = FunctionType(
        function.__code__,
        {"__builtins__": __builtins__, "__name__": function.__module__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    done[function] = compile_device(copy)
    return done[function]


def global_values(function: Function) -> dict[str, Any]:
    """Returns the globals that a function reads, by name."""
    names = _global_names(function.__code__)
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _global_names(code: CodeType) -> list[str]:
    return sorted({i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"})


def _is_in(value: Any, replaced: Mapping[Any, Function]) -> bool:
    return callable(value) and value in replaced
