"""Declarations of the kernels of multi-head latent attention."""

from __future__ import annotations

from rocmforge_hip.device.arguments import F32, I32, I64, FloatForms, Forms, Pointer


def rf_latent_queries(
    *,
    q: Pointer,
    cosine: Pointer,
    sine: Pointer,
    positions: Pointer,
    out: FloatForms,
    rows: Pointer,
    chosen: Pointer,
    weights: Pointer,
    q_stride: I64,
    heads: I32,
    plain_dim: I32,
    rotary_dim: I32,
    rank: I32,
    neox: I32,
) -> None:
    """Takes queries apart: what is multiplied with matrices of heads, and what rotates."""


def rf_join_heads(
    *,
    x: Pointer,
    places: Pointer | None,
    out: Pointer,
    rows: I32,
    columns: I32,
    stride: I32,
    offset: I32,
) -> None:
    """Writes products of heads as halves to their places in longer rows."""


def rf_latent_store(
    *,
    kv: Pointer,
    norm: Pointer,
    cosine: Pointer,
    sine: Pointer,
    positions: Pointer,
    slots: Pointer,
    cache: Pointer,
    scale: Pointer | None = None,
    stride: I64,
    rank: I32,
    rotary_dim: I32,
    neox: I32,
    eps: F32,
) -> None:
    """Norms latent vectors, rotates what rotates, and stores both as rows of the cache."""


def rf_latent_absorb(
    *,
    weight: Pointer,
    q: Pointer,
    kv: Pointer,
    norm: Pointer,
    cosine: Pointer,
    sine: Pointer,
    positions: Pointer,
    slots: Pointer,
    rows: Pointer,
    cache: Pointer,
    scale: Pointer | None,
    chosen: Pointer,
    weights: Pointer,
    head_bytes: I64,
    q_stride: I64,
    kv_stride: I64,
    heads: I32,
    plain_dim: I32,
    rotary_dim: I32,
    rank: I32,
    neox: I32,
    eps: F32,
) -> None:
    """Makes queries to rows of the cache, and stores those of their tokens."""


def rf_latent_expand(
    *,
    weight: Pointer,
    q: Pointer,
    scale: Pointer,
    out: Forms,
    head_bytes: I64,
    heads: I32,
    out_features: I32,
    quant_blocks: I32,
) -> None:
    """Multiplies results of heads with the matrices of heads, and rounds what that makes."""
