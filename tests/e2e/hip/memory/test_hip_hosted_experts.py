"""Models some of whose experts are in the host's memory alone: bit for bit as on the device."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.protocol import Runner
from rocmforge.errors import EngineError, OutOfMemory
from rocmforge_hip.device.driver import Driver as HipDriver
from rocmforge_hip.run.runner import HipRunner
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.e2e.hip.models.test_hip_models import PROMPTS, generate_and_count
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip

EIGHT = (*PROMPTS, PROMPTS[0][3:20], PROMPTS[0][:9], PROMPTS[2][5:])
MANY = replace(SMALL, max_sequences=8, kv_blocks=64)


@pytest.fixture
def checking(host: HostPlatform | None) -> HostPlatform:
    """The platform that sees what no event orders."""
    if host is None:
        pytest.skip("a real device does not say what was not ordered")
    return host


def _logprobs(driver: Driver) -> list[Any]:
    """Log-probabilities after a prompt and after tokens that follow it, in decode steps."""
    found, start = [], 0
    for tokens in ([5, 9, 2, 31, 7, 3], *([token] for token in range(10, 20))):
        chunk = Chunk(tokens=tokens, start=start, blocks=range(2), wants=[Want(num_logprobs=20)])
        start += len(tokens)
        output = driver.run(chunk)
        assert output.top_logprobs is not None
        found.append(output.top_logprobs[0])
    return found


def _finding(checking: HostPlatform, runner: Runner) -> str:
    """Has requests run into a planted mistake; returns what the platform says of it."""
    with pytest.raises(EngineError):
        generate_and_count(runner, EIGHT, options=MANY)
    found = checking.take_finding()
    with suppress(EngineError):
        runner.close()
    checking.take_finding()
    return found


@pytest.mark.parametrize(("name", "share"), [("qwen3moe", 0.5), ("gpt-oss", 0.5), ("glm4moe", 0)])
def test_gives_the_same_bits(
    name: str, share: float, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(fitting(by_name(name)), tmp_path)
    hosted = load_hip(stack, path, replace(SMALL, device_experts=share))
    # Where all are on the device, a shared one is one of them: a sum in another order.
    monkeypatch.setattr("rocmforge_hip.load.loading.join_shared", lambda weights: weights)
    whole = load_hip(stack, path)
    np.testing.assert_array_equal(_logprobs(Driver(hosted)), _logprobs(Driver(whole)))


def test_a_host_with_too_little_memory_is_refused(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(fitting(by_name("qwen3moe")), tmp_path)
    monkeypatch.setattr("rocmforge_hip.load.loading.host_memory", lambda: (1 << 30, 1000))
    with pytest.raises(OutOfMemory, match=r"2 of the 8 experts .* MiB more than can be had"):
        load_hip(stack, path, replace(SMALL, device_experts=0.25))


def test_experts_that_many_tokens_chose_are_fetched_first(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(fitting(by_name("qwen3moe")), tmp_path)
    every = [Want(token=row, num_logprobs=20) for row in range(24)]
    chunk = Chunk(tokens=range(40, 64), blocks=range(2), wants=every)
    hosted = Driver(load_hip(stack, path, replace(SMALL, device_experts=0.5)))
    plain = hosted.run(chunk)
    monkeypatch.setattr("rocmforge_hip.ops.experts.grouped_products._FETCHED_PAIRS", 1)
    fetched = hosted.run(chunk)
    assert plain.cost is not None
    assert fetched.cost is not None
    assert fetched.cost.launches - plain.cost.launches == 2 * 2, "two matrices of two layers"
    whole = Driver(load_hip(stack, path)).run(chunk)
    for output in (plain, fetched):
        np.testing.assert_array_equal(output.top_logprobs, whole.top_logprobs)


def test_the_last_layer_chooses_for_the_tokens_alone_whose_logits_are_read(
    stack: ExitStack, tmp_path: Path
) -> None:
    """The places of others hold what the step before wrote, which nobody may count."""
    model = fitting(by_name("qwen3moe"))
    path = write_model(model, tmp_path)
    driver = Driver(load_hip(stack, path, replace(SMALL, device_experts=0.5)))
    reads = []
    for rows in (range(24), (), (23,)):
        wants = [Want(token=row) for row in rows]
        output = driver.run(Chunk(tokens=range(40, 64), blocks=range(2), wants=wants))
        assert output.cost is not None
        reads.append(output.cost.expert_reads)
    every, none, one = reads
    assert one - none == model.config["num_experts_per_tok"]
    assert every - none == model.config["num_experts"], "24 tokens choose all of them"


def test_experts_move_while_eight_requests_with_drafts_run(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = write_model(fitting(by_name("qwen3moe")), tmp_path)
    hosted = load_hip(stack, path, replace(MANY, device_experts=0.5))
    assert isinstance(hosted, HipRunner)
    waits = hosted.driver.waits
    got, stats = generate_and_count(
        hosted, EIGHT, max_tokens=12, prompt_lookup_tokens=3, options=MANY
    )
    assert hosted.driver.waits - waits == stats.totals.steps, "no step waits for experts"
    whole = load_hip(stack, path, MANY)
    expected, others = generate_and_count(
        whole, EIGHT, max_tokens=12, prompt_lookup_tokens=3, options=MANY
    )
    assert [each.tokens for each in got] == [each.tokens for each in expected]
    assert stats.totals.drafted_tokens > 0
    assert stats.totals.expert_swaps > 0
    assert 0 < stats.totals.host_expert_reads < stats.totals.expert_reads
    assert others.totals.expert_reads == 0


def test_a_seat_that_is_given_away_too_early_is_found(
    checking: HostPlatform, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy does not wait for the step that may still read the expert before it."""
    path = write_model(fitting(by_name("qwen3moe")), tmp_path)
    runner = load_hip(stack, path, replace(MANY, device_experts=0.5))
    monkeypatch.setattr(HipDriver, "wait_for_event", lambda driver, stream, event: None)
    assert "no event orders the two" in _finding(checking, runner)


def test_a_table_that_is_not_changed_is_found(
    checking: HostPlatform, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expert that leaves is still read from its seat, to which another is copied."""
    path = write_model(fitting(by_name("qwen3moe")), tmp_path)
    runner = load_hip(stack, path, replace(MANY, device_experts=0.5))
    monkeypatch.setattr(
        "rocmforge_hip.run.expert_cache.ExpertCache._place_all", lambda *arguments: None
    )
    assert "no event orders the two" in _finding(checking, runner)
