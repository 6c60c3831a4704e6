"""Sequences of a launch of recurrent layers, and memory between kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from rocmforge.models.layer_config import DeltaConfig, MambaConfig
from rocmforge_hip.device.constants import STATE_CHUNK, STATE_CHUNK_COLUMNS, STATE_CHUNK_DIM
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec

X = TypeVar("X")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentBatch:
    """The sequences of a step that a launch takes."""

    sequences: DeviceArray  # int32 [count], indices
    query_start: DeviceArray  # int32 [B + 1]
    context_len: DeviceArray  # int32 [B]; a sequence without earlier tokens begins with zeros
    reads: DeviceArray  # int32 [B], slot of the state before; negative = padding, which has none
    writes: DeviceArray  # int32 [T], slot of the state after each token; negative = not kept
    count: int
    longest: int  # new tokens of the longest of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaScratch(Generic[X]):
    """The arrays between kernels of the delta rule in chunks: rf/recurrent/delta_chunks.h."""

    keys: X
    queries: X
    keys_t: X
    solve: X
    scores: X
    decays: X

    @staticmethod
    def plan(heads: DeltaConfig, tokens: int, sequences: int) -> DeltaScratch[ArraySpec] | None:
        """Returns it for the largest step, or None if only heads of another size take chunks."""
        if (heads.key_dim, heads.value_dim) != (STATE_CHUNK_DIM, STATE_CHUNK_DIM):
            return None
        chunks = tokens // STATE_CHUNK + sequences
        keys = spec((chunks, heads.num_key_heads, STATE_CHUNK * STATE_CHUNK_DIM), "f2")
        pairs = spec((chunks, heads.num_value_heads, STATE_CHUNK * STATE_CHUNK), "f2")
        decays = spec((chunks, heads.num_value_heads, 2 * STATE_CHUNK), "f4")
        return DeltaScratch(
            keys=keys,
            queries=keys,
            keys_t=keys,
            solve=pairs,
            scores=pairs,
            decays=decays,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MambaScratch(Generic[X]):
    """The arrays between kernels of Mamba-2 in chunks: kernels/src/recurrent/mamba_chunks.hip."""

    c: X
    b_t: X
    scores: X
    decays: X

    @staticmethod
    def plan(heads: MambaConfig, tokens: int, sequences: int) -> MambaScratch[ArraySpec] | None:
        """Returns it for the largest step, or None if only heads of another size take chunks."""
        if heads.state_size != STATE_CHUNK_DIM or heads.head_dim % STATE_CHUNK_COLUMNS:
            return None
        chunks = tokens // STATE_CHUNK + sequences
        groups = spec((chunks, heads.num_groups, STATE_CHUNK * STATE_CHUNK_DIM), "f2")
        return MambaScratch(
            c=groups,
            b_t=groups,
            scores=spec((chunks, heads.num_heads, STATE_CHUNK * STATE_CHUNK), "f2"),
            decays=spec((chunks, heads.num_heads, 2 * STATE_CHUNK), "f4"),
        )
