"""Who finds the prefixes of whom in the cache: nobody learns what other keys have sent."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec import structs

from rocmforge.engine.ipc.params import NO_KEY, SamplingParams, Share
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, request

PROMPT = [*range(40)]
CACHED = 36  # whole blocks of four, but for the last token's

ALICE, BOB = Share(key=1), Share(key=2)


def cached_tokens(bench: Bench, number: int, share: Share, salt: str, prompt: list[int]) -> int:
    sampling = SamplingParams(max_tokens=3, draft_model_tokens=2, cache_salt=salt)
    asked = structs.replace(request(number, prompt, sampling), share=share)
    result = bench.run(asked)[number]
    assert result.token_ids == continuation(prompt, 3)
    assert result.last is not None
    return result.last.cached_tokens


@pytest.mark.parametrize(
    ("first", "then", "is_shared"),
    [
        ((NO_KEY, ""), (NO_KEY, ""), True),
        ((ALICE, ""), (ALICE, ""), True),
        ((ALICE, ""), (Share(key=1, weight=3.0), ""), True),
        ((ALICE, "x"), (ALICE, "x"), True),
        ((NO_KEY, "x"), (NO_KEY, "x"), True),
        ((ALICE, ""), (BOB, ""), False),
        ((ALICE, "x"), (BOB, "x"), False),
        ((ALICE, "x"), (ALICE, "y"), False),
        ((ALICE, "x"), (ALICE, ""), False),
        ((NO_KEY, "x"), (NO_KEY, "y"), False),
    ],
)
def test_prefixes_are_shared_within_a_key_and_a_salt(
    first: tuple[Share, str], then: tuple[Share, str], is_shared: bool
) -> None:
    config = FakeConfig(block_size=4)
    bench = Bench(config, draft=config)
    numbers = count()
    assert cached_tokens(bench, next(numbers), *first, PROMPT) == 0
    assert cached_tokens(bench, next(numbers), *then, PROMPT) == (CACHED if is_shared else 0)


def test_a_guess_at_another_keys_prompt_finds_nothing_in_the_same_step_either() -> None:
    bench = Bench(FakeConfig(block_size=4))
    sampling = SamplingParams(max_tokens=3)
    shares = [ALICE, ALICE, BOB]
    asked = [
        structs.replace(request(number, PROMPT, sampling), share=share)
        for number, share in enumerate(shares)
    ]
    results = bench.run(*asked).values()
    assert [result.last.cached_tokens for result in results if result.last] == [0, CACHED, 0]
