"""Reads of files that run beside this program's threads: POSIX asynchronous I/O.

The C library has threads of its own for them, which copy from the page cache and never wait for the
interpreter's lock, nor anybody for them. It reads one descriptor's parts one after the other, so
that each read that is to run beside others has a descriptor of its own.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Final

from rocmforge.checkpoint.locator import FilePart
from rocmforge.errors import ModelLoadError

THREADS: Final = 12
"""How many parts of reads the C library reads at a time; the others wait for their turn.

A thread that finds the next one waiting need not be woken for it, and fewer leave more of the
processor and its memory to the thread that starts copies.
"""
PARTS: Final = 4
"""How many parts a long read has, each of which a thread reads.

So it is there sooner, and memory for few reads keeps all threads busy.
"""
_LEAST_PART: Final = 1 << 20
"""Bytes of a part, unless it is the last; less takes hardly longer than to start it."""
_NO_SIGNAL: Final = 1  # SIGEV_NONE
_DESCRIPTORS: Final = 512
"""More than a process has whose model is being loaded: GPU runtimes open some hundred files."""


class _ControlBlock(ctypes.Structure):
    """`struct aiocb`, as glibc and musl have it where pointers have 64 bits."""

    _fields_ = (
        ("descriptor", ctypes.c_int),
        ("opcode", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("address", ctypes.c_void_p),
        ("nbytes", ctypes.c_size_t),
        ("signal_value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest_of_notify", ctypes.c_byte * 48),
        ("of_library", ctypes.c_byte * 32),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_byte * 32),
    )


class _Limits(ctypes.Structure):
    """`struct aioinit`, as glibc has it."""

    _fields_ = (
        ("threads", ctypes.c_int),
        ("requests", ctypes.c_int),  # that it makes room for at first
        ("of_library", ctypes.c_int * 4),
        ("idle_seconds", ctypes.c_int),  # until a thread ends
        ("reserved", ctypes.c_int),
    )


class FileRead:
    """One read after the other, each beside what this thread does meanwhile."""

    def __init__(self) -> None:
        self._parts = tuple(_PartRead() for _ in range(PARTS))

    def start(self, part: FilePart, address: int, nbytes: int) -> None:
        """Starts to read; nothing else may use the memory until `wait` or `close` has returned.

        Args:
            part: Where the bytes begin.
            address: Of the memory for them.
            nbytes: How many; at least one.

        Raises:
            OSError: The file cannot be opened, or the system has no thread for it.
        """
        assert not any(read.is_running for read in self._parts)
        pages = PARTS * mmap.PAGESIZE  # whole ones, so that no two threads write to one
        step = max(-(-nbytes // pages) * mmap.PAGESIZE, _LEAST_PART)
        for read, start in zip(self._parts, range(0, nbytes, step), strict=False):
            count = min(step, nbytes - start)
            read.start(part.path, part.offset + start, address + start, count)

    def wait(self) -> None:
        """Waits until all bytes are there.

        Raises:
            ModelLoadError: The file ends before.
            OSError: The system cannot read it.
        """
        for read in self._parts:
            read.wait()

    def close(self) -> None:
        """Ends a read that is running, and closes the file."""
        for read in self._parts:
            read.close()


class _PartRead:
    """The reads of one of the parts."""

    def __init__(self) -> None:
        self._library = _library()
        self._block = _ControlBlock(notify=_NO_SIGNAL)
        self._address = ctypes.addressof(self._block)
        self._list = (ctypes.c_void_p * 1)(self._address)
        self._path: Path | None = None
        self.is_running = False

    def start(self, path: Path, offset: int, address: int, nbytes: int) -> None:
        """Starts to read, as `FileRead.start`."""
        if path != self._path:
            self._close_file()
            self._block.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._path = path
        self._start(offset, address, nbytes)

    def start_from(self, pipe: int, address: int) -> None:
        """Starts to read a byte from another descriptor of a pipe."""
        self._block.descriptor, self._path = os.dup(pipe), Path("a pipe")
        self._start(0, address, 1)

    def wait(self) -> None:
        """Waits until all bytes are there, if any are to come; raises as `FileRead.wait`."""
        block = self._block
        while self.is_running:
            count = self._finish()
            if count == 0:
                raise ModelLoadError(f"{self._path} became shorter while it was read.")
            if count < block.nbytes:
                block.address += count
                block.nbytes -= count
                block.offset += count
                self._go_on()

    def close(self) -> None:
        """Ends a read that is running, and closes the file."""
        if self.is_running:
            self._library.aio_cancel(self._block.descriptor, None)
            with suppress(OSError):  # most often that it was cancelled
                self._finish()
        self._close_file()

    def _start(self, offset: int, address: int, nbytes: int) -> None:
        block = self._block
        block.address, block.nbytes, block.offset = address, nbytes, offset
        self._go_on()

    def _go_on(self) -> None:
        if self._library.aio_read(self._address):
            self._raise(ctypes.get_errno())
        self.is_running = True

    def _finish(self) -> int:
        """Returns how many bytes were read, once there is something to say."""
        library, address = self._library, self._address
        while (error := library.aio_error(address)) == errno.EINPROGRESS:
            library.aio_suspend(self._list, 1, None)
        self.is_running = False
        count: int = library.aio_return(address)
        if error:
            self._raise(error)
        return count

    def _raise(self, error: int) -> None:
        raise OSError(error, os.strerror(error), str(self._path))

    def _close_file(self) -> None:
        if self._path is not None:
            os.close(self._block.descriptor)
            self._path = None


def start_threads() -> None:
    """Starts the C library's threads, which end when they have had nothing to do for a second.

    Making a thread takes 0.4 ms while others touch new memory for the first time, and 0.1 before.

    Raises:
        OSError: The system has no thread or no descriptor for them.
    """
    source, sink = os.pipe()
    memory = bytearray(THREADS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    reads = [_PartRead() for _ in range(THREADS)]
    try:
        # As nothing is there to read yet, none is done before the last has its thread.
        for number, read in enumerate(reads):
            read.start_from(source, address + number)
        os.write(sink, memory)
        for read in reads:
            read.wait()
    finally:
        os.close(sink)
        for read in reads:
            read.close()
        os.close(source)


def reserve_descriptors() -> Thread:
    """Makes room for the descriptors of many reads, beside what this thread does meanwhile.

    Linux makes the table of a process's descriptors larger when one is opened for which it has no
    room, and if there are threads, that call waits until none of them can be reading the old table
    (`expand_fdtable` in its fs/file.c): 11 to 48 ms of the first load of a process.

    Returns:
        The thread that does it, which nothing has to wait for.
    """
    thread = Thread(target=_grow_table, name="rocmforge-descriptors")
    thread.start()
    return thread


def _grow_table() -> None:
    with suppress(OSError), open(os.devnull, "rb") as file:  # where so many are not allowed
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTORS - 1))


@cache
def _library() -> ctypes.CDLL:
    """Returns the C library, with the types of what is called here.

    Its limits are those of the whole process, and of the first call.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "aio_read"):  # before glibc 2.34
        library = ctypes.CDLL("librt.so.1", use_errno=True)
    if hasattr(library, "aio_init"):  # glibc; other libraries have as many threads as reads
        limits = _Limits(threads=THREADS, requests=64, idle_seconds=1)
        library.aio_init(ctypes.byref(limits))
    pointer = ctypes.c_void_p
    library.aio_read.argtypes = (pointer,)
    library.aio_error.argtypes = (pointer,)
    library.aio_return.argtypes = (pointer,)
    library.aio_return.restype = ctypes.c_ssize_t
    library.aio_suspend.argtypes = (pointer, ctypes.c_int, pointer)
    library.aio_cancel.argtypes = (ctypes.c_int, pointer)
    return library
