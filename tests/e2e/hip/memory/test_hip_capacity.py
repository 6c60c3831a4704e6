"""As many sequences of full length run at once as the plan says, and not one more."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.capacity import Run, run_full
from rocmforge.engine.context import most_sequences
from rocmforge_hip.backend import create
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.models.hip import fitting
from tests.support.models.loading import estimate_file
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip

CONTEXT, STEP_TOKENS = 96, 256
PLANNED = 2


def test_as_many_run_as_are_planned_and_one_more_does_not(stack: ExitStack, tmp_path: Path) -> None:
    path = write_model(fitting(by_name("llama")), tmp_path)
    options = replace(SMALL, max_context=CONTEXT, max_batched_tokens=STEP_TOKENS, kv_blocks=None)
    needs = estimate_file(create(), path, replace(options, max_sequences=PLANNED), None)
    taken = needs.allowed - needs.left_for_kv + PLANNED * needs.kv_sequence
    options = replace(options, memory_utilization=(taken + needs.kv_block) / needs.free)

    def spare(count: int) -> int:
        found = estimate_file(create(), path, replace(options, max_sequences=count), None)
        return found.left_for_kv - count * found.kv_sequence

    def run(count: int) -> Run:
        runner = load_hip(stack, path, replace(options, max_sequences=count))
        return run_full(runner, STEP_TOKENS, count, decoded=40)

    assert most_sequences(spare, 64) == PLANNED
    full, more = run(PLANNED), run(PLANNED + 1)
    assert full.blocks == PLANNED * CONTEXT // needs.block_size
    assert (full.fits, more.fits) == (True, False)
    assert (full.ended, more.ended) == (PLANNED, PLANNED + 1)
