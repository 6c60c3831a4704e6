"""Declarations of kernels for tokens in groups, one for each expert."""

from __future__ import annotations

from rocmforge_hip.device.arguments import F32, I32, I64, Forms, Pointer


def rf_group_experts(
    *,
    chosen: Pointer,
    tokens: Pointer,
    places: Pointer,
    tiles: Pointer,
    pairs: I32,
    num_chosen: I32,
    tile_rows: I32,
) -> None:
    """Sorts pairs of tokens and experts by expert."""


def rf_mix_experts(
    *,
    y: Pointer,
    places: Pointer,
    weights: Pointer,
    out: Pointer,
    num_chosen: I32,
    hidden_size: I32,
    is_sorted: I32,
) -> None:
    """Adds up what its experts made of each token, weighted."""


def rf_add_pairs_rms_norm(
    *,
    y: Pointer,
    places: Pointer,
    weights: Pointer,
    residual: Pointer,
    weight: Pointer,
    out: Forms,
    num_chosen: I32,
    is_sorted: I32,
    hidden_size: I32,
    eps: F32,
) -> None:
    """Adds the sums that `rf_mix_experts` makes to the residual, and norms that."""


def rf_fetch_experts(
    *,
    weight: Pointer,
    places: Pointer,
    tiles: Pointer,
    fetched: Pointer,
    found: Pointer,
    distance: I64,
    expert_bytes: I64,
    seated_bytes: I64,
    num_tiles: I32,
) -> None:
    """Copies experts that have pairs from the host's memory to the device."""
