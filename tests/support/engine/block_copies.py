"""What copies of blocks to the host's memory and back must do, of any runner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from rocmforge.backend.protocol import CopiesBlocks, LoadOptions, Runner
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.backend.driving import Chunk, Driver, Want
from tests.support.engine.core import submits

WHATEVER_IT_TAKES = (
    "rocmforge.engine.cache.tiers.tiers.worth_copying",
    lambda start, block_size, copies, compute_ns: len(copies),
)
"""To patch: what is found is brought back, fast or not."""
GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
_DRAWN = SamplingParams(max_tokens=20, temperature=1.0)
"""Tiny models repeat one token if none is drawn, whatever they have read."""


def wait_for_copies(runner: CopiesBlocks, copies: int) -> list[int]:
    """The nanoseconds of so many copies that have been started."""
    found: list[int] = []
    end = time.monotonic() + 60
    while len(found) < copies:
        assert time.monotonic() < end, "a copy never ends"
        found += runner.finished_copies()
    assert not runner.finished_copies()
    return found


def check_that_blocks_come_back(driver: Driver, *, predicts: bool = False) -> None:
    """Blocks are saved, overwritten and restored in other places, while steps are submitted.

    The model goes on from them, or its predictor.
    """
    runner = driver.runner
    assert isinstance(runner, CopiesBlocks)
    size = runner.info.block_size
    tokens = [(5 * i) % 90 + 3 for i in range(2 * size)]
    wants = [Want(num_logprobs=20)]
    others = [(3 * i) % 90 + 4 for i in range(2 * size)]

    def fill(tokens: list[int], blocks: list[int]) -> None:
        driver.run(Chunk(tokens=tokens[:size], blocks=blocks))
        driver.run(Chunk(tokens=tokens[size:], start=size, blocks=blocks))

    fill(others, [0, 6])
    fill(tokens, [1, 2])
    after = Chunk(tokens=[7], start=2 * size, blocks=[1, 2, 3], wants=wants)
    compute = driver.guess if predicts else driver.run
    expected = compute(after)
    host = runner.open_host_blocks(4)
    assert host.shape == (4, runner.info.block_bytes)
    runner.save_blocks(np.array([2, 1], np.int32), np.array([0, 3], np.int32))
    # At once, and in the same places: what was there must have been saved before.
    fill(others, [2, 1])
    runner.restore_blocks(np.array([0, 6], np.int32), np.array([3, 0], np.int32))
    found = compute(Chunk(tokens=[7], start=2 * size, blocks=[0, 6, 5], wants=wants))  # at once
    assert all(each >= 0 for each in wait_for_copies(runner, 2))
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_array_equal(found.top_logprobs, expected.top_logprobs)


def check_that_states_come_back(driver: Driver) -> None:
    """States are saved, overwritten and restored in another slot, while steps are submitted."""
    runner = driver.runner
    assert isinstance(runner, CopiesBlocks)
    size = runner.info.block_size
    tokens = [(5 * i) % 90 + 3 for i in range(2 * size)]
    others = [(3 * i) % 90 + 4 for i in range(2 * size)]
    driver.run(Chunk(tokens=others[size:], blocks=[4], state_slot=2))
    for start in (0, size):
        part = tokens[start : start + size]
        driver.run(Chunk(tokens=part, start=start, blocks=[1, 2], state_slot=1))
    after = Chunk(
        tokens=[7], start=2 * size, blocks=[1, 2, 3], wants=[Want(num_logprobs=20)], state_read=1
    )
    expected = driver.run(after)
    runner.open_host_blocks(1)
    host = runner.open_host_states(3)
    assert host.shape == (3, runner.info.slot_bytes)
    one, two = np.array([1], np.int32), np.array([2], np.int32)
    runner.save_states(one, two)
    driver.run(Chunk(tokens=others[:size], blocks=[4], state_slot=1))  # what was there is saved
    runner.restore_states(two, two)
    found = driver.run(replace(after, state_read=2))  # at once again
    assert all(each >= 0 for each in wait_for_copies(runner, 2))
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_array_equal(found.top_logprobs, expected.top_logprobs)


def check_that_blocks_of_windows_come_back(driver: Driver) -> None:
    """The same of blocks that only layers with a window have: others have ended by then."""
    runner = driver.runner
    assert isinstance(runner, CopiesBlocks)
    info = runner.info
    size, of_group = info.block_size, info.num_blocks // (1 + info.window_groups)
    tokens = [(5 * i) % 90 + 3 for i in range(size)]
    others = [(3 * i) % 90 + 4 for i in range(size)]
    after = Chunk(tokens=[7], start=size, blocks=[1, 3], wants=[Want(num_logprobs=20)])
    driver.run(Chunk(tokens=others, blocks=[0]))
    driver.run(Chunk(tokens=tokens, blocks=[1]))
    expected = driver.run(after)
    slots = np.arange(1 + info.window_groups, dtype=np.int32)
    blocks = 1 + of_group * slots
    runner.open_host_blocks(len(slots))
    runner.save_blocks(blocks[:1], slots[:1])
    wait_for_copies(runner, 1)
    runner.save_blocks(blocks[1:], slots[1:])
    driver.run(Chunk(tokens=others, blocks=[1]))  # at once
    wait_for_copies(runner, 1)
    runner.restore_blocks(blocks[:1], slots[:1])
    wait_for_copies(runner, 1)
    runner.restore_blocks(blocks[1:], slots[1:])
    found = driver.run(after)  # at once
    wait_for_copies(runner, 1)
    np.testing.assert_array_equal(found.top_ids, expected.top_ids)
    np.testing.assert_array_equal(found.top_logprobs, expected.top_logprobs)


def check_that_windows_come_back(
    releasing: Runner, keeping: Runner, options: LoadOptions, length: int
) -> None:
    """Prompts longer than a window are evicted, and answered from the host's memory.

    Args:
        releasing: of a model whose windows release blocks; has no room for six of the prompts.
        keeping: of the same model, with room for all.
        options: of both.
        length: tokens of a prompt.
    """
    prompts = [[7 * (i + 31 * n) % 89 + 3 for i in range(length)] for n in (*range(8), 0, 2)]
    found, totals = ask_in_turn(releasing, prompts, options, slots=200, sampling=_DRAWN)
    expected, _ = ask_in_turn(keeping, prompts, options, sampling=_DRAWN)
    assert found == expected
    full = (length - 1) // releasing.info.block_size * releasing.info.block_size
    assert totals.prefix_hit_tokens == 2 * full, "all that is full of the last two"
    groups, info = releasing.info.window_groups, releasing.info
    of_windows = groups * -(-(info.window - 1) // info.block_size)
    assert groups > 0
    assert totals.tier_restored_blocks >= 2 * of_windows


def ask_in_turn(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    options: LoadOptions,
    slots: int = 0,
    states: int = 0,
    sampling: SamplingParams = GREEDY,
) -> tuple[list[list[int]], Totals]:
    """Answers to prompts one after the other, and the counters; 0 slots: without tiers."""
    clock, totals = count(1), Totals()
    limits = SchedulerLimits(
        max_sequences=options.max_sequences,
        max_batched_tokens=options.max_batched_tokens,
        max_waiting=100,
    )
    tiers = None
    if slots:
        assert isinstance(runner, CopiesBlocks)
        tiers = CacheTiers(runner, slots, None, totals, states)
    core = EngineCore(runner, limits, lambda: next(clock), totals, tiers=tiers)
    answers = []
    for number, prompt in enumerate(prompts):
        (request,) = submits([(prompt, sampling)])
        tokens: list[int] = []
        report = core.step([request])
        while True:
            for event in report.events:
                assert event.error is None, number
                tokens += event.token_ids
            if not core.has_work:
                break
            report = core.step()
        core.check_integrity()
        answers.append(tokens)
    while core.tend():
        time.sleep(0.001)
    return answers, totals
