"""Declarations of kernels with a state for each sequence: rf/recurrent/recurrent.h."""

from __future__ import annotations

from typing import Annotated

from rocmforge_hip.device.arguments import F32, I32, I64, Forms, Pointer, pointers
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.recurrent import DeltaScratch, MambaScratch, RecurrentBatch

Sequences = Annotated[
    RecurrentBatch, pointers("sequences", "query_start", "context_len", "reads", "writes")
]
DeltaChunks = Annotated[
    DeltaScratch[DeviceArray], pointers("keys", "queries", "keys_t", "solve", "scores", "decays")
]
MambaChunks = Annotated[MambaScratch[DeviceArray], pointers("c", "b_t", "scores", "decays")]


def rf_short_conv(
    *,
    x: Pointer,
    before: Pointer | None,
    after: Pointer | None,
    weight: Pointer,
    bias: Pointer | None,
    batch: Sequences,
    state: Pointer,
    out: Forms,
    stride: I64,
    channels: I32,
    width: I32,
    silu: I32,
) -> None:
    """Convolves the inputs of each channel, and keeps the last ones."""


def rf_gated_delta(
    *,
    qkv: Pointer,
    alpha: Pointer,
    beta: Pointer,
    decay: Pointer,
    dt_bias: Pointer,
    batch: Sequences,
    state: Pointer,
    out: Pointer,
    qkv_stride: I64,
    alpha_stride: I64,
    beta_stride: I64,
    key_heads: I32,
    value_heads: I32,
    key_dim: I32,
    value_dim: I32,
    tiled_heads: I32,
    eps: F32,
) -> None:
    """Applies the gated delta rule token by token."""


def rf_gated_delta_step(
    *,
    x: Pointer,
    filter: Pointer,
    alpha: Pointer,
    beta: Pointer,
    decay: Pointer,
    dt_bias: Pointer,
    z: Pointer,
    norm: Pointer,
    batch: Sequences,
    inputs: Pointer,
    state: Pointer,
    arrived: Pointer,
    out: Forms,
    x_stride: I64,
    alpha_stride: I64,
    beta_stride: I64,
    z_stride: I64,
    key_heads: I32,
    value_heads: I32,
    key_dim: I32,
    value_dim: I32,
    width: I32,
    tiled_heads: I32,
    eps: F32,
) -> None:
    """Convolves, applies the gated delta rule and norms, for one token of each sequence."""


def rf_gated_delta_solve(
    *,
    qkv: Pointer,
    alpha: Pointer,
    beta: Pointer,
    decay: Pointer,
    dt_bias: Pointer,
    batch: Sequences,
    chunks: DeltaChunks,
    qkv_stride: I64,
    alpha_stride: I64,
    beta_stride: I64,
    key_heads: I32,
    value_heads: I32,
    tiled_heads: I32,
    eps: F32,
) -> None:
    """Makes what the gated delta rule in chunks needs of tokens alone."""


def rf_gated_delta_chunks(
    *,
    qkv: Pointer,
    batch: Sequences,
    chunks: DeltaChunks,
    state: Pointer,
    out: Pointer,
    qkv_stride: I64,
    key_heads: I32,
    value_heads: I32,
    tiled_heads: I32,
) -> None:
    """Applies the gated delta rule to chunk after chunk."""


def rf_mamba_scores(
    *,
    x_bc: Pointer,
    dt: Pointer,
    a: Pointer,
    dt_bias: Pointer,
    batch: Sequences,
    chunks: MambaChunks,
    x_stride: I64,
    dt_stride: I64,
    heads: I32,
    head_dim: I32,
    groups: I32,
) -> None:
    """Makes what Mamba-2's recurrence in chunks needs of tokens alone."""


def rf_mamba_chunks(
    *,
    x_bc: Pointer,
    d: Pointer,
    batch: Sequences,
    chunks: MambaChunks,
    state: Pointer,
    out: Pointer,
    x_stride: I64,
    heads: I32,
    head_dim: I32,
    groups: I32,
) -> None:
    """Applies Mamba-2's recurrence to chunk after chunk."""


def rf_mamba(
    *,
    x_bc: Pointer,
    dt: Pointer,
    a: Pointer,
    d: Pointer,
    dt_bias: Pointer,
    batch: Sequences,
    state: Pointer,
    out: Pointer,
    x_stride: I64,
    dt_stride: I64,
    heads: I32,
    head_dim: I32,
    groups: I32,
    state_size: I32,
) -> None:
    """Applies Mamba-2's recurrence token by token."""


def rf_mamba_step(
    *,
    x: Pointer,
    filter: Pointer,
    filter_bias: Pointer | None,
    dt: Pointer,
    a: Pointer,
    d: Pointer,
    dt_bias: Pointer,
    batch: Sequences,
    inputs: Pointer,
    state: Pointer,
    arrived: Pointer,
    out: Pointer,
    x_stride: I64,
    dt_stride: I64,
    heads: I32,
    head_dim: I32,
    groups: I32,
    state_size: I32,
    width: I32,
    z: Pointer | None,
    norm: Pointer | None,
    normed: Forms,
    z_stride: I64,
    norm_threads: I32,
    eps: F32,
) -> None:
    """Convolves and applies Mamba-2's recurrence, for one token of each sequence, and may norm."""


def rf_gated_norm(
    *,
    x: Pointer,
    z: Pointer,
    weight: Pointer,
    out: Forms,
    z_stride: I64,
    groups: I32,
    dim: I32,
    weight_stride: I32,
    gate_first: I32,
    eps: F32,
) -> None:
    """Norms groups of each row, and multiplies with the gate before or after it."""


def rf_gated_squares(*, x: Pointer, z: Pointer, squares: Pointer, z_stride: I64, dim: I32) -> None:
    """Adds up the squares of each row once it is multiplied with its gate."""


def rf_joint_norm(
    *,
    x: Pointer,
    z: Pointer,
    weight: Pointer,
    squares: Pointer,
    out: Forms,
    z_stride: I64,
    dim: I32,
    features: I32,
    eps: F32,
) -> None:
    """Norms parts of rows, of whose squares it has the sums, behind a gate."""
