"""The values of a step's inputs, and what fills up their arrays in a graph."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import NO_SLOT, NO_SOURCE, SAMPLE, StepInput
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.step.arrays import StepArrays
from rocmforge_hip.ops.step.processor_arrays import Content, processor_contents
from rocmforge_hip.ops.step.shape import PredictorUse, StepShape, in_turn
from rocmforge_hip.weights.adapters import tile_rows

PADDING_SLOT: Final = -1
"""Slot of a token that only fills up a batch: nothing is stored for it."""


def contents(
    step: StepInput,
    whole: StepInput,
    shape: StepShape,
    rope_rows: Int32Array | None,
    teams: Int32Array | None,
) -> StepArrays[Content]:
    """Returns the values and the padding of every array but those of several dimensions.

    Args:
        step: The step.
        whole: The step as layers with states take it; itself, if its sequences are no others.
        shape: Not smaller than the step.
        rope_rows: What tokens rotate by, [T]; None: their positions.
        teams: `Teams.rows`, if the shape has teams.
    """
    new_tokens = step.new_tokens
    batch, nothing = step.sampling, np.zeros(0, np.int32)
    # The padding of a graph is decodes, whose sequences stand behind those of the step.
    decodes = np.flatnonzero(new_tokens == 1)
    padding = step.num_sequences + np.arange(shape.decodes - len(decodes), dtype=np.int32)
    of_states = in_turn(step)[0] if shape.state_launches else nothing
    of_states = np.concatenate((of_states[: len(decodes)], padding, of_states[len(decodes) :]))
    ends = in_order = nothing
    if shape.reads_ends:
        ends, in_order = step.query_start[1:] - 1, np.arange(shape.sequences, dtype=np.int32)
    tiles, order = tile_rows(step.token_adapters) if shape.lora_tiles else (nothing, nothing)
    with np.errstate(divide="ignore"):
        log_min_p = np.log(batch.min_p)
    return StepArrays(
        token_ids=(step.token_ids, 0),
        token_source=(step.token_source, NO_SOURCE),
        positions=(step.positions, 0),
        rope_rows=(step.positions if rope_rows is None else rope_rows, 0),
        slots=(step.slot_mapping, PADDING_SLOT),
        slots_before=(_slots_before(step, shape), PADDING_SLOT),
        query_start=(step.query_start, int(step.query_start[-1])),
        context_len=(step.context_len, 0),
        decodes=(np.concatenate((decodes, padding)), 0),
        teams=(nothing if teams is None else teams, 0),
        prefills=(np.flatnonzero(new_tokens > 1), 0),
        ends=(ends, int(step.query_start[-1])),
        in_order=(in_order, 0),
        in_turn=(of_states, 0),
        seen_ends=(step.seen_ends, 0),
        state_reads=(whole.state_reads, NO_SLOT),
        state_writes=(whole.state_writes, NO_SLOT),
        checked_start=(whole.query_start, int(whole.query_start[-1])),
        checked_context=(whole.context_len, 0),
        logit_rows=(step.logit_rows, 0),
        temperature=(batch.temperature, 0),
        log_min_p=(log_min_p, -np.inf),
        top_k=(batch.top_k, 0),
        top_p=(batch.top_p, 1.0),
        repetition=(batch.repetition_penalty, 1.0),
        presence=(batch.presence_penalty, 0),
        frequency=(batch.frequency_penalty, 0),
        seed=(batch.seed, 0),
        draw_position=(batch.position, 0),
        num_logprobs=(batch.num_logprobs, -1),
        target=(batch.target_ids, SAMPLE),
        row_source=(step.token_source[step.logit_rows], NO_SOURCE),
        block_table=(nothing, None),
        window_tables=(nothing, None),
        window_slots=(nothing, None),
        hidden_ranges=(step.hidden_ranges, 0),
        place_ids=(step.place_ids, 0),
        place_shares=(step.place_shares, 0),
        tile_windows=(step.tile_windows, 0),
        lora_tiles=(tiles, 0),
        lora_order=(order, 0),
        seen_offsets=(batch.seen_offsets, int(batch.seen_offsets[-1])),
        bias_offsets=(batch.bias_offsets, int(batch.bias_offsets[-1])),
        seen_tokens=(batch.seen_tokens, 0),
        seen_counts=(batch.seen_counts, 0),
        bias_tokens=(batch.bias_tokens, 0),
        bias_values=(batch.bias_values, 0),
        processors=None if batch.processors is None else processor_contents(batch.processors),
        allowed=(nothing if batch.allowed is None else batch.allowed, 0xFFFFFFFF),
    )


def _slots_before(step: StepInput, shape: StepShape) -> npt.NDArray[np.int64]:
    """Returns where the tokens before those of the step are, int64 [T]; empty if nobody asks."""
    if shape.predictor is PredictorUse.NONE:
        return np.zeros(0, np.int64)
    owners = np.repeat(np.arange(step.num_sequences), step.new_tokens)
    before = step.positions - 1
    blocks = step.block_table[owners, before // BLOCK_TOKENS].astype(np.int64)
    return np.where(before < 0, PADDING_SLOT, blocks * BLOCK_TOKENS + before % BLOCK_TOKENS)
