"""Arguments of kernels: how they are declared, and how they are packed for a launch.

A declaration is a function that is never called: its name is that of a kernel, or the beginning of
those of its variants, and it has a keyword for each argument, named and ordered as in the kernel's
source, or for a record of several (`Forms`). `check_declaration` compares it with the manifest when
a kernel is loaded, so that a launch, which names its arguments, cannot mean other ones than the
kernel does.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any, Final, Protocol, get_args, get_type_hints

import numpy as np

from rocmforge.errors import BackendError
from rocmforge_hip.device.driver import ArgumentBuffer

_CODES: Final = {"pointer": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q"} | {
    "f16": "e",
    "f32": "f",
    "f64": "d",
}
_FLOATS: Final = ("f16", "f32", "f64")
_FLOAT_TYPES: Final = (float, np.floating)


@dataclass(frozen=True, slots=True)
class Record:
    """Several arguments that a keyword of a declaration stands for.

    Attributes:
        kinds: Of each attribute that the record has, the manifest's name of the argument's type.
        is_named: Whether names of arguments begin with the keyword; else they are those of the
            attributes alone.
    """

    kinds: Mapping[str, str]
    is_named: bool = True

    def names(self, keyword: str) -> tuple[str, ...]:
        """Returns the names of the arguments."""
        return tuple(f"{keyword}_{each}" if self.is_named else each for each in self.kinds)


def record_of(fields: type) -> Record:
    """Returns a record whose attributes are the fields of a class, and called like the arguments.

    Their annotations say what they are, as those of a declaration do.
    """
    kinds = dict[str, str]()
    for name, kind in _kinds(fields).items():
        assert isinstance(kind, str), f"{name} of {fields.__name__} is a record itself"
        kinds[name] = kind
    return Record(kinds, is_named=False)


def pointers(*names: str) -> Record:
    """Returns a record whose attributes are called like the arguments, which are all pointers."""
    return Record(dict.fromkeys(names, "pointer"), is_named=False)


class Pointer(Protocol):
    """Anything that lies in device memory. `Pointer | None`: the kernel looks for null."""

    @property
    def address(self) -> int:
        """Its place in device memory."""
        ...


I32 = Annotated[int, "i32"]
I64 = Annotated[int, "i64"]
F32 = Annotated[float, "f32"]


class _Floats(Protocol):
    @property
    def f32(self) -> Pointer | None: ...
    @property
    def f16(self) -> Pointer | None: ...


class _Forms(_Floats, Protocol):
    @property
    def q(self) -> Pointer | None: ...
    @property
    def q_scale(self) -> Pointer | None: ...
    @property
    def q_lo_offset(self) -> int: ...


FloatForms = Annotated[_Floats, Record({"f32": "pointer", "f16": "pointer"})]
"""The arguments `out_f32` and `out_f16` of a keyword `out`: what is not null is written."""
Forms = Annotated[
    _Forms,
    Record(
        {
            "f32": "pointer",
            "f16": "pointer",
            "q": "pointer",
            "q_scale": "pointer",
            "q_lo_offset": "i32",
        }
    ),
]
"""Those and the int8 form of kernels/include/rf/activations/act.h."""


class _Factor(Protocol):
    @property
    def weight(self) -> Pointer | None: ...
    @property
    def bias(self) -> Pointer | None: ...
    @property
    def out(self) -> Pointer | None: ...
    @property
    def out_features(self) -> int: ...
    @property
    def format(self) -> int: ...


Factor = Annotated[
    _Factor,
    Record(
        {
            "weight": "pointer",
            "bias": "pointer",
            "out": "pointer",
            "out_features": "i32",
            "format": "i32",
        }
    ),
]
"""One of several matrices of a launch: its bias, its product and the number of its format."""


class KernelArgumentError(BackendError):
    """A launch does not fit its kernel: a mistake in this package, or kernels from elsewhere."""


def check_declaration(
    kernel: str, declaration: Callable[..., None], arguments: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """Compares a declaration with what the manifest says about the arguments of a kernel.

    A keyword with a default is one that some variants of the kernel lack.

    Args:
        kernel: Its name.
        declaration: Of its arguments.
        arguments: Name, type and offset of each, in the kernel's order.

    Returns:
        The names with a default that the kernel lacks.

    Raises:
        KernelArgumentError: Names, order or types differ; says which.
    """
    parameters = _declared(declaration)
    types = {name: kind for name, kind, _ in parameters}
    taken = {argument["name"]: argument["type"] for argument in arguments}
    names = [name for name, _, is_needed in parameters if is_needed or name in taken]
    what = f"its declaration {declaration.__name__}"
    for name in taken:
        if name not in names:
            raise KernelArgumentError(kernel, f"it takes {name}, which {what} lacks")
    for name in names:
        if name not in taken:
            raise KernelArgumentError(kernel, f"{what} has {name}, which it does not take")
    for number, (name, there) in enumerate(zip(names, taken, strict=True), 1):
        if name != there:
            raise KernelArgumentError(kernel, f"argument {number} is {there}, but {name} in {what}")
        if taken[name] != types[name]:
            raise KernelArgumentError(
                kernel, f"{name} is of type {taken[name]}, but {types[name]} in {what}"
            )
    return tuple(name for name in types if name not in taken)


def records_of(declaration: Callable[..., None]) -> dict[str, Record]:
    """Returns the keywords of a declaration that stand for records, each with what it is."""
    kinds = _kinds(declaration)
    return {name: kind for name, kind in kinds.items() if isinstance(kind, Record)}


@cache
def _declared(declaration: Callable[..., None]) -> tuple[tuple[str, str, bool], ...]:
    """Returns each argument: its name, the manifest's name of its type, whether all variants do."""
    kinds, found = _kinds(declaration), list[tuple[str, str, bool]]()
    for each in inspect.signature(declaration).parameters.values():
        kind, is_needed = kinds[each.name], each.default is each.empty
        if isinstance(kind, str):
            found.append((each.name, kind, is_needed))
        else:
            for name, own in zip(kind.names(each.name), kind.kinds.values(), strict=True):
                found.append((name, own, is_needed))
    return tuple(found)


