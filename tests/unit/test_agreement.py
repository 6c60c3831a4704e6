"""How `rocmforge verify` judges a runner against the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.backend.protocol import LoadOptions, Runner, StepOutput
from rocmforge.commands.agreement import Agreement, compare, kl_divergence
from rocmforge.commands.synthetic import write_synthetic_model
from rocmforge.engine.params import TokenLogprob
from rocmforge_reference.backend import create
from rocmforge_reference.runner import ReferenceRunner

PROMPTS = ([1, 2, 3, 4, 5], [400, 30, 20])
TOKENS = 4


def known(probabilities: Mapping[int, float]) -> TokenLogprob:
    """Alternatives with these probabilities."""
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
    one = Agreement(way="x", tokens=1, top1=1.0, mean_kl=mean_kl, wrong=())
    assert one.passed is passed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agreement") / "model.gguf"
    write_synthetic_model(path)
    return path


@pytest.fixture
def runners(model: Path) -> Iterator[tuple[ReferenceRunner, Runner]]:
    """The reference twice: one to be spoilt."""
    options = LoadOptions(
        device=None,
        max_context=64,
        max_sequences=4,
        max_batched_tokens=64,
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.9,
    )
    one, other = (create().load(model, options, lambda *_: None) for _ in range(2))
    assert isinstance(one, ReferenceRunner)
    with closing(one), closing(other):
        yield one, other


def test_a_runner_agrees_with_its_like(runners: tuple[ReferenceRunner, Runner]) -> None:
    found = list(compare(*runners, PROMPTS, TOKENS))
    assert [one.way for one in found] == ["prefill", "decode, token by token", "greedy, batch of 4"]
    assert all(one.passed and one.top1 == 1 and one.mean_kl < 1e-9 for one in found)


def test_another_token_where_the_reference_is_sure_is_wrong(
    runners: tuple[ReferenceRunner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt, reference = runners
    collect = spoilt.collect

    def swap_best_and_last() -> StepOutput:
        output = collect()
        if output.top_ids is None:
            return output
        swapped = output.top_ids.copy()
        swapped[:, [0, -1]] = swapped[:, [-1, 0]]
        return replace(output, top_ids=swapped)

    monkeypatch.setattr(spoilt, "collect", swap_best_and_last)
    for one in compare(spoilt, reference, PROMPTS, TOKENS):
        assert one.top1 == 0
        assert not one.passed
        assert len(one.wrong) == one.tokens
