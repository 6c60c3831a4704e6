"""A runner that fails on call k, for every k of a short run, in the process of the test."""

from __future__ import annotations

import pytest

from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.errors import BackendError
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, limits, request

PROMPTS = [[1, 2, 3], [4] * 30, [5, 6]]
STEPS = {1: 10, 2: 11}  # that an undisturbed run takes, by pipeline depth


def requests() -> list[GenerateRequest]:
    sampling = SamplingParams(max_tokens=5)
    return [request(i, prompt, sampling) for i, prompt in enumerate(PROMPTS)]


def make(depth: int, fail_submit: int | None = None, fail_collect: int | None = None) -> Bench:
    config = FakeConfig(
        pipeline_depth=depth, block_size=4, fail_submit=fail_submit, fail_collect=fail_collect
    )
    return Bench(config, limits(max_sequences=2, max_batched_tokens=16))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_undisturbed_run_takes_the_steps_that_are_planted_below(depth: int) -> None:
    bench = make(depth)
    bench.run(*requests())
    assert bench.stats.totals.steps == STEPS[depth]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("call", range(10))
@pytest.mark.parametrize("where", ["fail_submit", "fail_collect"])
def test_every_request_gets_an_error_and_every_block_comes_back(
    depth: int, call: int, where: str
) -> None:
    bench = make(depth, **{where: call})
    with pytest.raises(BackendError, match=f"planted at call {call}"):
        bench.run(*requests())
    fatal = bench.core.fail("the device is gone")
    bench.take(fatal.events)
    bench.core.check_integrity()
    assert not bench.core.has_work
    failed = 0
    for i, prompt in enumerate(PROMPTS):
        result = bench.results[i]
        assert result.last is not None
        assert result.token_ids == continuation(prompt, len(result.token_ids))
        if result.last.finish_reason is FinishReason.DIED:
            assert result.last.error == "the device is gone"
            failed += 1
    assert failed > 0
