"""The files of a model's cache, within a bound that all models of the folder share.

Threads do everything that touches the disk, some that read and one that writes, so no step waits
for it. The calls of this class only start work and take in what was done; they belong to the
engine's thread.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from rocmforge.backend.arrays import UInt8Array
from rocmforge.engine.cache.tiers.block_file import (
    OVERHEAD,
    PARTIAL,
    SUFFIX,
    FileKey,
    RefusedFile,
    read_entry,
    write_entry,
)
from rocmforge.engine.sequence.block_keys import BlockKey
from rocmforge.errors import ConfigurationError

logger = logging.getLogger(__name__)

_FREED: Final = 0.9  # of the bound that is kept when files are deleted
_LOOKED: Final = 1 / 16  # of the bound, after which the folder is looked at again
_ABANDONED_S: Final = 600.0  # after which nobody writes a partial file any more
_PAUSE_S: Final = 60.0  # without writing after the disk refused
_READERS: Final = 4  # threads: each hashes what it reads
_TOUCH_S: Final = 600.0  # after which a file that is used still is said to be


@dataclass(frozen=True, slots=True)
class ReadResult:
    """How it went to read a file."""

    found: bool
    refused: bool = False  # it was there, but is not to be trusted, and is gone now
    seconds: float = 0.0  # of one thread's share


class CacheFolder:
    """The files of one model.

    Args:
        root: of all models.
        fingerprint: of this model, 32 bytes.
        bound: bytes of all files below the root.
        clock: seconds, monotonic.

    Raises:
        ConfigurationError: the folder cannot be used.
    """

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        bound: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fingerprint = fingerprint
        self._folder = root / fingerprint[:16].hex()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            self._names = {each.stem for each in self._folder.iterdir() if each.suffix == SUFFIX}
        except OSError as error:
            raise ConfigurationError(
                f"--cache-dir {root}: the folder cannot be used ({error.strerror})."
            ) from error
        self._clock = clock
        self._space = _Space(root, bound)
        self._reader = ThreadPoolExecutor(_READERS, "cache reads")
        self._writer = ThreadPoolExecutor(1, "cache writes")
        self._touched: OrderedDict[BlockKey, float] = OrderedDict()  # longest ago first
        self._paused_until = 0.0
        self._has_warned = False

    def __str__(self) -> str:
        return str(self._folder)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is written for a while, because the disk refused."""
        return self._clock() < self._paused_until

    def has(self, key: BlockKey) -> bool:
        """Returns whether there seems to be a file for a block."""
        return self._key(key).name in self._names

    def read(self, key: BlockKey, target: UInt8Array) -> Future[ReadResult]:
        """Starts reading the entry of a block; `take_read` must be told."""
        return self._reader.submit(self._read, self._key(key), target)

    def take_read(self, key: BlockKey, result: ReadResult) -> None:
        """Takes in how it went."""
        if result.found:
            self._note(key)
        else:
            self._names.discard(self._key(key).name)

    def touch(self, key: BlockKey, age: int) -> None:
        """Learns that a block is in use, wherever it was found, so that its file stays longest.

        Args:
            key: of the block.
            age: as of `write`.
        """
        if self._clock() - self._touched.get(key, -inf) >= _TOUCH_S and self.has(key):
            self._note(key)
            self._writer.submit(self._stamp, self._key(key), age)

    def write(self, key: BlockKey, content: UInt8Array, age: int) -> Future[frozenset[str] | None]:
        """Starts writing the entry of a block; `take_written` must be told.

        Args:
            key: of the block.
            content: stays as it is until then.
            age: of blocks that are used together, those of a higher age are deleted first.
        """
        return self._writer.submit(self._write, self._key(key), content, age)

    def take_written(self, key: BlockKey, deleted: frozenset[str] | None) -> bool:
        """Takes in which files had to go for it; None and False: it was not written."""
        if deleted is None:
            self._paused_until = self._clock() + _PAUSE_S
            return False
        self._names -= deleted
        self._names.add(self._key(key).name)
        self._note(key)
        return True

    def _note(self, key: BlockKey) -> None:
        """Remembers when a file was used, of no more files than there are."""
        self._touched[key] = self._clock()
        self._touched.move_to_end(key)
        while len(self._touched) > len(self._names):
            self._touched.popitem(last=False)

    def close(self) -> None:
        """Waits for what is being read and written; forgets what has not begun."""
        for threads in (self._reader, self._writer):
            threads.shutdown(wait=True, cancel_futures=True)

    def _key(self, key: BlockKey) -> FileKey:
        return FileKey.of(self._fingerprint, key)

    def _read(self, key: FileKey, target: UInt8Array) -> ReadResult:
        started = time.perf_counter()
        path = self._folder / (key.name + SUFFIX)
        try:
            read_entry(self._folder, key, target)
        except RefusedFile as refused:
            logger.warning("the cache file %s is not used and deleted: %s", path, refused)
            with suppress(OSError):
                path.unlink()
            return ReadResult(found=False, refused=True)
        except FileNotFoundError:  # deleted for want of room, by this process or another
            return ReadResult(found=False)
        except OSError as error:
            logger.warning("the cache file %s cannot be read: %s", path, error.strerror)
            return ReadResult(found=False, refused=True)
        with suppress(OSError):
            os.utime(path)
        return ReadResult(found=True, seconds=(time.perf_counter() - started) / _READERS)

    def _write(self, key: FileKey, content: UInt8Array, age: int) -> frozenset[str] | None:
        try:
            deleted = self._space.make_room(OVERHEAD + content.nbytes)
            if deleted is None:
                raise OSError(0, "one entry is larger than --cache-dir-size")
            write_entry(self._folder, key, content)
            self._stamp(key, age)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "Nothing can be written to the cache folder %s (%s). Requests are answered as "
                    "before; it is tried again every %d seconds, without another warning.",
                    *(self._folder, error.strerror, _PAUSE_S),
                )
            return None
        return frozenset(path.stem for path in deleted if path.parent == self._folder)

    def _stamp(self, key: FileKey, age: int) -> None:
        stamp = time.time_ns() - age * 1000
        with suppress(FileNotFoundError):  # deleted by another process
            os.utime(self._folder / (key.name + SUFFIX), ns=(stamp, stamp))


