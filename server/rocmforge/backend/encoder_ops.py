"""The operations an encoder (the BERT family) is made of, as `models.encoder` calls them.

As with `backend.ops`: the forward pass is written once over this protocol, arrays hold activations
as [rows, features], and no method waits for the device. There is no KV cache. Each sequence of the
step's flat batch is whole (`StepInput.query_start` says where it lies), so that attention reads the
step's own keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from rocmforge.backend.ops import Activation

A = TypeVar("A")
W = TypeVar("W", contravariant=True)
S = TypeVar("S", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderAttentionSpec:
    """How one layer of an encoder attends."""

    scale: float  # of query times key
    reach: int | None  # a token sees itself and so many before and after it; None = all
    local_rope: bool  # uses the second rope table (ModernBERT's layers with a window)


class EncoderOps(Protocol[A, W, S]):
    """Implemented by each backend; see `rocmforge_reference.ops` for exact meanings.

    Vectors (norms and biases) and the tables `positions` and `types` are float32 or halves in the
    files there are; `tokens` and the matrices of `linear` may be quantised.
    """

    def embed(self, step: S, tokens: W, positions: W | None, types: W | None) -> A:
        """Sum of the rows of tables for the step's T tokens: [T, dim].

        Of `tokens` [V, dim] the row of the token, of `positions` [max_context, dim] that of its
        position, of `types` [n, dim] always row 0: all text is "sentence A".
        """
        ...

    def layer_norm(self, x: A, weight: W, bias: W | None) -> A:
        """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis: [rows, dim].

        The variance is the mean of squares of x - mean.
        """
        ...

    def add_layer_norm(self, residual: A, delta: A, weight: W, bias: W | None) -> A:
        """The layer_norm of residual + delta: [rows, dim]. The sum itself is not needed."""
        ...

    def add_two_norms(
        self, residual: A, delta: A, first: tuple[W, W | None], second: tuple[W, W | None]
    ) -> A:
        """The second norm of residual + (the first norm of residual + delta): [rows, dim].

        Each is a layer_norm with its weight and bias.
        """
        ...

    def add_then_norm(self, residual: A, delta: A, weight: W) -> tuple[A, A]:
        """residual + delta, and its layer_norm: ([rows, dim], [rows, dim]).

        The norm is read by matrix products only.
        """
        ...

    def linear(self, step: S, x: A, weight: W, bias: W | None) -> A:
        """As `Ops.linear`: x @ weight.T + bias for a [out, in] weight, [rows, out]."""
        ...

    def gelu(self, x: A) -> A:
        """x * Phi(x), Phi the normal distribution function (`Activation.GELU`): [rows, ffn]."""
        ...

    def gated_linear(self, step: S, x: A, gate: W, up: W, activation: Activation) -> A:
        """As `Ops.gated_linear`: activation(x @ gate.T) * (x @ up.T), [rows, ffn]."""
        ...

    def norm_projection(self, x: A, weight: W, bias: W | None) -> A:
        """The layer_norm of queries or keys, [T, heads * head_dim], which x need not outlive."""
        ...

    def rope(self, step: S, q: A, k: A, spec: EncoderAttentionSpec) -> tuple[A, A]:
        """Rotation of q and k, both [T, heads * head_dim], by the positions of the tokens."""
        ...

    def attend_all(self, step: S, q: A, k: A, v: A, spec: EncoderAttentionSpec) -> A:
        """Attention of each token to the tokens of its sequence within reach.

        q, k, v and the result are [T, heads * head_dim] each; scores are scale * (query times key),
        less the distance of the two times the slope of the head, where the model has slopes.
        """
        ...

    def sum_hidden(self, step: S, x: A) -> A:
        """Sums of the rows of x in each of `StepInput.hidden_ranges`: [P, dim]."""
        ...

    def tanh(self, x: A) -> A:
        """Of each element: [rows, dim]."""
        ...
