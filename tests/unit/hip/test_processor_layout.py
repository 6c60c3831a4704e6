"""Where the arrays of logits processors lie, and in which order they are launched."""

from __future__ import annotations

import numpy as np

from rocmforge.backend.step import ProcessorBatch
from rocmforge_hip.ops.step.layout import StepLayout
from rocmforge_hip.ops.step.needs import ListSizes
from rocmforge_hip.ops.step.processor_arrays import UseSizes, launches
from rocmforge_hip.ops.step.shape import StepShape

SHAPE = StepShape(tokens=4, sequences=4, rows=4, blocks=8, decodes=4, prefills=0, longest_prefill=0)


def test_masks_stay_the_last_array_since_they_may_come_later() -> None:
    uses = UseSizes(uses=3, numbers=4, words=2, history=100)
    layout = StepLayout(SHAPE, ListSizes(seen=5, biases=5, mask_words=4, uses=uses))
    assert layout.masks.stop == layout.nbytes
    assert layout.masks.elements == 16


def batch(*uses: tuple[int, str]) -> ProcessorBatch:
    """Uses as pairs of row and name."""
    count = len(uses)
    return ProcessorBatch(
        names=tuple(name for _, name in uses),
        rows=np.array([row for row, _ in uses], np.int32),
        numbers=np.zeros((count, 0), np.float32),
        token_sets=np.zeros((count, 0), np.uint32),
        windows=np.zeros(count, np.int32),
        uniforms=np.zeros(count, np.float32),
        history_offsets=np.zeros(10, np.int32),
        history=np.zeros(0, np.int32),
        prompt_lengths=np.zeros(9, np.int32),
    )


def test_processors_of_a_row_are_launched_in_its_order_and_rows_together() -> None:
    uses = batch((0, "dry"), (0, "xtc"), (2, "xtc"), (2, "dry"), (5, "dry"))
    found = [(name, indices.tolist()) for name, indices in launches(uses)]
    assert found == [("dry", [0, 4]), ("xtc", [2]), ("dry", [3]), ("xtc", [1])]
