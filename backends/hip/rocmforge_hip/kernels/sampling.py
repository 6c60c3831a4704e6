"""Declarations of kernels that make tokens of logits."""

from __future__ import annotations

from rocmforge_hip.device.arguments import I32, Pointer


def rf_sample_adjust(
    *,
    logits: Pointer,
    scores: Pointer,
    repetition: Pointer,
    presence: Pointer,
    frequency: Pointer,
    seen_offsets: Pointer,
    seen_tokens: Pointer,
    seen_counts: Pointer,
    bias_offsets: Pointer,
    bias_tokens: Pointer,
    bias_values: Pointer,
    source: Pointer,
    previous_tokens: Pointer,
    vocab: I32,
) -> None:
    """Copies logits with penalties and biases."""


def rf_sample_mask(*, scores: Pointer, allowed: Pointer, vocab: I32) -> None:
    """Takes out the tokens that a grammar does not allow."""


def rf_sample_max(
    *,
    scores: Pointer,
    highest: Pointer,
    arrived: Pointer,
    target: Pointer,
    tokens: Pointer | None,
    vocab: I32,
) -> None:
    """Finds the highest score of each part of a row; and the tokens, unless some are drawn."""


def rf_sample_filter(
    *,
    scores: Pointer,
    highest: Pointer,
    temperature: Pointer,
    log_min_p: Pointer,
    top_k: Pointer,
    top_p: Pointer,
    limits: Pointer,
    vocab: I32,
    parts: I32,
) -> None:
    """Finds the least score that min-p, top-k and top-p leave."""


def rf_sample_draw(
    *,
    scores: Pointer,
    highest: Pointer,
    temperature: Pointer,
    limits: Pointer | None,
    seed: Pointer,
    position: Pointer,
    drawn: Pointer,
    arrived: Pointer,
    target: Pointer,
    tokens: Pointer,
    vocab: I32,
) -> None:
    """Adds noise to scores, finds the highest of each part of a row, and the tokens."""


def rf_logprobs(
    *,
    logits: Pointer,
    tokens: Pointer,
    num_logprobs: Pointer,
    logprobs: Pointer,
    top_ids: Pointer,
    top_logprobs: Pointer,
    vocab: I32,
    num_top: I32,
) -> None:
    """Computes log-probabilities of tokens and of the most likely ones."""


def rf_logits_processor(
    *,
    scores: Pointer,
    order: Pointer,
    rows: Pointer,
    numbers: Pointer,
    token_sets: Pointer,
    windows: Pointer,
    uniforms: Pointer,
    positions: Pointer,
    history_offsets: Pointer,
    histories: Pointer,
    prompt_lengths: Pointer,
    row_source: Pointer,
    sampled: Pointer,
    scratch: Pointer,
    scratch_bits: Pointer,
    vocab: I32,
    first: I32,
    num_numbers: I32,
    num_words: I32,
) -> None:
    """Changes scores as a processor says: what `jit.source` writes."""
