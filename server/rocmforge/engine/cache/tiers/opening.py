"""Opens the tiers below a runner's cache, if the operator wants any and the runner can."""

from __future__ import annotations

import logging
from pathlib import Path

from rocmforge.backend.host_memory import host_memory
from rocmforge.backend.protocol import CopiesBlocks, Runner
from rocmforge.engine.cache.tiers.folder import CacheFolder
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.ipc.tier_options import TierOptions
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import ConfigurationError, OutOfMemory

logger = logging.getLogger(__name__)


def open_tiers(
    runner: Runner, options: TierOptions, fingerprint: bytes, totals: Totals
) -> CacheTiers | None:
    """Opens them; says so if they are wanted in vain, and returns None.

    Args:
        runner: the loaded model's.
        options: what the operator wants.
        fingerprint: of the model, if there is a folder.
        totals: counters to continue.

    Raises:
        ConfigurationError: the folder cannot be used, or no block has room.
        OutOfMemory: the host has not so much memory.
    """
    if not options.wanted:
        return None
    info = runner.info
    reason = ""
    if not info.block_bytes:
        reason = "the model keeps nothing of a prompt"
    elif info.state_slots and not info.snapshots:
        reason = "the model has states, and there is no room for snapshots of them"
    elif not isinstance(runner, CopiesBlocks):
        reason = "the backend does not copy blocks to the host" + (
            " with tensor parallelism" if len(info.bus_ids) > 1 else ""
        )
    if reason:
        logger.warning("--host-cache and --cache-dir are not used: %s.", reason)
        return None
    assert isinstance(runner, CopiesBlocks)
    slots, states = options.divide(info.block_bytes, info.slot_bytes)
    if not slots:
        snapshot = f", and a snapshot of its states {info.slot_bytes:,}" if states else ""
        raise ConfigurationError(
            f"--host-cache has room for {options.pinned_bytes:,} bytes; a block of this model has "
            f"{info.block_bytes:,}{snapshot}."
        )
    _, free = host_memory()
    if options.pinned_bytes > free:
        raise OutOfMemory(
            f"--host-cache needs {options.pinned_bytes:,} bytes of the host's memory, which has "
            f"{free:,} free."
        )
    folder = None
    if options.folder is not None:
        folder = CacheFolder(Path(options.folder), fingerprint, options.folder_bytes)
    return CacheTiers(runner, slots, folder, totals, states)
