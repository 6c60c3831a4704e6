"""The process of a rank but the first: `python -m rocmforge_hip.parallel.worker --fd N`.

Started by `processes.py` with one end of a socket pair. It owns its device and makes the calls
that rank 0 makes, in the same order; it lives exactly as long as the other end is open.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rocmforge.backend import owned_process
from rocmforge.backend.step import StepInput
from rocmforge.errors import RocmForgeError
from rocmforge.opening import open_checkpoint
from rocmforge_hip.device.opening import Device
from rocmforge_hip.device.platform import select_platform
from rocmforge_hip.load.loading import load_model
from rocmforge_hip.ops.collective import Communicator
from rocmforge_hip.parallel.messages import Failed, Order, Stage, StartRank
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.weights.shard import Shard

logger = logging.getLogger(__name__)


class Joining:
    """Implements `Rank`: joins when rank 0 says so."""

    def __init__(self, shard: Shard, connection: Connection[Any, Any]) -> None:
        self.shard = shard
        self._connection = connection
        self._communicator: Communicator | None = None

    def join(self, device: Device) -> Communicator:
        self._connection.send(Stage.OPENED)
        self._communicator = Communicator(self._connection.recv(), self.shard, device.stream)
        return self._communicator

    def leave(self) -> None:
        """Leaves at the same time as the others."""
        assert self._communicator is not None
        self._communicator.close()


def run(start: StartRank, connection: Connection[Any, Any]) -> None:
    """Loads and then does as rank 0 does, until told to close.

    After an error nothing is closed, as that may wait for other ranks: the process ends next.

    Raises:
        RocmForgeError: It cannot be loaded, or the device failed.
        EOFError: Rank 0 is gone.
    """
    select_platform()
    rank = Joining(start.shard, connection)
    with open_checkpoint(start.model, start.options.adapters) as checkpoint:
        runner = load_model(start.device, checkpoint, start.options, lambda *_: None, rank)
    gc.collect()
    gc.freeze()  # as in the engine's process
    connection.send(Stage.LOADED)
    follow(connection, runner)
    runner.close()
    rank.leave()


def follow(connection: Connection[Any, Any], runner: HipRunner) -> None:
    """Makes the calls of rank 0."""
    while True:
        message = connection.recv()
        if isinstance(message, StepInput):
            runner.submit(message)
        elif isinstance(message, np.ndarray):
            runner.constrain(message)
        elif message is Order.COLLECT:
            runner.collect()
        else:
            assert message is Order.CLOSE
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the process."""
    logging.disable(logging.WARNING)  # rank 0 warns of the same things
    descriptor = owned_process.begin("rocmforge_hip.parallel.worker", arguments)
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        run(connection.recv(), connection)
    except EOFError:
        return 1
    except RocmForgeError as error:
        connection.send(Failed(error.message, error.fault))
        return 1
    except Exception as error:  # a mistake in the code
        logger.exception("the worker failed")
        connection.send(Failed(f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
