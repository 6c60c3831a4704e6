"""The arrays of a step's inputs, declared once, and what each is in a step of some shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.ops.step.needs import ListSizes
from rocmforge_hip.ops.step.processor_arrays import ProcessorArrays
from rocmforge_hip.ops.step.shape import PredictorUse, StepShape

X = TypeVar("X")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArrays(Generic[X]):
    """The arrays of a step's inputs, in the order in which they lie in the buffer.

    T tokens, S sequences with up to M blocks of the cache, L rows of logits. `X` is what is known
    of each array: its `ArraySpec`, its `Section` of the buffer, its `Content`, or its place on the
    device.
    """

    token_ids: X  # int32 [T]
    token_source: X  # int32 [T], NO_SOURCE or a row of the step before
    positions: X  # int32 [T]
    rope_rows: X  # int32 [T], of the table of rotations; empty if they are the positions
    slots: X  # int64 [T], where keys and values go, or PADDING_SLOT
    slots_before: X  # int64 [T], those of the tokens before; PADDING_SLOT if there is none
    query_start: X  # int32 [S + 1]
    context_len: X  # int32 [S]
    decodes: X  # int32 [S], the sequences with one new token
    teams: X  # int32 [decodes, 4], `Teams.rows`; or empty
    prefills: X  # int32 [S], the sequences with several
    ends: X  # int32 [S], the last new token of each sequence; or empty, as `in_order`
    in_order: X  # int32 [S], all sequences
    in_turn: X  # int32 [S], as `in_turn` orders them; or empty
    seen_ends: X  # int32 [T], as `StepInput.seen_ends`; or empty
    state_reads: X  # int32 [S], NO_SLOT of padding, and in models without states
    state_writes: X  # int32 [T], the same
    checked_start: X  # int32 [checked + 1], as query_start, of `StepShape.checked`; or empty
    checked_context: X  # int32 [checked], as context_len
    logit_rows: X  # int32 [L]
    temperature: X  # float32 [L]
    log_min_p: X  # float32 [L]
    top_k: X  # int32 [L]
    top_p: X  # float32 [L]
    repetition: X  # float32 [L]
    presence: X  # float32 [L]
    frequency: X  # float32 [L]
    seed: X  # uint64 [L]
    draw_position: X  # int32 [L]
    num_logprobs: X  # int32 [L]
    target: X  # int32 [L]
    row_source: X  # int32 [L], token_source of the row's token
    block_table: X  # int32 [S, M]
    window_tables: X  # int32 [G, S, M]; G groups of layers, none where there is one table
    window_slots: X  # int64 [G, T]
    hidden_ranges: X  # int32 [sums, 2]
    place_ids: X  # int32 [T, 4], as `StepInput.place_ids`, or empty
    place_shares: X  # float32 [T, 4]
    tile_windows: X  # int32 [tile_windows + 1], as `StepInput.tile_windows`, or empty
    lora_tiles: X  # int32 [lora_tiles, 3]
    lora_order: X  # int32 [T]; empty if no sequence has an adapter
    # The sizes of the others are not part of the shape: rows with lists are not sampled in a graph.
    seen_offsets: X  # int32 [L + 1]
    bias_offsets: X  # int32 [L + 1]
    seen_tokens: X  # int32 [seen]
    seen_counts: X  # int32 [seen]
    bias_tokens: X  # int32 [biases]
    bias_values: X  # float32 [biases]
    processors: ProcessorArrays[X] | None
    allowed: X  # uint32 [L, mask_words]; the last, as masks may come later


def specs(shape: StepShape, lists: ListSizes) -> StepArrays[ArraySpec]:
    """Returns the shapes and types of all arrays."""
    tokens, sequences, rows = shape.tokens, shape.sequences, shape.rows
    a_token, a_sequence = spec((tokens,), "i4"), spec((sequences,), "i4")
    floats, ints, offsets = spec((rows,), "f4"), spec((rows,), "i4"), spec((rows + 1,), "i4")
    return StepArrays(
        token_ids=a_token,
        token_source=a_token,
        positions=a_token,
        rope_rows=spec((tokens if shape.has_axes else 0,), "i4"),
        slots=spec((tokens,), "i8"),
        slots_before=spec((tokens if shape.predictor is not PredictorUse.NONE else 0,), "i8"),
        query_start=spec((sequences + 1,), "i4"),
        context_len=a_sequence,
        decodes=a_sequence,
        teams=spec((shape.decodes if shape.has_teams else 0, 4), "i4"),
        prefills=a_sequence,
        ends=spec((sequences if shape.reads_ends else 0,), "i4"),
        in_order=spec((sequences if shape.reads_ends else 0,), "i4"),
        in_turn=spec((sequences if shape.state_launches else 0,), "i4"),
        seen_ends=spec((tokens if shape.both_ways else 0,), "i4"),
        state_reads=a_sequence,
        state_writes=a_token,
        checked_start=spec((shape.checked + 1 if shape.checked else 0,), "i4"),
        checked_context=spec((shape.checked,), "i4"),
        logit_rows=ints,
        temperature=floats,
        log_min_p=floats,
        top_k=ints,
        top_p=floats,
        repetition=floats,
        presence=floats,
        frequency=floats,
        seed=spec((rows,), "u8"),
        draw_position=ints,
        num_logprobs=ints,
        target=ints,
        row_source=ints,
        block_table=spec((sequences, shape.blocks), "i4"),
        window_tables=spec((shape.window_groups, sequences, shape.blocks), "i4"),
        window_slots=spec((shape.window_groups, tokens), "i8"),
        hidden_ranges=spec((shape.sums, 2), "i4"),
        place_ids=spec((tokens if shape.has_places else 0, 4), "i4"),
        place_shares=spec((tokens if shape.has_places else 0, 4), "f4"),
        tile_windows=spec((shape.tile_windows + 1 if shape.tile_windows else 0,), "i4"),
        lora_tiles=spec((shape.lora_tiles, 3), "i4"),
        lora_order=spec((tokens if shape.lora_tiles else 0,), "i4"),
        seen_offsets=offsets,
        bias_offsets=offsets,
        seen_tokens=spec((lists.seen,), "i4"),
        seen_counts=spec((lists.seen,), "i4"),
        bias_tokens=spec((lists.biases,), "i4"),
        bias_values=spec((lists.biases,), "f4"),
        processors=lists.uses.specs(rows),
        allowed=spec((rows, lists.mask_words), "u4"),
    )
