"""The operations of a transformer, as the forward passes beside it call them.

Each forward pass is written once over this protocol; a backend supplies the operations. They are as
coarse as a good GPU kernel is (norm with residual add, gate and up projection with activation, rope
with cache write), so that the naive version in the reference backend is an oracle of the same shape
for the fast version of any other.

`A` is the backend's array (NumPy array, device buffer), `W` its weight (which may stay
quantised), `S` its view of the running step (block table, positions, ... on the device).
Arrays hold activations as [rows, features]. No method waits for the device. Norms are of the kind
that `ModelConfig.norm` names.

A model that is not causal has no KV cache: each sequence of the step's flat batch is whole
(`StepInput.query_start` says where it lies), and attention reads the step's own keys and values.

Symbols used in shapes: T tokens in the step, L rows whose logits are needed, P ranges of tokens
whose hidden states are wanted, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rocmforge.models.blocks import DeltaNet, Embedding, Experts, FeedForward, Mamba, SharedExpert
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.layer_config import ExpertsConfig

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The rules of one layer's attention."""

    layer: int  # its index, and that of its cache
    scale: float  # of query times key
    softcap: float | None  # cap * tanh(scores / cap)
    window: int | None  # a token sees itself and window - 1 before it, unless causal also after it
    tile_windows: bool = False  # as `LayerConfig.tile_windows`
    sees_ahead: bool = True  # as `LayerConfig.sees_ahead`
    local_rope: bool  # uses the second rope table
    rotates: bool  # queries and keys do


def attention_specs(config: ModelConfig) -> tuple[AttentionSpec, ...]:
    """Returns the rules of each layer's attention."""
    return tuple(
        AttentionSpec(
            layer=index,
            scale=layer.attention_scale,
            softcap=config.attention_softcap,
            window=layer.window,
            tile_windows=layer.tile_windows,
            sees_ahead=layer.sees_ahead,
            local_rope=layer.local_rope,
            rotates=layer.rotates and config.rope is not None,
        )
        for index, layer in enumerate(config.layers)
    )


