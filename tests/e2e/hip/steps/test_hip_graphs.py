"""Graphs of decode steps: replays are checked at load, and are not used where they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from rocmforge.backend.protocol import LoadOptions
from rocmforge.backend.step import StepOutput
from rocmforge.errors import BackendError
from rocmforge.models.lora import AdapterSpec
from rocmforge_hip.backend import create
from rocmforge_hip.load import loading
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.shapes import graph_sizes
from rocmforge_hip.run.trials import graph_check
from tests.backend.driving import GREEDY, Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_adapters import TinyAdapter, write_adapter
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.data.models.text.tiny_recurrent import larger_delta
from tests.e2e.hip.models.test_hip_models import FLOAT_TOLERANCE
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

LONG_PROMPT = PROMPT * 2
ALONE = replace(SMALL, max_sequences=1, graphs="auto")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(fitting(by_name("llama")), tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def checking(host: HostPlatform | None) -> HostPlatform:
    """The platform on which replays can be made wrong."""
    if host is None:
        pytest.skip("replays of a real device are what they are")
    return host


def load(stack: ExitStack, path: Path, options: LoadOptions) -> HipRunner:
    runner = load_file(create(), path, options)
    assert isinstance(runner, HipRunner)
    return stack.enter_context(closing(runner))


def answers(runner: HipRunner) -> list[float]:
    """Log-probabilities of tokens in consecutive decodes."""
    driver, found = Driver(runner), []
    driver.run(Chunk(tokens=PROMPT[:20], blocks=[3, 4]))
    for at, token in enumerate(PROMPT[20:26], 20):
        want = Want(target=at, num_logprobs=0)
        output = driver.run(Chunk(tokens=[token], start=at, blocks=[3, 4], wants=[want]))
        assert output.logprobs is not None
        found += output.logprobs.tolist()
    return found


def launches(runner: HipRunner, *wants: Want) -> int:
    """Launches of a decode step whose graph, if any, is there."""
    decodes = [Chunk(tokens=[7], start=at, blocks=[1], wants=wants or GREEDY) for at in range(2)]
    costs = [Driver(runner).run(chunk).cost for chunk in decodes]
    assert costs[1] is not None
    return costs[1].launches


def row_logprobs(output: StepOutput) -> list[float]:
    assert output.logprobs is not None
    return [float(value) for value in output.logprobs]


def last_operation(runner: HipRunner) -> int:
    """Of the longest graph for one sequence; without graphs, the runner launches its kernels."""
    outside, filter_and_draw = 1, 2  # the tokens; what a greedy step leaves out
    return launches(runner) - outside + filter_and_draw - 1


def test_replays_that_are_right_are_used(stack: ExitStack, model: Path) -> None:
    runner = load(stack, model, ALONE)
    assert runner.info.graphs == "checked"
    assert "6 of 6 checked in" in runner.info.notes[-1]
    first = Driver(runner).run(Chunk(tokens=[7], blocks=[1])).cost
    assert first is not None
    assert first.gap_ns == 0, "the check is no step"
    assert launches(runner) == 2


def test_graphs_may_be_left_out_or_used_unchecked(stack: ExitStack, model: Path) -> None:
    without, unchecked = (
        load(stack, model, replace(ALONE, graphs=graphs)) for graphs in ("off", "on")
    )
    assert (without.info.graphs, unchecked.info.graphs) == ("off", "unchecked")
    assert launches(without) > 5 * launches(unchecked)
    assert launches(unchecked, Want(num_logprobs=20)) == launches(unchecked) + 1, "behind the graph"
    assert answers(without) == answers(unchecked)


def test_draft_tokens_are_checked_in_a_replay_and_score_as_in_decodes(
    stack: ExitStack, model: Path
) -> None:
    runner = load(stack, model, replace(SMALL, max_batched_tokens=64, draft_tokens=8, graphs="on"))
    driver, block = Driver(runner), runner.info.block_size
    prompt, checked = PROMPT[: block - 3], PROMPT[block - 3 : block + 6]  # into the second block
    driver.run(Chunk(tokens=prompt, blocks=[3, 4]), Chunk(tokens=PROMPT[:20], blocks=[7, 8]))
    expected = []
    for at, token in enumerate(checked, len(prompt)):
        want = Want(target=token, num_logprobs=0)
        chunk = Chunk(tokens=[token], start=at, blocks=[3, 4], wants=[want])
        expected += row_logprobs(driver.run(chunk))
    wants = [Want(token=row, target=token, num_logprobs=0) for row, token in enumerate(checked)]
    together = Chunk(tokens=checked, start=len(prompt), blocks=[3, 4], wants=wants)
    alone = driver.run(together)
    other = Chunk(tokens=[7], start=20, blocks=[7, 8], wants=[Want(target=5, num_logprobs=0)])
    few = replace(together, tokens=checked[:3], wants=wants[:3])
    beside = driver.run(few, other)
    expected_beside = [*expected[:3], *row_logprobs(driver.run(other))]
    assert row_logprobs(alone) == pytest.approx(expected, abs=2 * FLOAT_TOLERANCE)
    assert row_logprobs(beside) == pytest.approx(expected_beside, abs=2 * FLOAT_TOLERANCE)
    for output in (driver.run(together), driver.run(few, other)):
        assert output.cost is not None
        assert output.cost.launches <= 5, "a replay, and what comes before and behind it"


def short_prompts(runner: HipRunner) -> tuple[list[float], list[int]]:
    """Log-probabilities behind short parts of prompts, alone and beside decodes, and launches."""
    driver, want = Driver(runner), Want(target=9, num_logprobs=0)

    def part(row: int, start: int, count: int) -> Chunk:
        tokens, blocks = LONG_PROMPT[start + row : start + row + count], range(row, 12, 4)
        return Chunk(tokens=tokens, start=start, blocks=blocks, wants=[want], state_slot=row)

    steps = [
        [part(0, 0, 14)],
        [part(0, 14, 11)],  # in the shape of the step before
        [part(1, 0, 9)],
        [part(0, 25, 1), part(2, 0, 10)],
        [part(2, 10, 12), part(0, 26, 1), part(1, 9, 1)],
        [part(2, 22, 21), part(1, 10, 1)],
        [part(1, 11, 33)],
        [part(0, 27, 1), part(3, 0, 9), part(1, 44, 1), part(2, 43, 1)],  # and one that is padding
    ]
    outputs = [driver.run(*step) for step in steps]
    costs = [output.cost for output in outputs]
    found = [logprob for output in outputs for logprob in row_logprobs(output)]
    return found, [cost.launches for cost in costs if cost is not None]


@pytest.mark.parametrize(
    ("name", "sized"),
    [("llama", fitting), ("qwen35", larger_delta)],
)
def test_short_prompts_are_replayed_and_give_the_same_bits(
    stack: ExitStack, tmp_path: Path, name: str, sized: Callable[[TinyModel], TinyModel]
) -> None:
    options = replace(SMALL, max_sequences=6, max_batched_tokens=64, kv_blocks=12)
    runner = load(stack, write_model(sized(by_name(name)), tmp_path), options)
    runner.pads_prompts = False
    expected, plain = short_prompts(runner)
    runner.pads_prompts = True
    short_prompts(runner)
    found, replayed = short_prompts(runner)
    assert found == expected
    assert max(replayed) <= 5 < min(plain), "the tokens, a replay, and what samples"


def test_longer_prompts_are_replayed_alone_and_give_the_same_bits(
    stack: ExitStack, tmp_path: Path
) -> None:
    model = fitting(by_name("llama"))
    model = replace(model, config=model.config | {"max_position_embeddings": 512})
    options = replace(SMALL, max_context=512, max_batched_tokens=256, kv_blocks=20)
    runner = load(stack, write_model(model, tmp_path), options)
    driver, want, found = Driver(runner), Want(target=9, num_logprobs=0), []
    for pads in (False, True, True):
        runner.pads_prompts = pads
        tokens = [5 + 7 * at % 50 for at in range(311)]
        first = driver.run(Chunk(tokens=tokens[:170], blocks=range(10), wants=[want]))
        then = driver.run(Chunk(tokens=tokens[170:], start=170, blocks=range(10), wants=[want]))
        assert first.cost is not None
        assert then.cost is not None
        found.append((row_logprobs(first), row_logprobs(then)))
        launches = first.cost.launches, then.cost.launches
    assert found[0] == found[1] == found[2]
    assert max(launches) <= 5


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_stale_replays_are_found_and_not_used(
    part: float,
    stack: ExitStack,
    model: Path,
    checking: HostPlatform,
    caplog: pytest.LogCaptureFixture,
) -> None:
    without = load(stack, model, replace(ALONE, graphs="off"))
    expected = answers(without)
    with checking.stale_replays(int(part * last_operation(without))):
        runner = load(stack, model, ALONE)
        assert runner.info.graphs == "failed"
        assert launches(runner) > 10
        assert answers(runner) == expected
    (warning,) = (record.getMessage() for record in caplog.records if "replays" in record.message)
    assert f"device 0 ({runner.info.device.name}, {runner.info.device.target})" in warning
    assert "of 1 sequences" in warning
    assert all(report in warning for report in graph_check.REPORTS)
    assert runner.info.notes[-1].split()[:3] == ["graphs", "not", "used:"]


def test_stale_replays_that_are_not_looked_for_give_wrong_answers(
    stack: ExitStack, model: Path, checking: HostPlatform
) -> None:
    without = load(stack, model, replace(ALONE, graphs="off"))
    expected = answers(without)
    with checking.stale_replays(last_operation(without) // 2):
        assert answers(load(stack, model, replace(ALONE, graphs="on"))) != expected


def test_a_fault_behind_the_last_operation_is_none(
    stack: ExitStack, model: Path, checking: HostPlatform
) -> None:
    without = load(stack, model, replace(ALONE, graphs="off"))
    with checking.stale_replays(last_operation(without) + 1):
        assert load(stack, model, ALONE).info.graphs == "checked"


def test_long_contexts_and_adapters_are_checked_too(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_check, "MOST_SECONDS", 1000.0)
    llama = by_name("llama")
    recipe = fitting(replace(llama, config=llama.config | {"max_position_embeddings": 512}))
    adapter = write_adapter(tmp_path / "a.gguf", recipe, TinyAdapter())
    options = replace(
        ALONE,
        kv_blocks=16,
        max_context=400,
        adapters=(AdapterSpec(name="a", path=str(adapter)),),
    )
    runner = load(stack, write_model(recipe, tmp_path), options)
    # Two lengths, with the adapter and without, four kinds of sampling; two prompts.
    assert "18 of 18 checked" in runner.info.notes[-1]


def test_the_check_ends_in_time_and_says_how_far_it_came(
    stack: ExitStack, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_check, "MOST_SECONDS", 0.0)
    runner = load(stack, model, ALONE)
    assert (runner.info.graphs, launches(runner)) == ("checked", 2)
    assert "1 of 6 checked" in runner.info.notes[-1]


def test_a_device_that_fails_in_the_check_keeps_nothing(
    model: Path, checking: HostPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runner: HipRunner, *_: object) -> NoReturn:
        launches(runner)  # there is a graph by then
        raise BackendError("hipGraphLaunch", "this device is broken")

    monkeypatch.setattr(loading, "check_graphs", fail)
    before = checking.live_bytes
    with pytest.raises(BackendError, match="is broken"):
        load_file(create(), model, ALONE)
    assert checking.live_bytes == before


@pytest.mark.parametrize("most", [1, 3, 64, 1024, 1500])
def test_the_largest_graph_has_room_for_every_sequence(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
