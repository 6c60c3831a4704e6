"""The operations a transformer is made of, as `models.decoder` calls them.

The decoder's forward pass is written once over this protocol; a backend supplies the
operations. They are as coarse as a good GPU kernel is (norm with residual add, gate and up
projection with activation, rope with cache write), so that the naive version in the reference
backend is an oracle of the same shape for the fast version of any other.

`A` is the backend's array (NumPy array, device buffer), `W` its weight (which may stay
quantised), `S` its view of the running step (block table, positions, ... on the device).
Arrays hold activations as [rows, features]. No method waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

A = TypeVar("A")
W = TypeVar("W", contravariant=True)
S = TypeVar("S", contravariant=True)


class Activation(StrEnum):
    """What a gated feed-forward applies to its gate."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU = "gelu"  # with the error function; of encoders only


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """How one layer attends."""

    layer: int  # index of its cache
    scale: float  # of query times key
    softcap: float | None  # cap * tanh(scores / cap)
    window: int | None  # a token sees itself and the window - 1 before it; None = all
    local_rope: bool  # uses the second rope table (Gemma 3's sliding layers)


class Ops(Protocol[A, W, S]):
    """Implemented by each backend; see `rocmforge_reference.ops` for exact meanings."""

    def embed(self, step: S, table: W, scale: float) -> A:
        """Rows of the [V, dim] table for the step's T tokens, times scale: [T, dim]."""
        ...

    def rms_norm(self, x: A, weight: W) -> A:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis: [rows, dim]."""
        ...

    def add_rms_norm(self, residual: A, delta: A, weight: W) -> tuple[A, A]:
        """residual + delta, and its rms_norm: ([rows, dim], [rows, dim])."""
        ...

    def linear(self, step: S, x: A, weight: W, bias: W | None) -> A:
        """x @ weight.T + bias for a [out, in] weight, by the step's T tokens: [T, out].

        A token whose sequence has an adapter multiplies with what that makes of the weight.
        """
        ...

    def rope_and_store(
        self, step: S, q: A, k: A, v: A, q_norm: W | None, k_norm: W | None, spec: AttentionSpec
    ) -> A:
        """Per-head norm (where given) and rotation of q and k; k and v go to their cache slots.

        q is [T, heads * head_dim], k and v [T, kv_heads * head_dim]; returns the rotated q.
        """
        ...

    def attention(self, step: S, q: A, spec: AttentionSpec) -> A:
        """Paged causal attention: [T, heads * head_dim]."""
        ...

    def gated_linear(self, step: S, x: A, gate: W, up: W, activation: Activation) -> A:
        """activation(x @ gate.T) * (x @ up.T), with adapters as in `linear`: [T, ffn]."""
        ...

    def take_logit_rows(self, step: S, x: A) -> A:
        """The L rows whose logits are needed: [L, dim]."""
        ...

    def logits(self, x: A, weight: W, softcap: float | None) -> A:
        """x @ weight.T, capped where the model does so, in float32: [L, V]."""
        ...
