"""Without --max-context a model gets its own context, or the largest that fits; how many fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.backend.optional import MemoryEstimate
from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.context import STEP, most_sequences, settle_context
from rocmforge.engine.ipc.messages import Ready
from rocmforge.engine.loading import load
from rocmforge.models.checkpoint import Checkpoint
from tests.support.engine.engine_client import config
from tests.support.engine.start import start_message
from tests.support.fakes.fake_backend import FakeBackend, FakeConfig, make_runner
from tests.support.models.any_model import any_model
from tests.unit.engine.helpers import options

TRAINED, LEAST = 262_144, 4096
BLOCK_TOKENS, BLOCK_BYTES, WEIGHTS = 16, 1 << 20, 10 << 30
OPTIONS = replace(options(max_sequences=8), max_context=TRAINED, least_context=LEAST)


def estimate(options: LoadOptions, free: int) -> MemoryEstimate:
    """A model whose step needs more memory with a longer context, as a real one's does."""
    return MemoryEstimate(
        device="a device",
        free=free,
        allowed=free,
        weights=WEIGHTS,
        activations=(100 << 20) + 256 * options.max_context,
        kv_block=BLOCK_BYTES,
        block_size=BLOCK_TOKENS,
        kv_dtype="f16",
        context=options.max_context,
    )


def needed(context: int) -> int:
    """The bytes that suffice for one sequence of a context."""
    whole = estimate(replace(OPTIONS, max_context=context), 0)
    return whole.weights + whole.activations + whole.kv_sequence


def settled(options: LoadOptions, free: int) -> int:
    found = settle_context(options, lambda changed: estimate(changed, free))
    assert found.least_context is None, "a backend finds nothing left to decide"
    return found.max_context


def test_a_context_that_fits_is_the_models_own() -> None:
    assert settled(OPTIONS, needed(TRAINED)) == TRAINED
    assert settled(OPTIONS, needed(TRAINED) - 1) < TRAINED


@pytest.mark.parametrize("fitting", [5000, 20_000, 100_000, 262_000])
def test_otherwise_it_is_the_largest_that_fits(fitting: int) -> None:
    free = needed(fitting)
    found = settled(OPTIONS, free)
    assert found % STEP == 0
    assert needed(found) <= free
    # Once refined, the guess may stay one step below what would just fit.
    assert found >= fitting - 2 * STEP


@pytest.mark.parametrize("free", [0, WEIGHTS, needed(LEAST) - 1])
def test_a_context_of_no_use_is_not_tried_but_left_to_be_refused(free: int) -> None:
    assert settled(OPTIONS, free) == LEAST


def test_what_was_asked_for_stays() -> None:
    assert settled(replace(OPTIONS, least_context=None), WEIGHTS) == TRAINED
    assert settled(replace(OPTIONS, kv_blocks=100), WEIGHTS) == TRAINED


class PlanningBackend(FakeBackend):
    """The fake backend on a device with room for 20,000 tokens."""

    def estimate(
        self, checkpoint: Checkpoint, options: LoadOptions, memory: int | None
    ) -> MemoryEstimate:
        return estimate(options, needed(20_000))


def create_planning() -> PlanningBackend:
    return PlanningBackend(FakeConfig())


def test_a_model_is_loaded_with_the_context_that_fits_and_says_so() -> None:
    start = start_message(
        backend=f"{__name__}:create_planning", options=OPTIONS, model=str(any_model())
    )
    loaded = load(start, lambda stage, share: None)
    context = loaded.runner.info.max_context
    assert LEAST < context <= 20_000
    note, *others = loaded.info.notes
    assert others == [*loaded.runner.info.notes]
    assert f"{context} tokens, as many as fit; the model was trained for {TRAINED}" in note


def test_one_that_fits_says_nothing() -> None:
    whole = replace(OPTIONS, max_context=16_384)
    start = start_message(
        backend=f"{__name__}:create_planning", options=whole, model=str(any_model())
    )
    loaded = load(start, lambda stage, share: None)
    assert loaded.runner.info.max_context == 16_384
    assert loaded.info.notes == loaded.runner.info.notes


def test_a_new_process_keeps_the_context_of_the_one_before() -> None:
    engine = AsyncEngine(replace(config(), options=OPTIONS))
    assert engine._supervisor._start_message().options == OPTIONS
    info = make_runner(FakeConfig(), 20_480, 8, 64).info
    engine._supervisor._ready = Ready(runner=info, is_fallback=False, fallback_reason="")
    again = engine._supervisor._start_message().options
    assert (again.max_context, again.least_context) == (info.max_context, None)


@given(
    st.integers(-50, 3000),
    st.integers(1, 90),
    st.integers(0, 40),
    st.integers(1, 600),
)
def test_as_many_sequences_as_fit_are_found(left: int, each: int, bend: int, most: int) -> None:
    def spare(count: int) -> int:
        return left - each * count - bend * (count // 7) ** 2

    found = most_sequences(spare, most)
    assert found == max((n for n in range(1, most + 1) if spare(n) >= 0), default=0)


def test_few_plans_are_made_to_find_them() -> None:
    asked: list[int] = []

    def spare(count: int) -> int:
        asked.append(count)
        return 21 * 1000 - 64 * count - count // 3

    assert most_sequences(spare, 512) == 326
    assert len(asked) <= 6
