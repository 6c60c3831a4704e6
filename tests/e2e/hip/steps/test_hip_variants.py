"""Variants of decode steps: all give the same bits, and a load chooses the fastest."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rocmforge.backend.protocol import LoadOptions
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.load import loading
from rocmforge_hip.ops.step.variants import VARIANTS
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.trials import variants
from rocmforge_hip.run.variant_choice import StepVariants
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.data.models.text.tiny_recurrent import larger_delta
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL
from tests.support.models.runners import bits, load_hip
from tests.support.models.state_models import larger, write_states

pytestmark = pytest.mark.usefixtures("short_splits")

AUTO = replace(SMALL, max_sequences=2, decode_variant="auto")
WANTS = (Want(num_logprobs=0),)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(fitting(by_name("llama")), tmp_path_factory.mktemp("variants"))


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Speed means nothing here, but is measured all the same."""
    monkeypatch.setattr(loading, "is_measured", lambda target: True)
    monkeypatch.setattr(variants, "MOST_SECONDS", 1000.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return monkeypatch


def decodes(runner: HipRunner) -> dict[str, list[tuple[bytes, bytes]]]:
    """Results of each variant in steps of a sequence of one split and one of several.

    Prompts have no variants. They are computed once, or anew where decodes change states.
    """
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    driver = Driver(runner)
    for variant in VARIANTS:
        if not found or runner.info.state_slots:
            for first in range(0, 39, 13):
                tokens = PROMPT[first : first + 13]
                driver.run(Chunk(tokens=tokens, start=first, blocks=[3, 1], wants=()))
            driver.run(Chunk(tokens=PROMPT[:9], blocks=[2], wants=()))
        runner.variants = StepVariants.always(variant)
        found[variant] = turns(driver)
    return found


def turns(driver: Driver) -> list[tuple[bytes, bytes]]:
    found = []
    for turn in range(3):
        both = [
            Chunk(tokens=[5 + turn], start=start + turn, blocks=blocks, wants=WANTS)
            for start, blocks in ((39, [3, 1]), (9, [2]))
        ]
        found.append(bits(driver.run(*both)))
    return found


def launches(runner: HipRunner) -> int:
    cost = Driver(runner).run(Chunk(tokens=[7], blocks=[1])).cost
    assert cost is not None
    return cost.launches


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [
        ("llama", "f16"),
        ("llama", "int8"),
        ("qwen3", "f16"),
        ("gemma3", "f16"),
        ("hunyuan-moe", "f16"),
    ],
)
def test_variants_give_the_same_bits(
    stack: ExitStack, tmp_path: Path, name: str, kv_dtype: Any
) -> None:
    path = write_model(fitting(by_name(name)), tmp_path)
    runner = load_hip(stack, path, replace(AUTO, kv_dtype=kv_dtype))
    plain, *others = decodes(runner).values()
    assert others == [plain] * len(others)


@pytest.mark.parametrize("name", ["qwen35", "granitehybrid-dense", "nemotron_h", "lfm2"])
def test_variants_give_the_same_bits_with_states(
    stack: ExitStack, tmp_path: Path, name: str
) -> None:
    path = write_states(larger(by_name(name)), tmp_path, "q8_0")
    runner = load_hip(stack, path, replace(AUTO, activation_bits="8"))
    plain, *others = decodes(runner).values()
    assert others == [plain] * len(others)


def test_few_launches_are_fewer(stack: ExitStack, model: Path) -> None:
    counts = {
        name: launches(load_hip(stack, model, replace(SMALL, graphs="off", decode_variant=name)))
        for name in ("plain", "fused")
    }
    layers = by_name("llama").config["num_hidden_layers"]
    assert counts["plain"] - counts["fused"] == 2 * layers, "rope and merge of each layer"


def test_a_key_is_stored_before_another_sequence_sees_it(stack: ExitStack, model: Path) -> None:
    runner, found = load_hip(stack, model), []
    for variant, blocks in (("plain", [1, 2]), ("fused", [3, 4])):
        runner.variants = StepVariants.always(variant)
        driver = Driver(runner)
        driver.run(Chunk(tokens=PROMPT[:15], blocks=blocks))
        driver.run(Chunk(tokens=PROMPT[15:31], start=15, blocks=blocks))
        # The first sequence fills the block that the second begins with.
        first, second = (
            Chunk(tokens=PROMPT[at : at + 1], start=at, blocks=blocks, wants=WANTS)
            for at in (31, 32)
        )
        found.append(bits(driver.run(first, second)))
    assert found[0] == found[1]