@cache
def _kinds(declaration: Callable[..., object]) -> Mapping[str, str | Record]:
    """Returns what `_kind` says of each annotation.

    They are text, to be compiled, and a declaration is that of many kernels.
    """
    hints = get_type_hints(declaration, include_extras=True)
    return MappingProxyType({name: _kind(hint) for name, hint in hints.items()})


def _kind(hint: Any) -> str | Record:
    """Returns the manifest's name of an annotated type, or what a record is made of."""
    for each in (hint, *get_args(hint)):
        for kind in getattr(each, "__metadata__", ()):
            return kind  # type: ignore[no-any-return]
    return "pointer"


class ArgumentPacker:
    """Packs the arguments of one kernel where its manifest entry says they lie.

    hip-python packs Python objects by their own size and says nothing when there are too few or
    when a host address is passed by mistake, so it is only given the finished bytes.

    Args:
        kernel: Its name, for errors.
        arguments: Name, type and offset of each, in the kernel's order.
        lacking: Names that a launch may give as None, as the kernel does not take them.
        records: Keywords of a launch that stand for several arguments.
    """

    def __init__(
        self,
        kernel: str,
        arguments: Sequence[Mapping[str, Any]],
        lacking: Sequence[str] = (),
        records: Mapping[str, Record] | None = None,
    ) -> None:
        self.kernel = kernel
        self._kinds = {argument["name"]: argument["type"] for argument in arguments}
        self._lacking = tuple(lacking)
        self._records = dict(records or {})
        layout = _format(arguments)
        self._buffer = ArgumentBuffer(layout.size)
        pack = partial(layout.pack_into, self._buffer.data, 0)
        self._write = _writer(self._kinds, self._lacking, self._records, pack)

    def pack(self, arguments: Mapping[str, Any]) -> ArgumentBuffer:
        """Packs arguments by their names; what it returns is valid until the next call.

        Raises:
            KernelArgumentError: One is missing or too many, or a kind or a size is wrong.
        """
        try:
            self._write(**arguments)
        except (TypeError, AttributeError, struct.error, OverflowError) as error:
            raise KernelArgumentError(self.kernel, self._mistake(arguments, error)) from error
        return self._buffer

    def pack_in_order(self, arguments: Sequence[Any]) -> ArgumentBuffer:
        """Packs arguments in the kernel's order, as `pack`; none of them may be a record."""
        if len(arguments) != len(self._kinds):
            raise KernelArgumentError(
                self.kernel,
                f"it takes {len(self._kinds)} arguments ({', '.join(self._kinds)}), "
                f"not {len(arguments)}",
            )
        return self.pack(dict(zip(self._kinds, arguments, strict=True)))

    def _mistake(self, arguments: Mapping[str, Any], error: Exception) -> str:
        """Returns what is wrong with arguments that could not be packed."""
        given = dict(arguments)
        for keyword, record in self._records.items():
            if (value := given.pop(keyword, None)) is not None:
                values = (getattr(value, name, None) for name in record.kinds)
                given.update(zip(record.names(keyword), values, strict=True))
        for name in self._lacking:
            if given.pop(name, None) is not None:
                return f"it does not take {name}"
        for name in self._kinds:
            if name not in given:
                return f"{name} is missing"
        if extra := [name for name in given if name not in self._kinds]:
            return f"it does not take {', '.join(extra)}"
        for name, kind in self._kinds.items():
            value = given[name]
            is_pointer = value is None or hasattr(value, "address")
            is_float = isinstance(value, _FLOAT_TYPES)
            if not (is_pointer if kind == "pointer" else is_float or kind not in _FLOATS):
                return f"{name} is a {kind}, got {value!r}"
        return f"{error}; got {', '.join(f'{name}={value}' for name, value in given.items())}"


