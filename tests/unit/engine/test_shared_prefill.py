"""Several answers to one prompt cost one prefill, though they are asked for at once."""

from __future__ import annotations

import pytest

from rocmforge.engine.ipc.params import SamplingParams
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, limits, request

BLOCK = 16
PROMPT = list(range(100))
REST = len(PROMPT) % BLOCK  # does not fill a block, so that each computes it


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [512, 100, 40])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_full_blocks_of_a_prompt_are_computed_once(n: int, budget: int, depth: int) -> None:
    bench = Bench(FakeConfig(pipeline_depth=depth), limits(max_batched_tokens=budget))
    choices = [request(seed, PROMPT, SamplingParams(max_tokens=5, seed=seed)) for seed in range(n)]
    results = bench.run(*choices)
    assert bench.stats.totals.prefill_tokens == len(PROMPT) + (n - 1) * REST
    assert bench.stats.totals.prefix_hit_tokens == (n - 1) * (len(PROMPT) - REST)
    for seed, result in results.items():
        assert result.token_ids == continuation(PROMPT, 5, seed=seed)


def test_choices_hold_the_blocks_of_their_prompt_together() -> None:
    bench = Bench(FakeConfig(), limits(max_batched_tokens=512))
    bench.submit(*[request(i, PROMPT, SamplingParams(max_tokens=5, seed=i)) for i in range(4)])
    assert bench.stats.blocks_used == len(PROMPT) // BLOCK + 4
    bench.finish()


def test_a_prompt_that_fills_its_blocks_leaves_one_of_them_to_each() -> None:
    """The last token is always computed, and a block is computed as a whole."""
    bench = Bench(FakeConfig(), limits(max_batched_tokens=512))
    prompt = PROMPT[: 4 * BLOCK]
    bench.run(*[request(i, prompt, SamplingParams(max_tokens=2, seed=i)) for i in range(3)])
    assert bench.stats.totals.prefill_tokens == 4 * BLOCK + 2 * BLOCK


def test_prompts_that_only_begin_alike_share_what_is_alike() -> None:
    bench = Bench(FakeConfig(), limits(max_batched_tokens=512))
    other = [*PROMPT[: 3 * BLOCK], *reversed(PROMPT)]
    sampling = SamplingParams(max_tokens=3)
    results = bench.run(request(0, PROMPT, sampling), request(1, other, sampling))
    assert bench.stats.totals.prefix_hit_tokens == 3 * BLOCK
    assert results[0].token_ids == continuation(PROMPT, 3)
    assert results[1].token_ids == continuation(other, 3)
