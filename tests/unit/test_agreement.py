"""How `rocmforge verify` judges a runner against the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import SAMPLE, StepInput, StepOutput
from rocmforge.commands.agreement import (
    Agreement,
    Continuation,
    TopOne,
    compare,
    decode_speed,
    kl_divergence,
)
from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.gguf.synthetic import write_synthetic_model
from rocmforge_reference.backend import create
from rocmforge_reference.runner import ReferenceRunner
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

pytestmark = pytest.mark.slow

PROMPTS = ([1, 2, 3, 4, 5], [400, 30, 20])
TOKENS = 4
CONTEXT = 64


def known(probabilities: Mapping[int, float]) -> TokenLogprob:
    """Top_logprobs with these probabilities."""
    top = tuple((token, math.log(p)) for token, p in probabilities.items())
    return TokenLogprob(token_id=top[0][0], logprob=top[0][1], top=top)


def test_equal_distributions_do_not_diverge() -> None:
    one = known({1: 0.5, 2: 0.25})
    assert kl_divergence(one, one) == 0


def test_the_divergence_is_that_of_the_known_tokens_and_the_rest() -> None:
    wanted, got = known({1: 0.5, 2: 0.25}), known({1: 0.25, 2: 0.25})
    assert kl_divergence(wanted, got) == pytest.approx(
        0.5 * math.log(2) + 0.25 * math.log(0.25 / 0.5)
    )


def test_tokens_of_one_list_only_belong_to_the_rest() -> None:
    wanted, got = known({1: 0.5, 2: 0.25}), known({1: 0.5, 3: 0.25})
    assert kl_divergence(wanted, got) == 0


@pytest.mark.parametrize(("mean_kl", "passed"), [(0.0, True), (0.5, False), (math.nan, False)])
def test_too_large_a_divergence_fails(mean_kl: float, passed: bool) -> None:
    one = Agreement(way="x", top1=(TopOne("tokens", 1, 1),), mean_kl=mean_kl, wrong=())
    assert one.passed is passed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agreement") / "model.gguf"
    write_synthetic_model(path)
    return path


@pytest.fixture
def runners(model: Path) -> Iterator[tuple[ReferenceRunner, Runner]]:
    """The reference twice: one to be spoilt."""
    options = replace(SMALL, max_context=CONTEXT, max_batched_tokens=64)
    one, other = (load_file(create(), model, options) for _ in range(2))
    assert isinstance(one, ReferenceRunner)
    with closing(one), closing(other):
        yield one, other


def test_a_runner_agrees_with_its_like(runners: tuple[ReferenceRunner, Runner]) -> None:
    *forced, free = compare(*runners, PROMPTS, TOKENS)
    assert [one.way for one in forced] == [
        "prefill",
        "decode, token by token",
        "decode, batch of 4",
    ]
    prompt_places = TopOne("prompt tokens", 6, 6)  # none before the first token of each
    generated = TopOne("generated tokens", 8, 8)
    both = (prompt_places, generated)
    for one, top1 in zip(forced, (both, both, (generated,)), strict=True):
        assert isinstance(one, Agreement)
        assert one.passed
        assert one.top1 == top1
        assert one.mean_kl < 1e-9
    assert free == Continuation(way="greedy, batch of 4", same=(4, 4), length=4, wrong=())


def change_results(
    patch: pytest.MonkeyPatch,
    runner: ReferenceRunner,
    change: Callable[[StepInput, StepOutput], StepOutput],
) -> None:
    """Lets the runner answer steps otherwise; it has one in flight at most."""
    submit, collect = runner.submit, runner.collect
    steps: list[StepInput] = []

    def submit_noting(step: StepInput) -> None:
        steps.append(step)
        submit(step)

    patch.setattr(runner, "submit", submit_noting)
    patch.setattr(runner, "collect", lambda: change(steps[-1], collect()))


def swap_best_and_last(step: StepInput, output: StepOutput) -> StepOutput:
    """Another token than the reference's is the most probable, and is drawn."""
    if output.top_ids is None:  # nothing is wanted of this step
        return output
    swapped = output.top_ids.copy()
    swapped[:, [0, -1]] = swapped[:, [-1, 0]]
    return replace(output, top_ids=swapped, token_ids=swapped[:, 0])


def test_another_token_where_the_reference_is_sure_is_wrong(
    runners: tuple[ReferenceRunner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt, reference = runners
    change_results(monkeypatch, spoilt, swap_best_and_last)
    *forced, free = compare(spoilt, reference, PROMPTS, TOKENS)
    for one in forced:
        assert isinstance(one, Agreement)
        assert not one.passed
        assert [top1.same for top1 in one.top1] == [0] * len(one.top1)
        assert len(one.wrong) == sum(top1.places for top1 in one.top1)
    assert isinstance(free, Continuation)
    assert not free.passed
    assert free.same == (0, 0)
    assert len(free.wrong) == len(PROMPTS)


def test_every_generated_place_counts_behind_one_that_differs(
    runners: tuple[ReferenceRunner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wrong token costs one place of those that are decoded in a batch, and no more."""

    def spoil_the_first_output(step: StepInput, output: StepOutput) -> StepOutput:
        is_first = step.sampling.position == len(PROMPTS[0])
        is_first &= (step.sampling.seed == 0) & (step.sampling.target_ids == SAMPLE)
        if not is_first.any():
            return output
        swapped = swap_best_and_last(step, output)
        assert output.top_ids is not None
        assert swapped.top_ids is not None
        return replace(
            output,
            token_ids=np.where(is_first, swapped.token_ids, output.token_ids),
            top_ids=np.where(is_first[:, None], swapped.top_ids, output.top_ids),
        )

    spoilt, reference = runners
    change_results(monkeypatch, spoilt, spoil_the_first_output)
    *_, batch, free = compare(spoilt, reference, PROMPTS, TOKENS)
    assert isinstance(batch, Agreement)
    assert batch.top1 == (TopOne("generated tokens", 7, 8),)
    assert len(batch.wrong) == 1
    assert "prompt 0, output 0" in batch.wrong[0]
    assert isinstance(free, Continuation)
    assert free.same[0] == 0
    assert free.same[1] == TOKENS


def test_forced_decodes_have_prefills_beside_them(
    runners: tuple[ReferenceRunner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []

    def note(step: StepInput, output: StepOutput) -> StepOutput:
        shapes.append(tuple(np.diff(step.query_start).tolist()))
        return output

    candidate, reference = runners
    change_results(monkeypatch, candidate, note)
    results = compare(candidate, reference, [range(1, 30)] * 4, 12)
    for _ in range(2):
        next(results)
    shapes.clear()
    next(results)
    assert any(1 in shape and max(shape) > 1 for shape in shapes)
    assert (1, 1, 1, 1) in shapes


def test_answers_may_fill_the_context_but_for_a_token(
    runners: tuple[ReferenceRunner, Runner],
) -> None:
    length = CONTEXT - max(map(len, PROMPTS)) - 1
    *_, free = compare(*runners, PROMPTS, length)
    assert isinstance(free, Continuation)
    assert free.same == (length, length)
    assert decode_speed(runners[0], PROMPTS[0], length) > 0