def _writer(
    kinds: Mapping[str, str],
    lacking: Sequence[str],
    records: Mapping[str, Record],
    pack: Callable[..., None],
) -> Callable[..., None]:
    """Makes the function that packs a launch's keywords, which are its parameters.

    It is compiled from their names, as the methods of dataclasses are: each launch calls it, and
    loops over names, kinds and values took a sixth of the host's time for a launch. The names are
    those of a declaration, which a kernel's have been compared with.

    Args:
        kinds: The manifest's name of the type of each argument, in the kernel's order.
        lacking: As of `ArgumentPacker`.
        records: As of `ArgumentPacker`.
        pack: Takes the values of all arguments.
    """
    sources = {name: name for name in kinds}  # where in the keywords an argument is
    keywords = dict.fromkeys(kinds)
    for keyword, record in records.items():
        for name, attribute in zip(record.names(keyword), record.kinds, strict=True):
            sources[name] = f"{keyword}.{attribute}"
            keywords.pop(name, None)
        keywords[keyword] = None
    values = []
    for name, kind in kinds.items():
        if kind == "pointer":
            values.append(f"0 if (at := {sources[name]}) is None else at.address")
        else:
            values.append(f"float_of({sources[name]})" if kind in _FLOATS else sources[name])
    parameters = [*keywords, *(f"{name}=None" for name in lacking)]
    # A kernel that takes nothing has no asterisk either.
    signature = ", ".join(("*", *parameters)) if parameters else ""
    refused = "".join(f"    if {name} is not None: raise TypeError\n" for name in lacking)
    source = f"def write({signature}):\n{refused}    pack({', '.join(values)})\n"
    made: dict[str, Any] = {"pack": pack, "float_of": _checked_float}
    exec(source, made)
    write: Callable[..., None] = made["write"]
    return write


def _checked_float(value: Any) -> Any:
    """Returns a float. struct turns an integer into one without a word; not so the other way."""
    if not isinstance(value, _FLOAT_TYPES):
        raise TypeError
    return value


def _format(arguments: Sequence[Mapping[str, Any]]) -> struct.Struct:
    """Returns the layout of the arguments, with the manifest's offsets."""
    text, end = "<", 0
    for argument in arguments:
        code = _CODES[argument["type"]]
        text += f"{argument['offset'] - end}x{code}"
        end = argument["offset"] + struct.calcsize("<" + code)
    return struct.Struct(text)
