"""The computation of a step by any model: its forward pass, and what is asked of its end."""

from __future__ import annotations

from typing import TypeVar

from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.forward import decoder, encoder
from rocmforge.models.forward.ops import Ops
from rocmforge.models.weights import present

A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


def hidden_states(config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S) -> A:
    """Returns the hidden states of the step's tokens after the last norm, [T, hidden_size]."""
    compute = decoder.hidden_states if config.causal else encoder.hidden_states
    return compute(config, weights, ops, step)


def predicted_states(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S
) -> A:
    """Returns the hidden states that the predictor guesses, [T, hidden_size], and stores them."""
    x = decoder.predicted_states(config, weights, ops, step)
    ops.store_hidden(step, x)
    return x


def prepare_predictor(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S, hidden: A
) -> None:
    """Keeps all tokens' hidden states for the predictor, if there is one, and fills its cache."""
    if config.predicts:
        ops.store_hidden(step, hidden)
        decoder.fill_predictor(config, weights, ops, step)


def predicted_logits(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S, hidden: A
) -> A:
    """Returns the predictor's logits of the step's logit rows, [L, V], from its hidden states."""
    rows = ops.take_logit_rows(step, hidden)
    output = present(weights.predictor).output or present(weights.output)
    return ops.logits(rows, output, config.logit_softcap)


def logits(
    config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S, hidden: A
) -> A:
    """Returns the logits of the step's logit rows, [L, V], from all tokens' hidden states."""
    rows = ops.take_logit_rows(step, hidden)
    return ops.logits(rows, present(weights.output), config.logit_softcap)


def sums(config: ModelConfig, weights: ModelWeights[W], ops: Ops[A, W, S], step: S, hidden: A) -> A:
    """Returns what the step gives for its hidden ranges, [P, config.output_size].

    That is the sum of the hidden states; or, of a model with a head, the scores of that sum, which
    is the state of one token there: the first. Of a tower, it is a row of embeddings.
    """
    if weights.projector is not None:
        return encoder.image_rows(config, weights.projector, ops, step, hidden)
    rows, head = ops.sum_hidden(step, hidden), weights.head
    if head is None:
        return rows
    if head.dense is not None:
        rows = ops.tanh(ops.linear(step, rows, head.dense, head.dense_bias))
    return ops.linear(step, rows, head.scores, head.scores_bias)
