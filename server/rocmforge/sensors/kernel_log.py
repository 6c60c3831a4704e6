"""The kernel's words about GPUs in its log: time-outs, resets, errors of memory.

Records of /dev/kmsg are `priority,sequence,microseconds,flags;text`, one for each read
(https://docs.kernel.org/admin-guide/abi-testing-files.html, dev-kmsg). The texts are those of
drivers/gpu/drm/amd/amdgpu (amdgpu_device.c, amdgpu_job.c, amdgpu_ras.c) and amdkfd of Linux 5.15
to 6.17.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_MOST_RECORD: Final = 8192  # bytes; the kernel makes none longer
_MOST_TEXT: Final = 300  # characters of a text that are kept
_ADDRESS: Final = re.compile(r"\b([0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])\b")


class KernelEvent(StrEnum):
    """The kinds of events of a GPU."""

    TIMEOUT = "timeout"  # work did not end in time; a reset follows
    RESET = "reset"  # begins: what its memory holds may be lost
    RECOVERED = "recovered"  # the reset succeeded
    RESET_FAILED = "reset_failed"  # the device stays unusable
    LOST = "lost"  # it does not answer on the bus any more
    MEMORY_ERROR = "memory_error"  # of those that ECC cannot correct
    PAGE_FAULT = "page_fault"  # a kernel touched what is not there
    OVERHEATED = "overheated"  # it or the machine shuts down


_PATTERNS: Final[tuple[tuple[KernelEvent | None, re.Pattern[str]], ...]] = (
    # What looks like an event and is none comes first.
    (None, re.compile(r"timeout, but soft recovered|\bno (un)?correctable hardware errors")),
    (KernelEvent.LOST, re.compile(r"device lost from bus")),
    (
        KernelEvent.RESET_FAILED,
        re.compile(r"GPU reset\(\d+\) failed|GPU reset end with ret|GPU Recovery Failed"),
    ),
    (KernelEvent.RECOVERED, re.compile(r"GPU reset\(\d+\) succeeded")),
    (KernelEvent.RESET, re.compile(r"GPU reset begin")),
    (
        KernelEvent.MEMORY_ERROR,
        re.compile(
            r"\b[1-9]\d* (new )?uncorrectable hardware errors detected(?! in total)"
            r"|poison is consumed|RAS poison consumption|ERREVENT_ATHUB_INTERRUPT"
        ),
    ),
    (KernelEvent.TIMEOUT, re.compile(r"\bring \S+ timeout\b|qcm fence wait loop timeout")),
    (KernelEvent.PAGE_FAULT, re.compile(r"\[gfxhub\d*\] (no-retry )?page fault")),
    (KernelEvent.OVERHEATED, re.compile(r"GPU over temperature range|System is going to shutdown")),
)
_OF_DRIVER: Final = re.compile(r"\bamdgpu|\bkfd\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """An event of a GPU in the kernel's log."""

    event: KernelEvent
    device: str | None  # PCI address; None: the line names none
    seconds: float  # since the machine was started
    text: str


def parse_record(line: str) -> KernelRecord | None:
    """Returns the event that a record tells of; None if it tells of none, or is broken."""
    head, mark, text = line.partition(";")
    fields = head.split(",")
    if not mark or len(fields) < 3 or not fields[2].isdigit() or not _OF_DRIVER.search(text):
        return None
    for event, pattern in _PATTERNS:
        if pattern.search(text):
            if event is None:
                return None
            address = _ADDRESS.search(text)
            shown = "".join(c for c in text[:_MOST_TEXT] if c.isprintable()).strip()
            return KernelRecord(
                event=event,
                device=None if address is None else address[1],
                seconds=int(fields[2][:18]) * 1e-6,
                text=shown,
            )
    return None


class KernelLog:
    """The log, read on from where the last call stopped. Used by one thread.

    Args:
        file: /dev/kmsg, or what stands for it in a test.
        from_now: whether what has been said before is left out.

    Attributes:
        problem: why it cannot be read, else None.
    """

    def __init__(self, file: Path, *, from_now: bool) -> None:
        self.problem: str | None = None
        self._rest = b""
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if from_now:
                os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.problem = error.strerror

    def read(self, most: int) -> list[KernelRecord]:
        """Returns new events, after no more than `most` records; the next call goes on."""
        found: list[KernelRecord] = []
        for _ in range(most if self._descriptor is not None else 0):
            assert self._descriptor is not None
            try:
                data = os.read(self._descriptor, _MOST_RECORD)
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError:  # no more for now
                break
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-_MOST_RECORD:]
            records = (parse_record(line.decode("utf-8", errors="replace")) for line in lines)
            found += [record for record in records if record is not None]
        return found

    def close(self) -> None:
        """Closes it. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def read_all(file: Path, most: int) -> tuple[list[KernelRecord], str | None]:
    """Returns the events of the whole log, and why it cannot be read, if so."""
    log = KernelLog(file, from_now=False)
    try:
        return log.read(most), log.problem
    finally:
        log.close()