class _Space:
    """The bytes of all files of all models, of which other processes may write some.

    Args:
        root: of all models.
        bound: bytes.
    """

    def __init__(self, root: Path, bound: int) -> None:
        self._root = root
        self._bound = bound
        self._used = 0
        self._until_look = 0  # bytes

    def make_room(self, size: int) -> list[Path] | None:
        """Makes room for a file; returns those that had to go, None if it does not fit at all."""
        if size > self._bound * _FREED:
            return None
        self._until_look -= size
        deleted: list[Path] = []
        if self._until_look < 0 or self._used + size > self._bound:
            deleted = self._look(size)
        self._used += size
        return deleted

    def _look(self, size: int) -> list[Path]:
        """Counts all files, and deletes the oldest if they are too many."""
        self._until_look = int(self._bound * _LOOKED)
        files = [found for found in map(_stat, self._root.glob(f"*/*{SUFFIX}")) if found]
        for path in self._root.glob(f"*/*{PARTIAL}"):
            found = _stat(path)
            if found and time.time() - found[0] / 1e9 > _ABANDONED_S:
                _delete(path)
        self._used = sum(each[1] for each in files)
        deleted: list[Path] = []
        if self._used + size <= self._bound:
            return deleted
        for _, nbytes, path in sorted(files):
            if self._used + size <= self._bound * _FREED:
                break
            _delete(path)
            deleted.append(path)
            self._used -= nbytes
        return deleted


def _stat(path: Path) -> tuple[int, int, Path] | None:
    try:
        found = path.stat()
    except OSError:  # another process has deleted it
        return None
    return found.st_mtime_ns, found.st_size, path


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
