"""Compiles processors for a device when the backend loads, or finds what an earlier start made.

A kernel in the cache is named by a hash of everything it is made of: the processor's functions and
all they call, this package, the versions of numba and Python, and the target. Its file begins with
a hash of its content; one that does not fit is made anew.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import msgspec

from rocmforge.errors import ConfigurationError
from rocmforge.logits.processor import Function, LogitsProcessor
from rocmforge_hip.jit.binding import global_values
from rocmforge_hip.jit.worker import UNAVAILABLE_STATUS, Job, Made
from rocmforge_hip.whole_file import write_whole

logger = logging.getLogger(__name__)

_COMPILERS: Final = {"gfx": "numba-hip", "sm_": "numba-cuda"}
_TIMEOUT_S: Final = 600.0
_DIGEST_BYTES: Final = 32


class CannotCompile(Exception):
    """There is no compiler for the target here; the text says why."""


@dataclass(frozen=True, slots=True)
class ProcessorKernels:
    """All processors, and the kernels they became; None where they have to run on the host."""

    processors: Mapping[str, LogitsProcessor]
    made: Mapping[str, Made] | None
    note: str  # for /health


NO_KERNELS: Final = ProcessorKernels({}, None, "")
"""For a model that nobody will ask for processors."""


def prepare_processors(
    processors: Mapping[str, LogitsProcessor], target: str, cache: Path
) -> ProcessorKernels:
    """Compiles the kernels of all processors for a device, if there is a compiler for it.

    Raises:
        ConfigurationError: A processor is not in the subset of Python that numba compiles.
    """
    try:
        made = compile_processors(processors, target, cache)
    except CannotCompile as reason:
        note = f"logits processors run on the host, in NumPy: {reason}"
        logger.warning("%s", note)
        return ProcessorKernels(processors, None, note)
    return ProcessorKernels(processors, made, f"logits processors are compiled for {target}")


def compile_processors(
    processors: Mapping[str, LogitsProcessor], target: str, cache: Path
) -> dict[str, Made]:
    """Compiles a kernel for each processor.

    Args:
        processors: by name.
        target: of the device, "gfx1100".
        cache: folder of the kernels made so far; need not exist.

    Raises:
        ConfigurationError: A processor is not in the subset of Python that numba compiles.
        CannotCompile: No processor can be compiled here.
    """
    versions = _versions(target)
    files = {
        name: cache / f"{name}-{target}-{_key(processor, target, versions)}.kernel"
        for name, processor in processors.items()
    }
    found = {name: made for name, file in files.items() if (made := _read(file)) is not None}
    missing = tuple(name for name in files if name not in found)
    if missing:
        for made in _run_worker(Job(target, missing)):
            if made.problem:
                raise ConfigurationError(made.problem)
            _write(files[made.processor], made)
            found[made.processor] = made
    return found


def _versions(target: str) -> str:
    """Returns the versions of all that has a part in a kernel.

    Raises:
        CannotCompile: There is no numba for the target.
    """
    package = _COMPILERS.get(target[:3])
    if package is None:
        raise CannotCompile(f"numba has no target {target}")
    try:
        versions = [f"{name} {version(name)}" for name in (package, "numba", "llvmlite")]
    except PackageNotFoundError as error:
        raise CannotCompile(f"{error.name} is not installed") from error
    return f"{sys.version} {versions}"


def _key(processor: LogitsProcessor, target: str, versions: str) -> str:
    digest = hashlib.sha256(f"{target} {versions}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    description = processor.parameters, processor.history
    digest.update(repr(description).encode())
    for function in (*(need.function for need in processor.needs), processor.function):
        for part in _parts(function, set()):
            digest.update(part.encode() + b"\0")
    for need in processor.needs:
        settings = {name: getattr(need, name) for name in need.__slots__ if name != "function"}
        digest.update(repr(settings).encode())
    return digest.hexdigest()[:24]


def _parts(function: Function, done: set[Function]) -> Iterator[str]:
    """Yields everything that a function's meaning depends on, as texts."""
    if function in done:
        return
    done.add(function)
    yield function.__name__
    yield from _code_parts(function.__code__)
    closure = inspect.getclosurevars(function).nonlocals
    for name, value in sorted({**global_values(function), **closure}.items()):
        yield name
        if isinstance(value, FunctionType):
            yield from _parts(value, done)
        elif isinstance(value, ModuleType):
            yield value.__name__
        else:
            yield repr(value)


def _code_parts(code: CodeType) -> Iterator[str]:
    yield repr((code.co_code, code.co_names, code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield repr(constant)


def _read(file: Path) -> Made | None:
    if not file.is_file():
        return None
    content = file.read_bytes()
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        logger.warning("%s is damaged and is made anew", file)
        return None
    return msgspec.msgpack.decode(body, type=Made)


def _write(file: Path, made: Made) -> None:
    """Keeps a kernel."""
    body = msgspec.msgpack.encode(made)
    write_whole(file, hashlib.sha256(body).digest() + body)


def _run_worker(job: Job) -> list[Made]:
    command = [sys.executable, "-m", "rocmforge_hip.jit.worker"]
    logger.info("compiling %s for %s", ", ".join(job.processors), job.target)
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(job),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(f"the compiler did not finish: {error}") from error
    if done.returncode == 0:
        made: Any = msgspec.json.decode(done.stdout, type=list[Made])
        return list(made)
    complaint = done.stderr.decode(errors="replace").strip()
    if done.returncode != UNAVAILABLE_STATUS:
        # Not louder: perhaps nobody asks for a processor, and they run on the host.
        logger.debug("the compiler of logits processors failed:\n%s", complaint)
        last = complaint.splitlines()[-1] if complaint else f"exit status {done.returncode}"
        raise CannotCompile(f"their compiler failed ({last}); --log-level debug shows more")
    raise CannotCompile(complaint.splitlines()[-1])
