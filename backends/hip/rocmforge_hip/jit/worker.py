"""The child process that compiles: `python -m rocmforge_hip.jit.worker`.

It reads a `Job` as JSON from standard input and writes a list of `Made` to standard output.
Processors are found by name, as the server finds them.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rocmforge.errors import ConfigurationError
from rocmforge.logits.processor import LogitsProcessor
from rocmforge.logits.registry import load_processors
from rocmforge_hip.jit.binding import ON_DEVICE, bind
from rocmforge_hip.jit.source import ARGUMENTS, HELPERS, KernelSource, kernel_source
from rocmforge_hip.jit.toolchain import THREADS, Toolchain, Unavailable

_MESSAGE_LINES: Final = 8
UNAVAILABLE_STATUS: Final = 3
"""Exit status that says: there is no compiler for the target here."""


class Job(msgspec.Struct, frozen=True):
    """A processor to compile, and for which device."""

    target: str  # "gfx1100", "sm_90"
    processors: tuple[str, ...]


class Made(msgspec.Struct, frozen=True):
    """The result of compiling a processor: code, or a problem."""

    processor: str
    symbol: str = ""
    code: bytes = b""  # a code object, or PTX
    problem: str = ""


def main() -> None:
    """Compiles a job. Without a compiler, `UNAVAILABLE_STATUS` and the reason on standard error."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        toolchain = find_toolchain(job.target)
    except Unavailable as unavailable:
        print(unavailable, file=sys.stderr)
        sys.exit(UNAVAILABLE_STATUS)
    processors = load_processors()
    made = [_compile(processors[name], job.target, toolchain) for name in job.processors]
    sys.stdout.buffer.write(msgspec.json.encode(made))


def find_toolchain(target: str) -> Toolchain:
    """Returns numba for a device.

    Raises:
        Unavailable: It is not installed, or does not work here.
    """
    if target.startswith("sm_"):
        from rocmforge_hip.jit.cuda_target import CudaToolchain

        return CudaToolchain(target)
    if target.startswith("gfx"):
        from rocmforge_hip.jit.hip_target import HipToolchain

        return HipToolchain(target)
    raise Unavailable(f"numba has no target {target}")


def _compile(processor: LogitsProcessor, target: str, toolchain: Toolchain) -> Made:
    try:
        source = kernel_source(processor)
        kernel = build_kernel(source, toolchain.gpu, toolchain.device_function, _advance())
        symbol, code = toolchain.compile(kernel, _argument_types())
    except ConfigurationError as error:
        return Made(processor.name, problem=error.message)
    except _numba().core.errors.NumbaError as error:
        return Made(processor.name, problem=_explain(processor, target, error))
    return Made(processor.name, symbol, code)


def build_kernel(
    source: KernelSource,
    gpu: Any,
    device_function: Callable[[Callable[..., Any]], Any],
    advance: Any,
    threads: int = THREADS,
    replaced: Mapping[Any, Callable[..., Any]] = ON_DEVICE,
) -> Callable[..., Any]:
    """Returns the kernel's text as a Python function, with everything it calls."""
    names: dict[str, Any] = {"gpu": gpu, "np": np, "THREADS": threads, "advance": advance}
    exec(compile(HELPERS, "<helpers>", "exec"), names)
    for name in ("block_sum", "block_max", "block_min", "ordered"):
        names[name] = device_function(names[name])
    for name, function in source.functions.items():
        names[name] = bind(function, device_function, replaced)
    exec(compile(source.text, "<kernel>", "exec"), names)
    kernel: Callable[..., Any] = names["kernel"]
    return kernel


def _numba() -> Any:
    """Imports numba, which has no types."""
    import numba
    import numba.core.errors
    import numba.extending

    return numba


def _advance() -> Any:
    """Adds pointer arithmetic, which numba does not have."""
    numba = _numba()

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def advance(typing_context: Any, pointer: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.gep(arguments[0], [arguments[1]])

        return pointer(pointer, numba.types.int64), generate

    return advance


def _argument_types() -> list[Any]:
    types = _numba().types
    numbers = {"f32": types.float32, "i32": types.int32, "u32": types.uint32}
    return [
        types.CPointer(numbers[kind[:-1]]) if kind.endswith("*") else numbers[kind]
        for _, kind in ARGUMENTS
    ]


def _explain(processor: LogitsProcessor, target: str, error: Exception) -> str:
    """Returns the beginning of numba's message, with the line of the user's function in front."""
    functions = [processor.function, *(need.function for need in processor.needs)]
    found = (_place(functions, *place) for place in _places(error))
    where = next(filter(None, found), processor.origin)
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    summary = " ".join(line.strip() for line in message.splitlines()[:_MESSAGE_LINES])
    return (
        f"The logits processor {processor.name!r} cannot be compiled for {target}, because of "
        f"{where}: {summary}"
    )


def _places(error: Exception) -> Iterator[tuple[str, int]]:
    """Yields the file and line of what numba was looking at, the innermost first.

    Its errors do not always say; what it was working on when it raised them does.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        for value in (error, *frame.f_locals.values()):
            place: Any = getattr(value, "loc", None)
            if isinstance(getattr(place, "filename", None), str):
                yield place.filename, place.line


def _place(functions: list[Callable[..., Any]], file: str, line: int) -> str | None:
    """Returns which of the functions this line belongs to, and where it is."""
    file = str(Path(file).resolve())
    before = [
        function
        for function in functions
        if function.__code__.co_filename == file and function.__code__.co_firstlineno <= line
    ]
    if not before:
        return None
    nearest = max(before, key=lambda function: function.__code__.co_firstlineno)
    return f"{nearest.__name__} ({file}:{line})"


if __name__ == "__main__":
    main()
