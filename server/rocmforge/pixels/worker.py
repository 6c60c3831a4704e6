"""A process that reads images, one after the other: `python -m rocmforge.pixels.worker`.

Jobs come on standard input, what came of them goes to standard output. The process gives up what
it does not need: it can write no file, and takes no more memory and processor time than its limits
say. It ends with its standard input.
"""

from __future__ import annotations

import os
import resource
from math import ceil
from pathlib import Path

from rocmforge.errors import InvalidParameter
from rocmforge.pixels.jobs import (
    ReadJob,
    ReadOutcome,
    WorkerLimits,
    decoder_of,
    receive,
    send,
)
from rocmforge.pixels.processors.processing import process
from rocmforge.pixels.reading import read_image


def main() -> None:
    """Works until there are no more jobs."""
    jobs, outcomes = 0, os.dup(1)
    os.dup2(2, 1)  # whatever prints shall not print into the outcomes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    own_bytes = _address_space()
    decoder = decoder_of(ReadJob)
    while (job := receive(jobs, decoder)) is not None:
        _limit(job.limits, own_bytes)
        send(outcomes, _outcome(job))


def _outcome(job: ReadJob) -> ReadOutcome:
    try:
        image = read_image(job.data, job.limits)
        return ReadOutcome(image=process(image, job.config))
    except InvalidParameter as error:
        return ReadOutcome(problem=error.message)
    except MemoryError:
        return ReadOutcome(problem="takes too much memory to read")


def _limit(limits: WorkerLimits, own_bytes: int) -> None:
    """Sets what the next image may take."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime + limits.seconds
    for kind, most in (
        (resource.RLIMIT_AS, own_bytes + limits.memory_bytes),
        (resource.RLIMIT_CPU, ceil(seconds)),
    ):
        _, hard = resource.getrlimit(kind)
        lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (lowest, hard))


def _address_space() -> int:
    """Returns the bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
