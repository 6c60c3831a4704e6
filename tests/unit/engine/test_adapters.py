"""Sequences with different adapters in one engine."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from rocmforge.engine.ipc.params import SamplingParams, Share
from rocmforge.engine.schedule.batch import build_step
from rocmforge.engine.schedule.step_builder import StepBuilder
from rocmforge.engine.sequence.block_keys import root_key
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, limits, request
from tests.unit.engine.schedule.test_batch import sequence

PROMPT = [*range(40)]


def with_adapter(adapter: int) -> SamplingParams:
    return SamplingParams(max_tokens=3, temperature=0.0, adapter=adapter)


def test_a_step_names_the_adapter_of_each_sequence() -> None:
    builder = StepBuilder(limits())
    for block, adapter in enumerate((1, -1, 0)):
        builder.add(sequence([1, 2, 3], [block], with_adapter(adapter)), 3)
    step = build_step(0, builder.chunks, block_size=4)
    assert step.adapters.dtype == np.int32
    assert step.adapters.tolist() == [1, -1, 0]
    assert step.token_adapters.tolist() == [1, 1, 1, -1, -1, -1, 0, 0, 0]


def test_a_step_without_adapters_names_none() -> None:
    builder = StepBuilder(limits())
    builder.add(sequence([1, 2, 3], [0]), 3)
    step = build_step(0, builder.chunks, block_size=4)
    assert len(step.adapters) == len(step.token_adapters) == 0


def test_one_prompt_under_two_adapters_shares_no_blocks() -> None:
    """The fake runner refuses to read what was stored under another adapter."""
    bench = Bench(FakeConfig(block_size=4))
    for number, adapter in enumerate((0, 1, -1)):
        result = bench.run(request(number, PROMPT, with_adapter(adapter)))[number]
        assert result.token_ids == continuation(PROMPT, 3, adapter=adapter)
        assert result.last is not None
        assert result.last.cached_tokens == 0


def test_one_prompt_under_one_adapter_is_computed_once() -> None:
    bench = Bench(FakeConfig(block_size=4))
    for number in range(2):
        result = bench.run(request(number, PROMPT, with_adapter(1)))[number]
        assert result.token_ids == continuation(PROMPT, 3, adapter=1)
        assert result.last is not None
        assert result.last.cached_tokens == 36 * number


def test_roots_of_prefixes_differ() -> None:
    roots = {
        root_key(adapter, Share(key=api_key, tenant=tenant), salt)
        for adapter in (-1, 0, 1, 255, 256)
        for api_key, tenant in (
            (0, b""),
            (1, b""),
            (255, b""),
            (256, b""),
            (1, b"a" * 32),
            (1, b"b" * 32),
        )
        for salt in ("", "a", "\0a")
    }
    assert len(roots) == 5 * 6 * 3


def test_a_resumed_request_keeps_its_adapter() -> None:
    whole = request(0, PROMPT, with_adapter(0))
    rest = structs.replace(whole, generated_ids=tuple(continuation(PROMPT, 1, adapter=0)))
    result = Bench(FakeConfig(block_size=4)).run(rest)[0]
    assert result.token_ids == continuation(PROMPT, 3, adapter=0)[1:]
