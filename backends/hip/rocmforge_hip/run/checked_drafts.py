"""Steps that check draft tokens, as steps of decodes.

A sequence with draft tokens has a few new tokens, and wants logits behind each. As so many
sequences of one new token, with the same blocks, they compute the same: keys and values of all
tokens are stored before any of them attends. Such a step can be replayed from a graph, and the
kernels of decodes cut its contexts into pieces for the whole device, where those of prompts would
leave most of it idle. Layers with states take in the tokens of a sequence one after the other: they
are given the sequences as they were (`StepShape.checked`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rocmforge.backend.step import MAX_KEPT_STATES, StepInput


def as_decodes(step: StepInput, most: int) -> StepInput:
    """Returns the step with a sequence for each token, if it only decodes and checks drafts.

    Such a step says nothing of states.

    Args:
        step: Any step.
        most: Sequences that a step may have. A step with more tokens is returned as it is.
    """
    count = step.num_tokens
    if not step.num_sequences < count == len(step.logit_rows) <= most:
        return step
    if len(step.hidden_ranges) or len(step.embedding_tokens):
        return step
    counts = step.new_tokens
    if len(step.state_reads) and (counts.max() > MAX_KEPT_STATES or step.goes_on.any()):
        return step  # no draft
    owners = np.repeat(np.arange(step.num_sequences), counts)
    tables = step.window_tables
    return replace(
        step,
        query_start=np.arange(count + 1, dtype=np.int32),
        context_len=step.positions + 1,
        block_table=step.block_table[owners],
        window_tables=tables[:, owners] if len(tables) else tables,
        adapters=step.token_adapters,
        state_reads=step.state_reads[:0],
        state_writes=step.state_writes[:0],
    )
