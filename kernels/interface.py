"""The interface of kernels: names, arguments with their types and offsets, launch bounds.

Offsets and sizes are in the metadata of every AMD code object, but not whether four bytes are an
integer or a float, and neither PTX nor a host library has such metadata at all. So the interface is
read once from the LLVM IR of the translation unit, and each AMD code object is checked against it
when it is built. Its launch bounds are those of host libraries; other targets have their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.table import KERNELS_DIR

HEADERS = KERNELS_DIR / "include/rf"
_SIZES = {"pointer": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "f32": 4, "f64": 8}
_IR_TYPES = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"} | {
    "half": "f16",
    "float": "f32",
    "double": "f64",
}
_KERNEL = re.compile(r"^define .*amdgpu_kernel void @(\w+)\((.*)\) .*?#(\d+)", re.MULTILINE)
_CONSTANT = re.compile(r"^inline constexpr int (k\w+) = (\d+);", re.MULTILINE)
_LAUNCH_BOUNDS = r'^attributes #{} = .*"amdgpu-flat-work-group-size"="\d+,(\d+)"'


class InterfaceError(Exception):
    """A kernel takes something that cannot be passed portably, or targets disagree."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel, as it lies in the argument buffer."""

    name: str
    type: str  # a key of _SIZES
    offset: int  # bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return _SIZES[self.type]


@dataclass(frozen=True, slots=True)
class Interface:
    """The arguments and launch bounds of one kernel."""

    kernel: str
    args: tuple[Argument, ...]
    max_threads: int  # per block

    @property
    def args_size(self) -> int:
        """Bytes up to the end of the last argument."""
        return self.args[-1].offset + self.args[-1].size if self.args else 0


def encode(interfaces: Iterable[Interface]) -> str:
    """Encodes interfaces as JSON."""
    return json.dumps([asdict(interface) for interface in interfaces])


def decode(text: str) -> dict[str, Interface]:
    """Returns the interfaces that `encode` was given, by the kernel's name."""
    return {
        row["kernel"]: Interface(
            kernel=row["kernel"],
            args=tuple(Argument(**argument) for argument in row["args"]),
            max_threads=row["max_threads"],
        )
        for row in json.loads(text)
    }


def parse_ir(text: str) -> dict[str, Interface]:
    """Returns the kernels defined in LLVM IR compiled for an AMD target, by name."""
    interfaces = {}
    for name, arguments, attributes in _KERNEL.findall(text):
        bounds = re.search(_LAUNCH_BOUNDS.format(attributes), text, re.MULTILINE)
        if bounds is None:
            raise InterfaceError(f"{name}: no launch bounds in its attributes")
        interfaces[name] = Interface(name, _arguments(name, arguments), int(bounds[1]))
    return interfaces


def _arguments(kernel: str, text: str) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    end = 0
    for part in filter(None, text.split(", ")):
        words = part.split()
        name = words[-1].removeprefix("%").removesuffix(".coerce")
        kind = "pointer" if words[0] == "ptr" else _IR_TYPES.get(words[0])
        if kind is None or "byref" in part:
            raise InterfaceError(
                f"{kernel}: argument {name} is a {words[0]}; kernels take pointers and numbers only"
            )
        size = _SIZES[kind]
        offset = (end + size - 1) // size * size
        arguments.append(Argument(name, kind, offset))
        end = offset + size
    return tuple(arguments)


def read_constants(headers: Path = HEADERS) -> dict[str, int]:
    """Returns the integers that the headers define as plain numbers, by name.

    Raises:
        InterfaceError: Two headers define one name differently.
    """
    constants: dict[str, int] = {}
    for path in sorted(headers.rglob("*.h")):
        for name, value in _CONSTANT.findall(path.read_text()):
            if constants.setdefault(name, int(value)) != int(value):
                raise InterfaceError(f"{path.name}: {name} is {constants[name]} in another header")
    return constants


def check_code_object(interface: Interface, metadata: dict[str, Any]) -> None:
    """Compares the interface with what the code object says about the same kernel.

    Raises:
        InterfaceError: they differ.
    """
    visible = [arg for arg in metadata.get(".args", []) if not _is_hidden(arg)]
    layout = [(arg[".offset"], arg[".size"]) for arg in visible]
    expected = [(arg.offset, arg.size) for arg in interface.args]
    if layout != expected:
        raise InterfaceError(f"{interface.kernel}: argument layout {layout}, expected {expected}")


def _is_hidden(argument: dict[str, Any]) -> bool:
    return str(argument[".value_kind"]).startswith("hidden_")
