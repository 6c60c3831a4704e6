"""Declarations of the kernels around attention."""

from __future__ import annotations

from rocmforge_hip.device.arguments import F32, I32, I64, FloatForms, Forms, Pointer


def rf_rope_store(
    *,
    q: Pointer,
    k: Pointer | None,
    v: Pointer | None,
    q_norm: Pointer | None,
    k_norm: Pointer | None,
    cosine: Pointer | None,
    sine: Pointer | None,
    q_gains: Pointer | None,
    positions: Pointer,
    slots: Pointer,
    q_out: Pointer,
    k_cache: Pointer | None,
    v_cache: Pointer | None,
    k_scale: Pointer | None = None,
    v_scale: Pointer | None = None,
    q_stride: I64,
    k_stride: I64,
    v_stride: I64,
    heads: I32,
    kv_heads: I32,
    key_dim: I32,
    value_dim: I32,
    rotary_dim: I32,
    neox: I32,
    rotates_first: I32,
    norms_values: I32,
    eps: F32,
) -> None:
    """Rotates queries and keys, and stores keys and values in the cache.

    Without `kv_heads`, there are queries only.
    """


def rf_attention_decode(
    *,
    q: Pointer | None,
    new_q: Pointer | None,
    new_k: Pointer | None,
    new_v: Pointer | None,
    q_norm: Pointer | None,
    k_norm: Pointer | None,
    cosine: Pointer | None,
    sine: Pointer | None,
    k_cache: Pointer,
    v_cache: Pointer,
    k_scale: Pointer | None = None,
    v_scale: Pointer | None = None,
    block_table: Pointer,
    sequences: Pointer,
    query_start: Pointer,
    context_len: Pointer,
    teams: Pointer | None = None,
    sinks: Pointer | None,
    out: Forms,
    partial: Pointer,
    partial_ml: Pointer,
    arrived: Pointer | None,
    q_stride: I64,
    k_stride: I64,
    v_stride: I64,
    blocks_per_sequence: I32,
    heads: I32,
    kv_heads: I32,
    rotary_dim: I32,
    neox: I32,
    norms_values: I32,
    window: I32,
    split_tokens: I32,
    eps: F32,
    scale: F32,
    softcap: F32,
    rotates_first: I32,
) -> None:
    """Attends from sequences with one new token.

    With `new_q` and no `q`, first does as `rf_rope_store`, for queries only without `new_k`. The
    kernels of joint norms, which need both, do as `rf_rms_norm_columns` before that. With
    `arrived`, puts splits together. With `teams`, one block reads what the sequences of each share.
    Kernels of teams, and of heads that are not common, norm before rope, whatever `rotates_first`
    says.
    """


def rf_attention_decode_reduce(
    *,
    partial: Pointer,
    partial_ml: Pointer,
    sequences: Pointer,
    query_start: Pointer,
    context_len: Pointer,
    teams: Pointer | None,
    sinks: Pointer | None,
    out: Forms,
    splits: I32,
    value_dim: I32,
    window: I32,
    split_tokens: I32,
) -> None:
    """Puts the splits of `rf_attention_decode` together, where that did not."""


def rf_attention_prefill(
    *,
    q: Pointer,
    k_cache: Pointer,
    v_cache: Pointer,
    k_scale: Pointer | None = None,
    v_scale: Pointer | None = None,
    block_table: Pointer,
    sequences: Pointer,
    query_start: Pointer,
    context_len: Pointer,
    seen_ends: Pointer | None,
    sinks: Pointer | None,
    out: FloatForms,
    partial: Pointer | None,
    partial_ml: Pointer | None,
    split_tiles: I32,
    splits: I32,
    split_tokens: I32,
    blocks_per_sequence: I32,
    heads: I32,
    kv_heads: I32,
    window: I32,
    scale: F32,
    softcap: F32,
) -> None:
    """Attends from sequences with several new tokens."""


def rf_attention_prefill_reduce(
    *,
    partial: Pointer,
    partial_ml: Pointer,
    sequences: Pointer,
    query_start: Pointer,
    sinks: Pointer | None,
    out: FloatForms,
    split_tiles: I32,
    splits: I32,
    kv_heads: I32,
    value_dim: I32,
) -> None:
    """Puts the splits of `rf_attention_prefill` together."""


def rf_rope_half(
    *,
    q: Pointer,
    k: Pointer,
    q_norm: Pointer | None,
    k_norm: Pointer | None,
    cosine: Pointer,
    sine: Pointer,
    positions: Pointer,
    q_stride: I64,
    k_stride: I64,
    heads: I32,
    kv_heads: I32,
    head_dim: I32,
    rotary_dim: I32,
    eps: F32,
) -> None:
    """Norms heads of queries and keys, if there are weights for it, and rotates them, in place."""


def rf_attention_full(
    *,
    q: Pointer,
    k: Pointer,
    v: Pointer,
    query_start: Pointer,
    out: Pointer,
    q_stride: I64,
    k_stride: I64,
    v_stride: I64,
    scale: F32,
    group: I32,
    reach: I32 | None = None,
    slopes: Pointer | None = None,
) -> None:
    """Attends to all tokens of a sequence; `near` to those within reach, or with slopes."""
