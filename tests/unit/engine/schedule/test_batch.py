"""The arrays of a step, written out by hand."""

from __future__ import annotations

import numpy as np

from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.schedule.batch import build_step
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.step_builder import StepBuilder
from rocmforge.engine.sequence.sequence import Sequence
from tests.unit.engine.helpers import request

LIMITS = SchedulerLimits(max_sequences=8, max_batched_tokens=64, max_waiting=0)


def sequence(
    prompt: list[int],
    blocks: list[int],
    sampling: SamplingParams | None = None,
    eos_ids: tuple[int, ...] = (),
) -> Sequence:
    """A sequence that holds `blocks` of four tokens."""
    seq = Sequence(request(0, prompt, sampling or SamplingParams(max_tokens=4), eos_ids=eos_ids), 4)
    for block in blocks:
        seq.hold(block)
    return seq


def plan(*parts: tuple[Sequence, int]) -> list[Chunk]:
    chosen = StepBuilder(LIMITS)
    for seq, num_tokens in parts:
        chosen.add(seq, num_tokens)
    return chosen.chunks


def test_prefill_chunk_and_decode_share_a_step() -> None:
    long = sequence([10, 11, 12, 13, 14, 15, 16], [9, 2])
    long.num_computed = 3
    short = sequence([20, 21], [5])
    step = build_step(7, plan((long, 3), (short, 2)), block_size=4)
    assert step.step_id == 7
    assert step.token_ids.tolist() == [13, 14, 15, 20, 21]
    assert step.token_source.tolist() == [-1] * 5
    assert step.positions.tolist() == [3, 4, 5, 0, 1]
    assert step.slot_mapping.tolist() == [9 * 4 + 3, 2 * 4, 2 * 4 + 1, 5 * 4, 5 * 4 + 1]
    assert step.query_start.tolist() == [0, 3, 5]
    assert step.context_len.tolist() == [6, 2]
    assert step.block_table.tolist() == [[9, 2], [5, 0]]
    assert step.logit_rows.tolist() == [4], "the long prompt is not complete yet"
    assert step.sampling.position.tolist() == [2]


def test_dtypes_are_those_of_the_protocol() -> None:
    step = build_step(0, plan((sequence([1, 2], [0]), 2)), block_size=4)
    for name in ("token_ids", "token_source", "positions", "query_start", "context_len"):
        assert getattr(step, name).dtype == np.int32, name
    assert step.block_table.dtype == step.logit_rows.dtype == np.int32
    assert step.slot_mapping.dtype == np.int64
    rows = step.sampling
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
        column = getattr(rows, name)
        assert column.dtype == np.float32, name
        assert column.flags.c_contiguous, name
    assert rows.frequency_penalty.dtype == rows.bias_values.dtype == np.float32
    assert rows.seed.dtype == np.uint64
    for name in ("top_k", "position", "num_logprobs", "target_ids", "seen_offsets"):
        assert getattr(rows, name).dtype == np.int32, name
    for name in ("seen_tokens", "seen_counts", "bias_offsets", "bias_tokens"):
        assert getattr(rows, name).dtype == np.int32, name


def test_a_token_still_on_the_device_is_named_by_its_row() -> None:
    first, second = sequence([1, 2], [0]), sequence([3], [1])
    plan((first, 2), (second, 1))
    step = build_step(1, plan((second, 1), (first, 1)), block_size=4)
    assert step.token_source.tolist() == [1, 0]
    assert step.positions.tolist() == [1, 2]


def test_scored_prompt_tokens_have_rows_before_the_drawn_one() -> None:
    sampling = SamplingParams(max_tokens=4, prompt_logprobs=2, num_logprobs=0)
    scored = sequence([10, 11, 12, 13], [0], sampling)
    other = sequence([20], [1])
    step = build_step(0, plan((other, 1), (scored, 4)), block_size=4)
    assert step.logit_rows.tolist() == [0, 1, 2, 3, 4]
    assert step.sampling.target_ids.tolist() == [-1, 11, 12, 13, -1]
    assert step.sampling.num_logprobs.tolist() == [-1, 2, 2, 2, 0]
    assert step.sampling.position.tolist() == [1, 1, 2, 3, 4]


def test_parameters_follow_their_rows() -> None:
    one = SamplingParams(max_tokens=4, temperature=0.5, top_k=3, seed=2**64 - 1, top_p=0.75)
    two = SamplingParams(
        max_tokens=4, temperature=0.0, min_p=0.25, repetition_penalty=1.5, presence_penalty=-1.0
    )
    step = build_step(
        0, plan((sequence([1], [0], one), 1), (sequence([2], [1], two), 1)), block_size=4
    )
    rows = step.sampling
    assert rows.temperature.tolist() == [0.5, 0.0]
    assert rows.top_k.tolist() == [3, 0]
    assert rows.top_p.tolist() == [0.75, 1.0]
    assert rows.min_p.tolist() == [0.0, 0.25]
    assert rows.repetition_penalty.tolist() == [1.0, 1.5]
    assert rows.presence_penalty.tolist() == [0.0, -1.0]
    assert rows.seed.tolist() == [2**64 - 1, 0]


def test_penalised_rows_carry_what_the_host_has_seen() -> None:
    penalised = sequence([4, 4, 9], [0, 2], SamplingParams(max_tokens=9, frequency_penalty=1.0))
    plan((penalised, 3))
    penalised.append(6)
    plan((penalised, 1))
    penalised.append(4)
    plan((penalised, 1))  # its token stays on the device
    plain = sequence([1], [1])
    rows = build_step(3, plan((plain, 1), (penalised, 1)), block_size=4).sampling
    assert rows.seen_offsets.tolist() == [0, 0, 3]
    assert rows.seen_tokens.tolist() == [4, 9, 6]
    assert rows.seen_counts.tolist() == [1, 0, 1]


def test_biased_rows_forbid_the_end_before_min_tokens() -> None:
    sampling = SamplingParams(max_tokens=9, min_tokens=1, logit_bias=((3, 0.5), (8, 1.0)))
    biased = sequence([1], [0], sampling, eos_ids=(8,))
    rows = build_step(0, plan((biased, 1)), block_size=4).sampling
    assert dict(zip(rows.bias_tokens.tolist(), rows.bias_values.tolist(), strict=True)) == {
        3: 0.5,
        8: -np.inf,
    }
    biased.append(2)
    rows = build_step(1, plan((biased, 1)), block_size=4).sampling
    assert rows.bias_offsets.tolist() == [0, 2]
    assert rows.bias_tokens.tolist() == [3, 8]
    assert rows.bias_values.tolist() == [0.5, 1.0]
