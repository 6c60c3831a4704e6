"""Declarations of kernels that move blocks of the KV cache."""

from __future__ import annotations

from rocmforge_hip.device.arguments import I32, I64, Pointer


def rf_copy_blocks(
    *,
    cache: Pointer,
    arrays: Pointer,
    part_bytes: Pointer,
    starts: Pointer,
    pairs: Pointer,
    host: Pointer,
    block_bytes: I64,
    num_arrays: I32,
    count: I32,
    to_host: I32,
) -> None:
    """Copies blocks to slots of the host's memory, or back."""