class Ops(Protocol[A, W, S]):
    """Implemented by each backend; `rocmforge_reference.ops` has the exact definitions.

    Vectors (norms and biases) and the tables `positions` and `types` are float32 or float16 in the
    files there are; `tokens` and the matrices of products may be quantised.
    """

    def embed(
        self,
        step: S,
        tokens: W,
        positions: W | None,
        types: W | None,
        scale: float,
        norm: W | None = None,
    ) -> A:
        """Returns the embeddings of the step's tokens: [T, hidden_size].

        Where the step brings an embedding for a token, that is its row, as it is.

        Args:
            step: Gives the token ids, their positions and the embeddings.
            tokens: [V, hidden_size]; the row of the token.
            positions: [max_context, hidden_size]; adds the row of its position. None adds nothing.
            types: [n, hidden_size]; adds row 0, as all text is "sentence A". None adds nothing.
            scale: Multiplies each element of the token's row.
            norm: [hidden_size], of a norm of what these make; None for none.
        """
        ...

    def embed_between(self, step: S, table: W) -> A:
        """Returns the embeddings of places between those of a table: [T, hidden_size].

        Args:
            step: Gives the rows and how much of each is taken (`StepInput.place_ids`).
            table: [V, hidden_size].
        """
        ...

    def add_embeddings(self, step: S, x: A, part: int) -> A:
        """Returns x, [T, hidden_size], plus this part of the rows that the step brings, if any.

        Part 0 is what `embed` puts in the place of tokens. May overwrite x.
        """
        ...

    def norm(self, x: A, weight: W | None, bias: W | None, eps: float | None = None) -> A:
        """Returns the norm of each row, [rows, hidden_size]; without a weight, x itself.

        It has the model's eps unless it is given another one.

        By root mean square, that is x / sqrt(mean(x^2) + eps) * weight, without a bias. By layer,
        it is (x - mean) / sqrt(variance + eps) * weight + bias; the variance is the mean of squares
        of x - mean.
        """
        ...

    def add_norm(
        self, residual: A, delta: A, weight: W | None, bias: W | None, scale: W | None = None
    ) -> tuple[A, A]:
        """Returns scale * (residual + delta) and its norm, as `norm`: [rows, hidden_size] each.

        The scale is [1]; None for 1.
        """
        ...

    def norm_of_sum(self, residual: A, delta: A, weight: W, bias: W | None) -> A:
        """Returns the norm of residual + delta, [rows, hidden_size]; the sum itself is lost."""
        ...

    def two_norms_of_sum(
        self, residual: A, delta: A, first: tuple[W, W | None], second: tuple[W, W | None]
    ) -> A:
        """Returns second_norm(residual + first_norm(residual + delta)): [rows, hidden_size].

        Each norm is given as its weight and bias.
        """
        ...

    def linear(self, step: S, x: A, weight: W, bias: W | None) -> A:
        """Returns x @ weight.T + bias: [rows, out_features].

        A token whose sequence has an adapter is multiplied with the adapted weight.

        Args:
            step: Says which adapter each token's sequence has.
            x: [rows, in_features].
            weight: [out_features, in_features].
            bias: [out_features], or None.
        """
        ...

    def qkv(
        self,
        step: S,
        x: A,
        weights: Sequence[W],
        biases: Sequence[W | None],
    ) -> tuple[A, ...]:
        """Returns queries, keys, values and gates: x @ weight.T + bias, [T, out_features] each.

        Asked for together, so that a backend may multiply with all of them at once. A layer with
        states asks so for what it begins with, too, which may be one product.

        Args:
            step: As for `linear`.
            x: [T, in_features].
            weights: Of one `Fusion.QKV`, or one alone, [out_features, in_features] each.
            biases: Theirs, [out_features] or None each.
        """
        ...

    def bounded_linear(self, step: S, x: A, weight: W, bounds: W) -> A:
        """Returns the product of x within bounds, within others: [rows, out_features].

        Beyond its bounds, a number becomes the nearer of both.

        Args:
            step: As for `linear`; no token has an adapter.
            x: [rows, in_features].
            weight: [out_features, in_features].
            bounds: [4]: the least and the most of x, then of the product.
        """
        ...

    def bounded_gated_linear(
        self,
        step: S,
        x: A,
        weights: tuple[W, W],
        bounds: tuple[W, W],
        activation: ActivationFunction,
    ) -> A:
        """Returns activation(gate) * up, [rows, intermediate_size], of two such products of x.

        Args:
            step: As for `bounded_linear`.
            x: [rows, in_features].
            weights: Of gate and of up, [intermediate_size, in_features] each.
            bounds: Theirs, [4] each.
            activation: Of the gate.
        """
        ...

    def gated_linear(
        self,
        step: S,
        x: A,
        gate: W | None,
        up: W,
        activation: ActivationFunction,
        biases: tuple[W | None, W | None] = (None, None),
    ) -> A:
        """Returns activation(x @ gate.T) * (x @ up.T): [T, intermediate_size].

        Without a gate, it is activation(x @ up.T). Adapters change gate and up as in `linear`.
        Biases, of encoders alone, are added to the products with gate and with up.
        """
        ...

    def add_norm_route(
        self,
        residual: A,
        delta: A,
        norms: Sequence[W],
        experts: Experts[W],
        rule: ExpertsConfig,
    ) -> tuple[A, list[A], tuple[A, A]]:
        """Returns the sum as `add_norm` does, norms of it, and experts of tokens and their weights.

        The latter are [T, num_chosen] each. With x the norm by `Experts.router_norm`, or else the
        first, probabilities are those of x @ router.T plus the router's bias. Experts are chosen by
        them plus the selection bias, and weighted by them alone, times `Experts.weight_scale` of
        each.

        Args:
            residual: [T, hidden_size].
            delta: [T, hidden_size].
            norms: The weights of one norm or two that are wanted, [hidden_size] each.
            experts: Whose router and its biases are used.
            rule: Which experts are chosen, and what their weights are.
        """
        ...

    def experts(
        self, x: A, chosen: A, weights: A, experts: Experts[W], activation: ActivationFunction
    ) -> A:
        """Returns the sum of what its experts make of each token, weighted: [T, features].

        An expert gives activation(x @ gate.T) * (x @ up.T) @ down.T, or without a gate
        activation(x @ up.T) @ down.T, with a bias in each product if there is one.

        Args:
            x: [T, features]: `ModelConfig.expert_hidden_size`.
            chosen: As from `add_norm_route`.
            weights: As from `add_norm_route`.
            experts: Whose gate, up and down are computed with.
            activation: Of the gate, or of up without one.
        """
        ...

    def experts_beside(
        self,
        step: S,
        inputs: tuple[A, A],
        chosen: tuple[A, A],
        experts: Experts[W],
        network: FeedForward[W] | SharedExpert[W],
        activation: ActivationFunction,
    ) -> tuple[A, A]:
        """Returns what experts make of tokens, and a network beside them: [T, features] each.

        They are the results of `experts`, and of `gated_linear` and `linear`, without biases.

        Args:
            step: The running one.
            inputs: [T, features] that the experts read, and [T, hidden_size] that the network does.
            chosen: Experts and weights, as from `add_norm_route`.
            experts: See `experts`.
            network: Whose gate, up and down are computed with.
            activation: Of the gate, or of up without one.
        """
        ...

    def add_shared(self, mixed: A, shared: A, x: A, router: W | None) -> A:
        """Returns mixed + shared or, with a router, mixed + sigmoid(x @ router) * shared.

        Args:
            mixed: [T, hidden_size], of the experts.
            shared: [T, hidden_size], of the network beside them.
            x: [T, hidden_size], what all of them read.
            router: [hidden_size], or None.
        """
        ...

    def per_layer_inputs(self, step: S, x: A, embedding: Embedding[W]) -> A:
        """Returns the tokens' other embedding, [T, per_layer_features].

        With n the elements of it that a layer has, it is (the token's row of the table * sqrt(n) +
        the norm, n by n, of x @ projection.T / sqrt(hidden_size)) / sqrt(2).

        Args:
            step: Gives the token ids.
            x: [T, hidden_size], the usual embedding.
            embedding: Whose fields `per_layer...` are used.
        """
        ...

    def gate_per_layer(self, step: S, x: A, gate: W, inputs: A, layer: int) -> A:
        """Returns GELU(x @ gate.T), in its form with tanh, times the layer's part of inputs.

        Args:
            step: The running one.
            x: [T, hidden_size].
            gate: [per_layer_size, hidden_size].
            inputs: [T, per_layer_features], as from `per_layer_inputs`.
            layer: Its index.
        """
        ...

    def gelu(self, x: A, activation: ActivationFunction) -> A:
        """Returns x * Phi(x), Phi the normal distribution function: [rows, features].

        Where the activation is GELU_TANH or QUICK_GELU, Phi has tanh or a sigmoid in its place.
        """
        ...

    def patches(self, step: S) -> A:
        """Returns the patches of images that the step brings: [T, patch_features]."""
        ...

    def keep_rows(self, step: S, rows: A, part: int) -> None:
        """Keeps rows of embeddings, [P, row_features], for an inner layer, until `image_rows`."""
        ...

    def image_rows(self, step: S, rows: A) -> A:
        """Returns rows, [P, row_features], each with what was kept behind it: [P, output_size]."""
        ...

    def merge_rows(self, x: A, count: int) -> A:
        """Returns each so many rows that follow each other as one: [rows // count, ...].

        Rows that are left over at the end are left out.
        """
        ...

    def norm_sums(
        self, x: A, weight: W, count: int, eps: float, standard: tuple[W, W] | None = None
    ) -> A:
        """Returns the norm of each row divided by `count`, by root mean square: [rows, ...].

        Args:
            x: [rows, features]; may be changed.
            weight: Of the norm.
            count: What rows are the sums of.
            eps: Of the norm.
            standard: What is added to rows first, and what multiplies them then: [features] each.
        """
        ...

    def norm_values(self, v: A, weight: W, spec: AttentionSpec) -> A:
        """Returns the values of an encoder with each head normed by root mean square.

        Args:
            v: [T, num_kv_heads * value_dim]; may be changed.
            weight: [value_dim].
            spec: Names the layer.
        """
        ...

    def rope_and_store(
        self, step: S, q: A, k: A, v: A, q_norm: W | None, k_norm: W | None, spec: AttentionSpec
    ) -> A:
        """Applies norms, if given, and rope to q and k; stores k and v in their cache slots.

        Rope comes last, or first where `LayerConfig.rotates_first` says so, if the layer rotates.
        Norms are of all heads of a token together where `LayerConfig.joint_head_norms` says so,
        whose weights are [num_heads * key_dim] and [num_kv_heads * key_dim], and come first; q and
        k may be overwritten. Values are normed where `LayerConfig.norms_values` says so.

        Args:
            step: Gives the positions and the slots of its tokens.
            q: [T, num_heads * key_dim].
            k: [T, num_kv_heads * key_dim].
            v: [T, num_kv_heads * value_dim].
            q_norm: [key_dim], of each head, or None.
            k_norm: [key_dim], of each head, or None.
            spec: Names the layer and its rope table.

        Returns:
            The rotated q, [T, num_heads * key_dim].
        """
        ...

    def rotate_queries(self, step: S, q: A, q_norm: W | None, spec: AttentionSpec) -> A:
        """Returns queries as `rope_and_store` does, of a layer that reads another's cache."""
        ...

    def attention(self, step: S, q: A, spec: AttentionSpec, sinks: W | None) -> A:
        """Returns the causal attention of q over the paged cache: [T, num_heads * value_dim].

        Of the last layer, rows that `take_wanted` leaves out may be anything.

        Args:
            step: Says where the keys and values of its sequences are.
            q: [T, num_heads * key_dim], rotated.
            spec: Names the layer.
            sinks: [num_heads], a score of each head that takes its part of the softmax and has no
                value; or None.
        """
        ...

    def store_latent(self, step: S, kv: A, norm: W, spec: AttentionSpec) -> None:
        """Stores rows of multi-head latent attention in their cache slots (see `LatentConfig`).

        A row is the rotated end of `kv`, then the norm of its beginning.

        Args:
            step: Gives the positions and the slots of its tokens.
            kv: [T, rank + rotary_dim]: latent vectors, then what rotates.
            norm: [rank].
            spec: Names the layer.
        """
        ...

    def absorb_and_store(self, step: S, q: A, kv: A, k_b: W, norm: W, spec: AttentionSpec) -> A:
        """Returns queries to such rows, and stores those of `kv` as `store_latent` does.

        The query of a head is its rotated end, then k_b[head] @ its beginning: what it would give
        times a head's key, k_b[head].T @ latent vector, it gives times the latent vector itself.

        Args:
            step: Gives the positions and the slots of its tokens.
            q: [T, num_heads * (plain_dim + rotary_dim)].
            kv: [T, rank + rotary_dim].
            k_b: [num_heads, rank, plain_dim].
            norm: [rank].
            spec: Names the layer.

        Returns:
            [T, num_heads * (rotary_dim + rank)].
        """
        ...

    def expand(self, step: S, x: A, v_b: W, spec: AttentionSpec) -> A:
        """Returns v_b[head] @ the result of each head: [T, num_heads * value_dim].

        Args:
            step: The running one.
            x: [T, num_heads * rank], sums of latent vectors.
            v_b: [num_heads, value_dim, rank].
            spec: Names the layer.
        """
        ...

    def short_convolution(self, step: S, x: A, weight: W, layer: int) -> A:
        """Returns c * convolution(b * x) of each token, with b, c, x of the input: [T, channels].

        A result of the convolution is the sum of the last inputs of its channel, each times its
        weight. Those of earlier steps are the sequence's state, which takes in those of this one.

        Args:
            step: Says where the states of its sequences are.
            x: [T, 3 * channels]: b, c and x, one after the other.
            weight: [channels, width], the last for the newest input.
            layer: Its index, and that of its states.
        """
        ...

    def delta_net(
        self, step: S, x: A, gate: A, rates: tuple[A, A], delta: DeltaNet[W], layer: int
    ) -> A:
        """Returns the results of all heads of Gated DeltaNet, normed: [T, value_features].

        What is convolved of the input, as in `short_convolution`, goes through SiLU, and makes
        queries, keys and values. With a head's state S of [key_dim, value_dim], query and key of
        length 1 and the query divided by sqrt(key_dim), a token does
        S *= exp(decay * softplus(alpha + time_offset)), then
        S += key x (sigmoid(beta) * (value - S.T @ key)), and results in S.T @ query. What divides a
        query or key is sqrt(sum of squares + `ModelConfig.norm_eps`). Results are normed, each
        head's by root mean square, and multiplied with SiLU(gate).

        Args:
            step: Says where the states of its sequences are.
            x: [T, mixed_features], queries, keys and values, not convolved.
            gate: [T, value_features].
            rates: alpha and beta, [T, num_value_heads] each.
            delta: The other weights.
            layer: Its index, and that of its states.
        """
        ...

    def mamba(self, step: S, x: A, mamba: Mamba[W], layer: int) -> A:
        """Returns the results of all heads of Mamba-2, gated and normed: [T, inner_features].

        What is convolved of the input, plus a bias if there is one, goes through SiLU; its inputs
        x, B and C meet the state S of their head, [head_dim, state_size] and zero at first: with
        dt = softplus(dt + time_offset), S = exp(decay * dt) * S + dt * x (outer) B, and the result
        is S @ C + skip * x. Times SiLU of its gate, it is normed by root mean square with the
        others of its group.

        Args:
            step: Says where the states of its sequences are.
            x: [T, input_features], product with `mamba.input`.
            mamba: The other weights.
            layer: Its index, and that of its states.
        """
        ...

    def sigmoid_gate(self, x: A, gate: A) -> A:
        """Returns x * sigmoid(gate), [T, features] each."""
        ...

    def norm_projection(self, x: A, weight: W, bias: W | None, eps: float | None = None) -> A:
        """Returns the norm of queries or keys, all heads as one row, or of patches.

        May overwrite x. It has the model's eps unless it is given another one.
        """
        ...

    def norm_first(self, step: S, x: A, weights: tuple[W, W], norm: W) -> tuple[A, A]:
        """Returns the norm of x @ the first matrix.T, and x @ the second.T as it is.

        Args:
            step: The running one.
            x: [T, in_features].
            weights: [out_features, in_features] each.
            norm: [out_features of the first].
        """
        ...

    def rope(
        self, step: S, q: A, k: A, q_norm: W | None, k_norm: W | None, spec: AttentionSpec
    ) -> tuple[A, A]:
        """Returns q and k, normed by head if norms are given, and rotated by their positions.

        Args:
            step: Gives the positions.
            q: [T, num_heads * key_dim].
            k: [T, num_kv_heads * key_dim].
            q_norm: [key_dim], of each head, or None.
            k_norm: The same; None if the other is.
            spec: Names the layer and its rope table.
        """
        ...

    def attend_all(self, step: S, q: A, k: A, v: A, spec: AttentionSpec) -> A:
        """Returns the attention of each token to those of its sequence that its window reaches.

        q, k, v and the result are [T, heads * dim] each. A score is scale * (query times key), less
        the distance of the two times the slope of the head where the model has slopes.
        """
        ...

    def store_hidden(self, step: S, x: A) -> None:
        """Keeps the hidden states [T, hidden_size] where `beside_hidden` finds them again.

        They lie in the cache's blocks, at the slots of their tokens.
        """
        ...

    def beside_hidden(self, step: S, x: A, embedding_norm: W, hidden_norm: W) -> A:
        """Returns the norm of x beside that of stored hidden states: [T, 2 * hidden_size].

        The hidden state is that of the token before, in its sequence; zeros before the first.

        Args:
            step: Gives positions and blocks.
            x: [T, hidden_size]
            embedding_norm: [hidden_size]
            hidden_norm: [hidden_size]
        """
        ...

    def project_residual(self, step: S, x: A, weight: W) -> A:
        """Returns x times a matrix, with which a residual begins: [T, hidden_size]."""
        ...

    def wants_rows(self, step: S) -> bool:
        """Returns whether anybody reads anything of the last layer but its cache and states.

        It may be True where nobody does.
        """
        ...

    def take_wanted(self, step: S, residual: A, delta: A) -> tuple[A, A]:
        """Returns the rows of both that somebody reads: [L, hidden_size] each, or all of them.

        Args:
            step: Says whose logits are needed; without any, `wants_rows` must say otherwise.
            residual: [T, hidden_size], of the last layer in front of its network.
            delta: [T, hidden_size], what is added to it there.
        """
        ...

    def take_logit_rows(self, step: S, x: A) -> A:
        """Returns the rows of x whose logits are needed: [L, hidden_size].

        x has either all rows or those of `take_wanted`.
        """
        ...

    def logits(self, x: A, weight: W, softcap: float | None) -> A:
        """Returns x @ weight.T, soft-capped if softcap is given: float32 [L, V]."""
        ...

    def sum_hidden(self, step: S, x: A) -> A:
        """Returns the sum of x's rows in each of `StepInput.hidden_ranges`: [P, hidden_size]."""
        ...

    def tanh(self, x: A) -> A:
        """Returns tanh of each element: [P, hidden_size]."""
        ...
