"""A predictor on a device whose times are known: it may gain, and must not lose more than trying.

The host needs time for each step, too. While two steps are in flight, that is hidden; a step that
checks draft tokens waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from tests.support.fakes.virtual_device import VirtualClock, VirtualDevice
from tests.unit.engine.helpers import limits, request

DRAFTS = 5
TRIED = 0.95
"""What is left of the speed where draft tokens never pay."""


@dataclass(frozen=True)
class Model:
    """How long steps take, in microseconds."""

    of_tokens: Mapping[int, float]  # between these, a straight line
    guess: float
    host: float

    def law(self, step: StepInput) -> float:
        """Seconds of a step."""
        if step.predicts:
            return self.guess * 1e-6
        sizes = list(self.of_tokens)
        return float(np.interp(step.num_tokens, sizes, list(self.of_tokens.values()))) * 1e-6


# Qwen3.5-35B-A3B on an H200, from what was measured of 1, 8 and 32 streams; and one of 0.8B, whose
# steps take no longer than the host does.
LARGE = Model({1: 1910, 8: 4100, 32: 8060, 64: 12000}, guess=300, host=300)
SMALL = Model({1: 500, 8: 600, 32: 1000, 64: 1500}, guess=100, host=600)


class Guessing(VirtualDevice):
    """A device whose predictor guesses right with a probability; None: it has no predictor."""

    def __init__(self, model: Model, clock: VirtualClock, right: float | None, slots: int) -> None:
        super().__init__(model.law, clock)
        self.info = replace(
            self.info, predicts=right is not None, state_slots=slots, state_bytes=slots
        )
        self._right = 0.0 if right is None else right
        self._random = np.random.default_rng(1)

    def collect(self) -> StepOutput:
        """Waits for the oldest step."""
        step, *_ = self._queue[0]
        output = super().collect()
        if not step.predicts:
            return output
        is_wrong = self._random.random(len(output.token_ids)) >= self._right
        return replace(output, token_ids=is_wrong.astype(np.int32))


def seconds(model: Model, streams: int, right: float | None) -> float:
    """How long answers of 384 tokens take; states of four sequences have room for drafts."""
    clock = VirtualClock()
    slots = 0 if right is None else 8 + 4 * DRAFTS
    core = EngineCore(Guessing(model, clock, right, slots), limits(), clock)
    drafts = 0 if right is None else DRAFTS
    sampling = SamplingParams(max_tokens=384, ignore_eos=True, draft_model_tokens=drafts)
    coming: list[GenerateRequest] = [request(n, [n + 2, 5], sampling) for n in range(streams)]
    while coming or core.has_work:
        report = core.step(coming)
        coming = []
        assert all(event.error is None for event in report.events)
        clock.now_ns += round(1000 * model.host)
    core.check_integrity()
    return clock.now_ns / 1e9


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize(
    ("model", "rates"),
    [(LARGE, {0.6: TRIED, 1.0: 1.5}), (SMALL, {0.3: TRIED, 0.6: TRIED, 0.8: TRIED, 1.0: 1.05})],
    ids=["large", "small"],
)
def test_a_predictor_never_loses_more_than_it_takes_to_try_it(
    model: Model, rates: dict[float, float], streams: int
) -> None:
    without = seconds(model, streams, None)
    gains = {right: without / seconds(model, streams, right) for right in rates}
    assert all(gains[right] >= least for right, least in rates.items()), gains
