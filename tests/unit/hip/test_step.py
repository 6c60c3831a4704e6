"""How a step is laid out in its buffer, and what fills up a batch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.step import MAX_KEPT_STATES, NO_SLOT, StepInput
from rocmforge_hip.device.memory import DeviceArray, HostCopies
from rocmforge_hip.device.records import named_leaves
from rocmforge_hip.ops.step.layout import StepLayout
from rocmforge_hip.ops.step.needs import ListSizes, SamplingNeeds
from rocmforge_hip.ops.step.output import OutputLayout
from rocmforge_hip.ops.step.shape import StateLaunch, StepShape
from rocmforge_hip.run.checked_drafts import as_decodes
from rocmforge_hip.run.embeddings import RowStaging
from rocmforge_hip.run.shapes import exact_shape
from tests.backend.driving import Chunk, Want, make_sampling, make_step, with_states

BASE = 1 << 32
BLOCK = 32
DECODES = StepShape(
    tokens=4, sequences=4, rows=4, blocks=8, decodes=4, prefills=0, longest_prefill=0
)


@pytest.fixture
def copies() -> Iterator[HostCopies]:
    with closing(HostCopies()) as found:
        yield found


def packed(chunks: list[Chunk], shape: StepShape) -> dict[str, list[Any]]:
    """What the device would find in each array."""
    return packed_step(make_step(0, chunks, BLOCK), shape)


def packed_step(step: StepInput, shape: StepShape) -> dict[str, list[Any]]:
    """The same of a step."""
    layout = StepLayout(shape, ListSizes.of(step.sampling))
    buffer = np.full(layout.nbytes, 0xAA, np.uint8)
    layout.pack(step, buffer)
    found = {}
    for name, array in named_leaves(layout.arrays(BASE), DeviceArray):
        start = array.address - BASE
        assert start % 16 == 0
        values = buffer[start : start + array.nbytes].view(array.dtype)
        found[name] = values.reshape(array.shape).tolist()
    return found


def test_decodes_are_filled_up_with_sequences_that_store_and_see_nothing() -> None:
    chunks = [
        Chunk(tokens=[5], start=40, blocks=[2, 3]),
        Chunk(tokens=[0], start=7, blocks=[6], sources=[1]),
    ]
    arrays = packed(chunks, DECODES)
    assert arrays["token_ids"] == [5, 0, 0, 0]
    assert arrays["token_source"] == [-1, 1, -1, -1]
    assert arrays["slots"] == [3 * BLOCK + 8, 6 * BLOCK + 7, -1, -1]
    assert arrays["context_len"] == [41, 8, 0, 0]
    assert arrays["decodes"] == [0, 1, 2, 3]
    assert arrays["query_start"] == [0, 1, 2, 2, 2]
    assert arrays["block_table"][0][:2] == [2, 3]
    assert arrays["block_table"][1][0] == 6
    assert arrays["row_source"] == [-1, 1, -1, -1]
    assert arrays["temperature"] == [0, 0, 0, 0]


def test_prefills_and_decodes_are_told_apart() -> None:
    chunks = [
        Chunk(tokens=[1, 2, 3], blocks=[0]),
        Chunk(tokens=[4], start=9, blocks=[1]),
        Chunk(tokens=[5, 6], blocks=[2]),
    ]
    shape = StepShape(
        tokens=6, sequences=3, rows=3, blocks=1, decodes=1, prefills=2, longest_prefill=3
    )
    arrays = packed(chunks, shape)
    assert arrays["decodes"][:1] == [1]
    assert arrays["prefills"][:2] == [0, 2]


def test_padding_of_decodes_stands_behind_a_prompt_among_them() -> None:
    step = stateful((1, 0, 0), (3, 1, 1), (1, 2, 2))
    shape = StepShape(
        tokens=12,
        sequences=5,
        rows=5,
        blocks=2,
        decodes=4,
        prefills=1,
        longest_prefill=8,
        state_launches=(StateLaunch(4, 1), StateLaunch(1, 8)),
    )
    arrays = packed_step(step, shape)
    assert arrays["query_start"] == [0, 1, 4, 5, 5, 5]
    assert arrays["decodes"][:4] == [0, 2, 3, 4]
    assert arrays["prefills"][:1] == [1]
    assert arrays["in_turn"] == [0, 2, 3, 4, 1]
    assert arrays["state_reads"] == [0, 1, 2, NO_SLOT, NO_SLOT]
    assert arrays["slots"][5:] == [-1] * 7


def stateful(*rows: tuple[int, int, int]) -> StepInput:
    """A step of sequences of so many tokens that read one state slot and write another."""
    chunks = [
        Chunk(tokens=[1] * n, start=1, blocks=[3 * i, 3 * i + 1], state_read=read, state_slot=write)
        for i, (n, read, write) in enumerate(rows)
    ]
    return with_states(make_step(0, chunks, BLOCK), chunks)


MANY = MAX_KEPT_STATES + 1


def test_layers_with_states_take_sequences_by_how_many_tokens_they_have() -> None:
    step = stateful((MANY, 0, 0), (2, 1, 1), (1, 2, 2), (MANY - 1, 3, 3), (60, 4, 4))
    shape = exact_shape(step)
    assert shape.state_launches == ((1, 1), (2, MANY - 1), (2, 60))
    arrays = packed_step(step, shape)
    assert arrays["prefills"][:4] == [0, 1, 3, 4]
    assert arrays["in_turn"] == [2, 1, 3, 0, 4]
    assert arrays["state_reads"] == [0, 1, 2, 3, 4]
    assert [slot for slot in arrays["state_writes"] if slot != NO_SLOT] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("tokens", [1, 2, MANY])
def test_a_sequence_alone_is_one_launch(tokens: int) -> None:
    step = stateful((tokens, 0, 0))
    shape = exact_shape(step)
    assert shape.state_launches == ((1, tokens),)
    assert packed_step(step, shape)["in_turn"] == [0]


def test_parts_of_a_sequence_are_launched_in_their_turns() -> None:
    """Of two sequences in three and two parts; in slots of which some are both read and written."""
    step = stateful(
        *((60, 0, 1), (1, 1, 0), (9, 0, 5), (1, 2, 2), (4, 3, 4), (MANY, 4, 3)),
    )
    assert step.turns.tolist() == [0, 1, 2, 0, 0, 1]
    arrays, shape = packed_step(step, exact_shape(step)), exact_shape(step)
    assert shape.state_launches == ((1, 1), (1, 4), (1, 60), (1, 1), (1, MANY), (1, 9))
    assert arrays["in_turn"] == [3, 4, 0, 1, 5, 2]


def test_parts_of_a_sequence_are_no_drafts_to_check() -> None:
    alone, parts = stateful((3, 0, 1), (2, 2, 3)), stateful((3, 0, 1), (2, 1, 3))
    rows = np.arange(5, dtype=np.int32)
    assert as_decodes(replace(alone, logit_rows=rows), 8).num_sequences == 5
    assert as_decodes(replace(parts, logit_rows=rows), 8).num_sequences == 2


def test_lists_are_packed_behind_everything_else() -> None:
    wants = [Want(repetition_penalty=1.5, seen={3: 1, 4: 0}, bias={9: -np.inf}, min_p=0.5)]
    arrays = packed([Chunk(tokens=[5], start=1, blocks=[0], wants=wants)], DECODES)
    assert arrays["seen_offsets"] == [0, 2, 2, 2, 2]
    assert (arrays["seen_tokens"], arrays["seen_counts"]) == ([3, 4], [1, 0])
    assert arrays["bias_offsets"] == [0, 1, 1, 1, 1]
    assert (arrays["bias_tokens"], arrays["bias_values"]) == ([9], [-np.inf])
    assert arrays["log_min_p"] == [np.float32(np.log(np.float32(0.5))), *[-np.inf] * 3]


def test_arrays_of_a_shape_lie_where_they_lay_whatever_lists_come_with_it() -> None:
    plain = dict(named_leaves(StepLayout(DECODES).arrays(BASE), DeviceArray))
    lists = ListSizes(100, 50, 4)
    with_lists = dict(named_leaves(StepLayout(DECODES, lists).arrays(BASE), DeviceArray))
    of_varying_size = {"seen_tokens", "seen_counts", "bias_tokens", "bias_values", "allowed"}
    assert {name: with_lists[name] for name in plain.keys() - of_varying_size} == {
        name: plain[name] for name in plain.keys() - of_varying_size
    }


@pytest.mark.parametrize(
    ("want", "adjusts", "draws", "filters", "logprobs"),
    [
        (Want(), False, False, False, False),
        (Want(top_k=5), False, False, False, False),  # greedy anyway
        (Want(temperature=1.0), False, True, False, False),
        (Want(temperature=1.0, top_p=0.9), False, True, True, False),
        (Want(temperature=1.0, min_p=0.1), False, True, True, False),
        (Want(presence_penalty=1.0), True, False, False, False),
        (Want(bias={1: 2.0}), True, False, False, False),
        (Want(num_logprobs=0), False, False, False, True),
    ],
)
def test_a_step_needs_the_kernels_its_rows_ask_for(
    want: Want, adjusts: bool, draws: bool, filters: bool, logprobs: bool
) -> None:
    needs = SamplingNeeds.of(make_sampling([Want(), want]))
    assert (needs.adjusts, needs.draws, needs.filters, needs.logprobs) == (
        adjusts,
        draws,
        filters,
        logprobs,
    )


def test_results_are_read_from_where_the_device_writes_them() -> None:
    layout = OutputLayout(rows=4, logprobs=True, num_top=2)
    buffer = np.zeros(layout.nbytes, np.uint8)
    logprobs, top_ids, top_logprobs = layout.arrays(BASE)
    buffer[:16].view(np.int32)[:] = [1, 2, 3, 4]
    for array, values in ((logprobs, 5), (top_ids, 6), (top_logprobs, 7)):
        start = array.address - BASE
        buffer[start : start + array.nbytes].view(array.dtype)[:] = values
    tokens, *rest = layout.read(buffer, 3)
    assert tokens.tolist() == [1, 2, 3]
    assert [each.tolist() for each in rest] == [[5] * 3, [[6] * 2] * 3, [[7] * 2] * 3]


def test_sums_of_hidden_states_end_where_the_tokens_begin(copies: HostCopies) -> None:
    without = OutputLayout(rows=3, logprobs=True, num_top=2)
    layout = OutputLayout(rows=3, logprobs=True, num_top=2, sums=2, hidden_size=4)
    buffer = np.zeros(layout.nbytes, np.uint8)
    buffer[: -without.nbytes].view(np.float32)[:] = range(8)
    buffer[-without.nbytes :].view(np.int32)[:3] = [5, 6, 7]
    room = layout.make_room()
    assert room is not None
    hidden = layout.read_hidden(buffer, room, copies)
    assert hidden.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert layout.read(buffer, 3)[0].tolist() == [5, 6, 7]
    assert without.make_room() is None


def test_rows_of_embeddings_are_put_together_in_one_copy(copies: HostCopies) -> None:
    """A tower makes those for the beginning first, then those for each inner layer."""
    layout = OutputLayout(rows=0, logprobs=False, num_top=0, sums=2, hidden_size=6, parts=3)
    buffer = np.arange(12, dtype=np.float32).view(np.uint8)
    room = layout.make_room()
    assert room is not None
    hidden = layout.read_hidden(buffer, room, copies)
    assert hidden.tolist() == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    size = 1 << 20
    layout = OutputLayout(rows=0, logprobs=False, num_top=0, sums=64, hidden_size=4096, parts=4)
    buffer = np.zeros(size, np.uint8)

    def read() -> None:
        room = layout.make_room()
        assert room is not None
        layout.read_hidden(buffer, room, copies)

    assert peak_bytes(read) < 1.1 * size


def peak_bytes(call: Callable[[], object]) -> int:
    """What a call takes of the host's memory at most; arrays are counted."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_pieces_of_rows_are_staged_part_by_part_without_being_put_together(
    copies: HostCopies,
) -> None:
    device: Any = SimpleNamespace(
        memory=SimpleNamespace(
            copies=copies,
            pinned=lambda size, what: SimpleNamespace(
                bytes=np.full(size, 0xFF, np.uint8), address=0
            ),
        ),
        driver=None,
        stream=0,
    )
    lane: Any = object()
    staging = RowStaging(device, most_rows=4, features=2, parts=3)
    whole = np.arange(12, dtype=np.float32).reshape(2, 6)
    plain = np.array([[20, 21]], np.float32)
    staged = staging.stage([whole, plain], np.array([3, 4, 7], np.int32), lane)
    assert staged is not None
    assert staged.parts == 3
    waiting = staging._buffers[lane].bytes[: 4 * 3 * 3 * 2].view(np.float32).reshape(3, 3, 2)
    assert waiting[:, :2].tolist() == whole.reshape(2, 3, 2).swapaxes(0, 1).tolist()
    assert waiting[:, 2].tolist() == [[20, 21], [0, 0], [0, 0]]
    rows = np.zeros((1024, 2), np.float32)
    staging = RowStaging(device, most_rows=1024, features=2)
    staging.stage([rows], np.arange(1024, dtype=np.int32), lane)  # takes the pinned memory
    again = peak_bytes(lambda: staging.stage([rows], np.arange(1024, dtype=np.int32), lane))
    assert again < rows.nbytes
