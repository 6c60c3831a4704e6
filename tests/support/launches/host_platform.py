"""Starts the checking library of tests/platform/host and talks to what HIP does not have."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Protocol, Self

from kernels.builder import ROOT, build_library
from kernels.cache import replace_file

SOURCES = ROOT / "tests/platform/host"
ROCM_PATH = ROOT / "build/platform/host"
LIBRARY = ROCM_PATH / "lib/libamdhip64.so"
RCCL = ROCM_PATH / "lib/librccl.so"  # another name of it
DEVICES = 4
_WATCHED = "RF_HOST_WATCHED"


class Options(Protocol):
    """What the library is told when it starts."""

    @property
    def wave(self) -> int: ...
    @property
    def lane_order(self) -> str: ...


class Access(IntEnum):
    """What kernels may do with a range of memory."""

    NONE = 0
    READ = 1
    READ_WRITE = 3


def build_host_library() -> Path:
    """Compiles the library unless it is up to date; returns what ROCM_PATH should be.

    All sources at once: most of the work is reading the headers of C++, which each would do again.
    """
    include = (SOURCES, ROOT / "kernels/platform", ROOT / "kernels/include")
    ROCM_PATH.mkdir(parents=True, exist_ok=True)
    joined = ROCM_PATH / "platform.cpp"
    replace_file(joined, "".join(map(_text, sorted(SOURCES.glob("*.cpp")))).encode())
    build_library([joined], include, LIBRARY)
    with suppress(FileExistsError):
        RCCL.symlink_to(LIBRARY.name)
    return ROCM_PATH


def _text(source: Path) -> str:
    return f'#line 1 "{source.relative_to(ROOT)}"\n{source.read_text()}'


class HostPlatform:
    """The library's functions beyond HIP. One per process, as hip-python loads one library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.rf_host_last_finding.restype = ctypes.c_char_p
        library.rf_host_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        library.rf_host_mark_initialised.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.rf_host_label.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
        library.rf_host_set_lane_order.argtypes = [ctypes.c_char_p, ctypes.c_uint]
        library.rf_host_set_stale_replays.argtypes = [ctypes.c_int]
        library.rf_host_set_watched.argtypes = [ctypes.c_int]
        library.rf_host_live_bytes.restype = ctypes.c_size_t

    @classmethod
    def start(cls, options: Options) -> Self:
        """Builds the library and makes it what hip-python loads at its first call."""
        os.environ["ROCM_PATH"] = str(build_host_library())
        os.environ["RF_HOST_WAVE"] = str(options.wave)
        os.environ["RF_HOST_LANE_ORDER"] = options.lane_order
        os.environ["RF_HOST_DEVICES"] = str(DEVICES)
        return cls(ctypes.CDLL(str(LIBRARY)))

    def take_finding(self) -> str:
        """The report of the first mistake since the last call, and forget it; empty if none."""
        text: bytes = self._library.rf_host_last_finding()
        self.clear()
        return text.decode()

    def clear(self) -> None:
        """Forgets findings and the sticky error."""
        self._library.rf_host_clear()

    def reset(self) -> None:
        """Does so, and takes all memory back: a device that failed frees nothing any more."""
        self._library.hipDeviceReset()

    @property
    def live_bytes(self) -> int:
        """Device and pinned memory that is allocated now."""
        return int(self._library.rf_host_live_bytes())

    def label(self, address: int, size: int, name: str) -> None:
        """Names a range of memory in reports."""
        self._library.rf_host_label(address, size, name.encode())

    def protect(self, address: int, size: int, access: Access) -> None:
        """Says what kernels may do with a range: how blocks within one pool are told apart."""
        self._library.rf_host_protect(address, size, access)

    def mark_initialised(self, address: int, size: int) -> None:
        """Allows kernels to read a range that nothing was written to."""
        self._library.rf_host_mark_initialised(address, size)

    def set_lane_order(self, order: str, seed: int = 0) -> None:
        """forward, reverse or random: in which order lanes, waves and blocks run."""
        self._library.rf_host_set_lane_order(order.encode(), seed)

    @contextmanager
    def watching(self, launches: int) -> Iterator[None]:
        """Compares accesses to LDS in so many launches of a kernel in a shape, and some later ones.

        Here and in processes that begin meanwhile. Everything else is checked in all launches.
        """
        self._library.rf_host_set_watched(launches)
        os.environ[_WATCHED] = str(launches)
        try:
            yield
        finally:
            self._library.rf_host_set_watched(0)
            del os.environ[_WATCHED]

    @contextmanager
    def stale_replays(self, after: int) -> Iterator[None]:
        """Plants a fault: so many operations into a graph, inputs are those of the last launch."""
        self._library.rf_host_set_stale_replays(after)
        try:
            yield
        finally:
            self._library.rf_host_set_stale_replays(-1)
