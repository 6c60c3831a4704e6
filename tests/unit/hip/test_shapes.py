"""Which steps are computed in the shape of a graph, and which shape that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rocmforge.backend.step import MAX_KEPT_STATES, StepInput
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.ops.step.shape import StepShape
from rocmforge_hip.run.shapes import StepShapes, exact_shape
from tests.backend.driving import Chunk, make_step, with_states

LIMITS = StepLimits(tokens=66, sequences=6, context=3000)
SHAPES = StepShapes(LIMITS, predicts=False, has_axes=False)
LARGE_SHAPES = StepShapes(replace(LIMITS, tokens=1000), predicts=False, has_axes=False)


def chunks_of(counts: Sequence[int], start: int) -> list[Chunk]:
    """Sequences with so many new tokens behind as many old ones; each wants logits of its last."""
    return [
        Chunk(tokens=[1] * count, start=start, blocks=range(200), state_slot=row)
        for row, count in enumerate(counts)
    ]


def step_of(*counts: int, start: int = 5) -> StepInput:
    return make_step(0, chunks_of(counts, start), BLOCK_TOKENS)


def shape_of(step: StepInput) -> StepShape:
    found = SHAPES.of_graph(step, step)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("tokens", "padded"), [(2, 8), (8, 8), (9, 16), (17, 32), (33, 47), (47, 47), (48, 64)]
)
def test_a_short_prompt_is_padded(tokens: int, padded: int) -> None:
    shape = shape_of(step_of(tokens))
    assert (shape.tokens, shape.longest_prefill) == (padded, padded)
    assert (shape.sequences, shape.rows, shape.decodes, shape.prefills) == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("counts", "decodes"), [((1, 9), 1), ((9, 1, 1, 1), 4), ((1, 1, 9, 1, 1, 1), 5)]
)
def test_decodes_beside_it_are_padded_on_their_own(counts: Sequence[int], decodes: int) -> None:
    shape = shape_of(step_of(*counts))
    assert (shape.decodes, shape.prefills, shape.longest_prefill) == (decodes, 1, 16)
    assert (shape.tokens, shape.sequences, shape.rows) == (decodes + 16, decodes + 1, decodes + 1)


@pytest.mark.parametrize(
    ("context", "blocks"), [(14, 8), (256, 8), (257, 32), (1024, 32), (1025, 94), (3000, 94)]
)
def test_the_room_for_blocks_grows_fourfold_up_to_the_longest_context(
    context: int, blocks: int
) -> None:
    assert shape_of(step_of(9, start=context - 9)).blocks == blocks


@pytest.mark.parametrize(
    "counts", [(2, 9), (9, 2, 1), (65,), (1, 1, 1, 1, 1, 1, 9), (1,) * 4 + (60,)]
)
def test_other_prompts_have_shapes_of_their_own(counts: Sequence[int]) -> None:
    """Several, or more than a step or the largest graph has room for, with its padding."""
    step = step_of(*counts)
    assert SHAPES.of_graph(step, step) is None


@pytest.mark.parametrize(
    ("tokens", "padded"), [(100, 128), (129, 192), (192, 192), (257, 320), (512, 512), (513, None)]
)
def test_a_longer_prompt_is_padded_to_whole_tiles(tokens: int, padded: int | None) -> None:
    step = step_of(tokens)
    shape = LARGE_SHAPES.of_graph(step, step)
    assert (shape and shape.tokens) == padded


@pytest.mark.parametrize("counts", [(1, 100), (200, 1)])
def test_beside_decodes_no_prompt_is_padded_to_more_than_128_tokens(counts: Sequence[int]) -> None:
    """Products of more rows take another tile, and so much longer that launches cost less."""
    step = step_of(*counts)
    assert LARGE_SHAPES.of_graph(step, step) is None


def test_prompts_have_shapes_of_their_own_where_there_are_no_graphs() -> None:
    step = step_of(9)
    assert SHAPES.of_graph(step, step, prompts=False) is None
    decode = step_of(1)
    assert SHAPES.of_graph(decode, decode, prompts=False) is not None


def test_a_prompt_whose_rows_are_scored_has_a_shape_of_its_own() -> None:
    step = replace(step_of(9), logit_rows=np.arange(9, dtype=np.int32))
    assert SHAPES.of_graph(step, step) is None
    silent = replace(step, logit_rows=step.logit_rows[:0])
    assert shape_of(silent).rows == 1


def test_a_shape_says_whether_logits_are_of_last_tokens_alone() -> None:
    ends, none = step_of(9, 1), replace(step_of(9, 1), logit_rows=np.zeros(0, np.int32))
    between = replace(ends, logit_rows=np.array([7, 9], np.int32))
    assert [shape_of(step).reads_ends for step in (ends, none, between)] == [True, True, False]
    found = [exact_shape(step).reads_ends for step in (ends, none, between, step_of(1, 1))]
    assert found == [True, False, False, False]


def test_layers_with_states_take_decodes_and_then_the_prompt() -> None:
    chunks = chunks_of((1, 9, 1, 1), 5)
    step = with_states(make_step(0, chunks, BLOCK_TOKENS), chunks)
    assert shape_of(step).state_launches == ((4, 1), (1, 16))
    alone = with_states(make_step(0, chunks[1:2], BLOCK_TOKENS), chunks[1:2])
    assert shape_of(alone).state_launches == ((1, 16),)


def test_states_within_a_prompt_are_kept_where_tokens_follow_each_other() -> None:
    (chunk,) = chunks_of((MAX_KEPT_STATES - 2,), 5)
    chunk = replace(chunk, kept_states={20: 3})
    step = with_states(make_step(0, [chunk], BLOCK_TOKENS), [chunk])
    assert shape_of(step).longest_prefill == MAX_KEPT_STATES


def test_parts_of_one_prompt_have_shapes_of_their_own() -> None:
    first, second = chunks_of((9, 1), 5)
    chunks = [first, replace(second, state_read=first.state_slot)]
    step = with_states(make_step(0, chunks, BLOCK_TOKENS), chunks)
    assert SHAPES.of_graph(step, step) is None
