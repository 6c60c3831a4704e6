"""The operations of a decoder-only transformer, as `models.forward.decoder` calls them.

The decoder's forward pass is written once over this protocol; a backend supplies the
operations. They are as coarse as a good GPU kernel is (norm with residual add, gate and up
projection with activation, rope with cache write), so that the naive version in the reference
backend is an oracle of the same shape for the fast version of any other.

`A` is the backend's array (NumPy array, device buffer), `W` its weight (which may stay
quantised), `S` its view of the running step (block table, positions, ... on the device).
Arrays hold activations as [rows, features]. No method waits for the device.

Symbols used in shapes: T tokens in the step, L rows whose logits are needed, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from rocmforge.models.config import ActivationFunction

A = TypeVar("A")
W = TypeVar("W", contravariant=True)
S = TypeVar("S", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The rules of one layer's attention."""

    layer: int  # index of its cache
    scale: float  # of query times key
    softcap: float | None  # cap * tanh(scores / cap)
    window: int | None  # a token sees itself and the window - 1 before it; None = all
    local_rope: bool  # uses the second rope table (Gemma 3's sliding layers)


class Ops(Protocol[A, W, S]):
    """Implemented by each backend; `rocmforge_reference.ops` has the exact definitions."""

    def embed(self, step: S, table: W, scale: float) -> A:
        """Returns the table's rows for the step's tokens, times scale: [T, hidden_size].

        Where the step brings an embedding for a token, that is its row, as it is.

        Args:
            step: Gives the token ids and the embeddings.
            table: [V, hidden_size].
            scale: Multiplies each element.
        """
        ...

    def rms_norm(self, x: A, weight: W) -> A:
        """Returns x / sqrt(mean(x^2) + eps) * weight over the last axis: [rows, hidden_size]."""
        ...

    def add_rms_norm(self, residual: A, delta: A, weight: W) -> tuple[A, A]:
        """Returns residual + delta and its rms_norm, each [rows, hidden_size]."""
        ...

    def linear(self, step: S, x: A, weight: W, bias: W | None) -> A:
        """Returns x @ weight.T + bias: [T, out_features].

        A token whose sequence has an adapter is multiplied with the adapted weight.

        Args:
            step: Says which adapter each token's sequence has.
            x: [T, in_features].
            weight: [out_features, in_features].
            bias: [out_features], or None.
        """
        ...

    def qkv(
        self,
        step: S,
        x: A,
        weights: tuple[W, W, W],
        biases: tuple[W | None, W | None, W | None],
    ) -> tuple[A, A, A]:
        """Returns query, key and value, each x @ weight.T + bias: [T, out_features of its weight].

        Asked for together, so that a backend may multiply with all of them at once.

        Args:
            step: As for `linear`.
            x: [T, in_features].
            weights: Of query, key and value, [out_features, in_features] each.
            biases: Theirs, [out_features] or None each.
        """
        ...

    def rope_and_store(
        self, step: S, q: A, k: A, v: A, q_norm: W | None, k_norm: W | None, spec: AttentionSpec
    ) -> A:
        """Applies norms, if given, and rope to q and k; stores k and v in their cache slots.

        Args:
            step: Gives the positions and the slots of its tokens.
            q: [T, num_heads * head_dim].
            k: [T, num_kv_heads * head_dim].
            v: [T, num_kv_heads * head_dim].
            q_norm: [head_dim], or None.
            k_norm: [head_dim], or None.
            spec: Names the layer and its rope table.

        Returns:
            The rotated q, [T, num_heads * head_dim].
        """
        ...

    def attention(self, step: S, q: A, spec: AttentionSpec) -> A:
        """Returns the causal attention of q over the paged cache: [T, num_heads * head_dim]."""
        ...

    def gated_linear(self, step: S, x: A, gate: W, up: W, activation: ActivationFunction) -> A:
        """Returns activation(x @ gate.T) * (x @ up.T): [T, intermediate_size].

        Adapters change gate and up as in `linear`.
        """
        ...

    def take_logit_rows(self, step: S, x: A) -> A:
        """Returns the rows of x whose logits are needed: [L, hidden_size]."""
        ...

    def logits(self, x: A, weight: W, softcap: float | None) -> A:
        """Returns x @ weight.T, soft-capped if softcap is given: float32 [L, V]."""
        ...
