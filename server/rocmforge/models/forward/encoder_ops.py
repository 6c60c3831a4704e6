"""The operations of an encoder (the BERT family), as `models.forward.encoder` calls them.

As with `backend.ops`: the forward pass is written once over this protocol, arrays hold activations
as [rows, features], and no method waits for the device. There is no KV cache. Each sequence of the
step's flat batch is whole (`StepInput.query_start` says where it lies), so that attention reads the
step's own keys and values.

Symbols used in shapes: T tokens in the step, P ranges of tokens, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from rocmforge.models.config import ActivationFunction

A = TypeVar("A")
W = TypeVar("W", contravariant=True)
S = TypeVar("S", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderAttentionSpec:
    """The rules of one encoder layer's attention."""

    layer: int  # its index
    scale: float  # of query times key
    reach: int | None  # a token sees itself and so many before and after it; None = all
    local_rope: bool  # uses the second rope table (ModernBERT's layers with a window)


class EncoderOps(Protocol[A, W, S]):
    """Implemented by each backend; `rocmforge_reference.ops` has the exact definitions.

    Vectors (norms and biases) and the tables `positions` and `types` are float32 or float16 in the
    files there are; `tokens` and the matrices of `linear` may be quantised.
    """

    def embed(self, step: S, tokens: W, positions: W | None, types: W | None) -> A:
        """Returns the sum of the embeddings of the step's tokens: [T, hidden_size].

        Args:
            step: Gives the token ids and positions.
            tokens: [V, hidden_size]; adds the row of the token.
            positions: [max_context, hidden_size]; adds the row of its position. None adds nothing.
            types: [n, hidden_size]; adds row 0, as all text is "sentence A". None adds nothing.
        """
        ...

    def layer_norm(self, x: A, weight: W, bias: W | None) -> A:
        """Returns (x - mean) / sqrt(variance + eps) * weight + bias: [rows, hidden_size].

        Mean and variance are of the last axis; the variance is the mean of squares of x - mean.
        """
        ...

    def add_layer_norm(self, residual: A, delta: A, weight: W, bias: W | None) -> A:
        """Returns the layer_norm of residual + delta: [rows, hidden_size]."""
        ...

    def add_two_norms(
        self, residual: A, delta: A, first: tuple[W, W | None], second: tuple[W, W | None]
    ) -> A:
        """Returns second_norm(residual + first_norm(residual + delta)): [rows, hidden_size].

        Each is a layer_norm with its weight and bias.
        """
        ...

    def add_then_norm(self, residual: A, delta: A, weight: W) -> tuple[A, A]:
        """Returns residual + delta and its layer_norm, each [rows, hidden_size].

        Only matrix products read the norm.
        """
        ...

    def linear(self, step: S, x: A, weight: W, bias: W | None) -> A:
        """Returns x @ weight.T + bias: [rows, out_features].

        Args:
            step: Not needed; decoders find adapters in it.
            x: [rows, in_features].
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
        """Returns query, key and value, each x @ weight.T + bias: [T, out_features of it].

        Asked for together, so that a backend may multiply with all of them at once.

        Args:
            step: As for `linear`.
            x: [rows, in_features].
            weights: Of query, key and value, [out_features, in_features] each.
            biases: Theirs, [out_features] or None each.
        """
        ...

    def gelu(self, x: A) -> A:
        """Returns x * Phi(x), Phi the normal distribution function: [rows, intermediate_size]."""
        ...

    def gated_linear(self, step: S, x: A, gate: W, up: W, activation: ActivationFunction) -> A:
        """Returns activation(x @ gate.T) * (x @ up.T): [rows, intermediate_size]."""
        ...

    def norm_projection(self, x: A, weight: W, bias: W | None) -> A:
        """Returns the layer_norm of queries or keys, [T, num_heads * head_dim]; may overwrite x."""
        ...

    def rope(self, step: S, q: A, k: A, spec: EncoderAttentionSpec) -> tuple[A, A]:
        """Returns q and k, [T, num_heads * head_dim] each, rotated by the tokens' positions."""
        ...

    def attend_all(self, step: S, q: A, k: A, v: A, spec: EncoderAttentionSpec) -> A:
        """Returns the attention of each token to the tokens of its sequence within reach.

        q, k, v and the result are [T, num_heads * head_dim] each. A score is scale * (query times
        key), less the distance of the two times the slope of the head where the model has slopes.
        """
        ...

    def sum_hidden(self, step: S, x: A) -> A:
        """Returns the sum of x's rows in each of `StepInput.hidden_ranges`: [P, hidden_size]."""
        ...

    def tanh(self, x: A) -> A:
        """Returns tanh of each element: [rows, hidden_size]."""
        ...