def test_the_fastest_is_measured_once_and_kept(
    stack: ExitStack, model: Path, measuring: pytest.MonkeyPatch
) -> None:
    first = load_hip(stack, model, AUTO)
    note = first.info.notes[-1]
    assert note.startswith("decode steps")
    assert "measured in" in note
    assert {(choice.sequences, choice.name in VARIANTS) for choice in first.variants.choices} == {
        (1, True),
        (2, True),
    }
    measuring.delattr(variants, "TrialSteps")  # it could not be measured again
    second = load_hip(stack, model, AUTO)
    assert second.variants == first.variants
    assert "measured at an earlier load" in second.info.notes[-1]


def test_states_are_the_same_in_each_variant_that_is_measured(
    stack: ExitStack, measuring: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_model(larger_delta(by_name("qwen35")), tmp_path)
    note = load_hip(stack, path, replace(AUTO, max_sequences=1)).info.notes[-1]
    assert "measured in" in note


def test_steps_that_a_late_host_made_longer_do_not_decide(
    stack: ExitStack, model: Path, measuring: pytest.MonkeyPatch
) -> None:
    submitted, steps = deque[str](), count()
    submit, collect = HipRunner.submit, HipRunner.collect

    def submit_named(self: HipRunner, step: StepInput) -> None:
        submitted.append(self.variants.choices[0].name)
        submit(self, step)

    def collect_late(self: HipRunner) -> StepOutput:
        took = 500 if submitted.popleft() == "fewest" else 600
        return replace(collect(self), device_ns=took if next(steps) % 4 == 0 else 700)

    measuring.setattr(HipRunner, "submit", submit_named)
    measuring.setattr(HipRunner, "collect", collect_late)
    runner = load_hip(stack, model, AUTO)
    assert {choice.name for choice in runner.variants.choices} == {"fewest"}


def test_measuring_ends_in_time(
    stack: ExitStack, model: Path, measuring: pytest.MonkeyPatch
) -> None:
    measuring.setattr(variants, "MOST_SECONDS", 0.0)
    runner = load_hip(stack, model, replace(AUTO, max_sequences=4))
    assert [choice.sequences for choice in runner.variants.choices] == [1, 4, 2]


def test_a_variant_with_other_results_is_not_used(
    stack: ExitStack,
    model: Path,
    measuring: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    real = Kernel.launch

    def launch(self: Kernel[...], grid: Any, block: int, **arguments: Any) -> None:
        if arguments.get("new_q") is not None:
            arguments["scale"] *= 1.5
        real(self, grid, block, **arguments)

    measuring.setattr(Kernel, "launch", launch)
    runner = load_hip(stack, model, AUTO)
    assert runner.variants == StepVariants.always("plain")
    (warning,) = (r.getMessage() for r in caplog.records if "Fused kernels" in r.message)
    assert f"device 0 ({runner.info.device.name}, {runner.info.device.target})" in warning
    assert not list((tmp_path / "cache/rocmforge").rglob("*.json")), "nothing is kept"


@pytest.mark.parametrize("variant", ["plain", "fused"])
def test_a_setting_decides_without_measurement(
    stack: ExitStack, model: Path, measuring: pytest.MonkeyPatch, variant: Any
) -> None:
    measuring.delattr(variants, "TrialSteps")
    runner = load_hip(stack, model, replace(AUTO, decode_variant=variant))
    assert runner.variants == StepVariants.always(variant)
    assert runner.info.notes[-1].endswith("as it was set")


def test_the_cpu_is_not_measured(stack: ExitStack, model: Path, host: object) -> None:
    if host is None:
        pytest.skip("this is a GPU")
    options: LoadOptions = AUTO
    runner = load_hip(stack, model, options)
    assert runner.variants == StepVariants.always("plain")
    assert "not measured" in runner.info.notes[-1]
