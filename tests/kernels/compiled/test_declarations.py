"""What the backend declares of kernels and their constants is what the sources say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from kernels.builder import Builder
from kernels.compiler import find_compiler
from kernels.interface import Interface, InterfaceError, read_constants
from kernels.table import read_table
from rocmforge.errors import ConfigurationError
from rocmforge_hip import kernels as declarations
from rocmforge_hip.device.arguments import KernelArgumentError, check_declaration
from rocmforge_hip.device.constants import IN_HEADERS, check_constants

Declaration = Callable[..., None]
NOT_LAUNCHED = {"rf_mma_check"}


@cache
def interfaces() -> dict[str, Interface]:
    """All kernels, as compiled."""
    builder = Builder(find_compiler(None))
    units = [unit for source in read_table() for unit in source.translation_units]
    return {
        name: interface
        for unit in units
        for name, interface in builder.interfaces(unit, 32).items()
    }


def declared() -> Iterator[Declaration]:
    """All declarations but that of kernels that are compiled while the server starts."""
    for module in iter_modules(declarations.__path__):
        found = import_module(f"{declarations.__name__}.{module.name}")
        for name, function in inspect.getmembers(found, inspect.isfunction):
            is_own = function.__module__ == found.__name__
            if is_own and name != "rf_logits_processor":
                yield function


def fits(declaration: Declaration, kernel: Interface) -> bool:
    """Whether a library would load the kernel with it."""
    arguments = [{"name": a.name, "type": a.type} for a in kernel.args]
    try:
        check_declaration(kernel.kernel, declaration, arguments)
    except KernelArgumentError:
        return False
    return True


def family(declaration: Declaration) -> str:
    """What the names of its kernels begin with."""
    return declaration.__name__.removesuffix("_float").removesuffix("_ungrouped")


@pytest.mark.parametrize("declaration", list(declared()), ids=lambda each: each.__name__)
def test_a_declaration_fits_a_kernel(declaration: Declaration) -> None:
    named = [each for name, each in interfaces().items() if name.startswith(family(declaration))]
    assert any(fits(declaration, kernel) for kernel in named)


def test_every_kernel_is_declared() -> None:
    undeclared = {
        name
        for name, kernel in interfaces().items()
        if not any(fits(each, kernel) for each in declared() if name.startswith(family(each)))
    }
    assert undeclared == NOT_LAUNCHED


def test_constants_are_those_of_the_headers() -> None:
    check_constants("any", read_constants())


@pytest.mark.parametrize("name", IN_HEADERS)
def test_a_constant_that_differs_or_is_missing_is_named(name: str) -> None:
    constants = read_constants()
    changed = constants | {name: constants[name] + 1}
    lacking = {other: value for other, value in constants.items() if other != name}
    for wrong, value in ((changed, changed[name]), (lacking, None)):
        message = f"for gfx1100 were built with {name} = {value}, but.*--targets gfx1100"
        with pytest.raises(ConfigurationError, match=message):
            check_constants("gfx1100", wrong)


def test_headers_that_disagree_are_refused(tmp_path: Path) -> None:
    for name, value in (("a.h", 1), ("b.h", 2)):
        (tmp_path / name).write_text(f"inline constexpr int kRows = {value};\n")
    with pytest.raises(InterfaceError, match=r"b\.h: kRows is 1 in another header"):
        read_constants(tmp_path)
