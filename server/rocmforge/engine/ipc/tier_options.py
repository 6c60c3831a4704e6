"""Where KV blocks go that the device has to give up."""

from __future__ import annotations

from rocmforge.engine.ipc.message import Message

_BLOCKS_PER_SNAPSHOT = 128
STAGING_BYTES = 1 << 30
"""Of the host's memory that blocks pass on their way to a folder, if it is to hold none itself."""


class TierOptions(Message, frozen=True):
    """The places below the device, as the operator wants them."""

    host_bytes: int = 0  # of the host's memory; 0 = none
    folder: str | None = None  # None = no files
    folder_bytes: int = 0  # of all files there, of all models

    @property
    def wanted(self) -> bool:
        """Whether there is any."""
        return self.host_bytes > 0 or self.folder is not None

    @property
    def pinned_bytes(self) -> int:
        """Of the host's memory, which a folder needs, too."""
        return self.host_bytes or (STAGING_BYTES if self.folder is not None else 0)

    def divide(self, block_bytes: int, slot_bytes: int) -> tuple[int, int]:
        """Returns how many blocks and snapshots of states the host's memory has room for.

        Long prompts leave a snapshot every 2048 tokens, conversations rather more often.

        Args:
            block_bytes: of a block.
            slot_bytes: of the states of a sequence; 0 = there are none.
        """
        snapshots = 0
        if slot_bytes:
            both = slot_bytes + _BLOCKS_PER_SNAPSHOT * block_bytes
            snapshots = max(1, self.pinned_bytes // both)
        left = self.pinned_bytes - snapshots * slot_bytes
        return max(0, left // block_bytes), snapshots


NO_TIERS = TierOptions()
