"""The messages between rank 0 and the other ranks: pickled, in one program's processes.

A worker is sent `StartRank`, then the group's id as bytes; from then on each call that rank 0 makes
of its own runner: a `StepInput` to submit, the masks for one as an array, or an `Order`. It answers
while it loads, and if it fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from rocmforge.backend.protocol import LoadOptions
from rocmforge.errors import Fault
from rocmforge_hip.device.discovery import FoundDevice
from rocmforge_hip.weights.shard import Shard


@dataclass(frozen=True, slots=True)
class StartRank:
    """The model that a rank is to load."""

    device: FoundDevice  # with the least free memory of all: then all plan alike
    model: Path  # each process opens the files itself
    options: LoadOptions
    shard: Shard


class Order(Enum):
    """Calls without arguments."""

    COLLECT = auto()
    CLOSE = auto()


class Stage(Enum):
    """The progress of a worker."""

    OPENED = auto()  # the device; now it waits for the group's id
    LOADED = auto()


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a worker."""

    message: str
    fault: Fault = Fault.ERROR
