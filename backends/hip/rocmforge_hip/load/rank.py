"""The protocol by which loading a part of a model asks the rank whose part it is."""

from __future__ import annotations

from typing import Protocol

from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.collective import Communicator
from rocmforge_hip.weights.shard import Shard


class Rank(Protocol):
    """One of several processes that load a model together."""

    @property
    def shard(self) -> Shard:
        """Its part."""
        ...

    def join(self, device: Device) -> Communicator:
        """Finds the other ranks. The device is open; nothing is allocated on it yet.

        Raises:
            EngineError: Another rank failed.
        """
        ...
