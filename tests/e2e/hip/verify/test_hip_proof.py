"""Answers of the HIP backend, verified as a server does it: right ones, and a layer that errs."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rocmforge.backend.protocol import Backend
from rocmforge.cli import main
from rocmforge.engine.ipc.messages import RecordSteps
from rocmforge.engine.ipc.params import SamplingParams, TokenLogprob
from rocmforge.engine.ipc.recorded import ROW_BYTES
from rocmforge.engine.proof.bounds import bounds_for
from rocmforge.engine.proof.messages import Begin, BundlePolicy, Checked, Sample
from rocmforge.engine.proof.process import Checker, load_reference
from rocmforge_hip.backend import create as create_hip
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.core import make_core, reports, submits
from tests.support.engine.recording import rows_of
from tests.support.fakes.erring_backend import create_hip_third, spoil_layer
from tests.support.models.hip import fitting, quantized, write_quantized
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

pytestmark = pytest.mark.slow

TOKENS = 30
PROMPTS = (PROMPT[:9], PROMPT[5:20], PROMPT[:30], PROMPT[11:14])


def served(
    stack: ExitStack, model: Path, backend: Backend | None = None, **options: Any
) -> tuple[Begin, list[Sample]]:
    """What a server would hand to its verifier: 120 tokens of four answers."""
    chosen = replace(SMALL, **options)
    runner = stack.enter_context(closing(load_file(backend or create_hip(), model, chosen)))
    tokens = [list(prompt) for prompt in PROMPTS]
    places: list[list[TokenLogprob]] = [[] for _ in PROMPTS]
    requests = [
        (prompt, SamplingParams(max_tokens=TOKENS, num_logprobs=20, seed=seed))
        for seed, prompt in enumerate(PROMPTS)
    ]
    for report in reports(make_core(runner, chosen), requests):
        for event in report.events:
            tokens[event.request_id] += event.token_ids
            places[event.request_id] += event.logprobs or ()
    begin = Begin(
        model=str(model),
        identity=None,
        runner=runner.info,
        options=chosen,
        bounds=bounds_for(runner.info, None),
        bundles=None,
        log_level="WARNING",
        log_format="text",
    )
    return begin, [
        Sample(
            number=number,
            tokens=tuple(tokens[number]),
            first=len(PROMPTS[number]),
            rows=rows_of(places[number]),
            adapter=-1,
        )
        for number in range(len(PROMPTS))
    ]


def verified(begin: Begin, samples: list[Sample], wrong_layer: int | None = None) -> Checked:
    """The last verdict; the error is planted in the reference, which is as far from the device."""
    exact, rounding = load_reference(begin)
    with closing(exact), closing(rounding):
        if wrong_layer is not None:
            spoil_layer(exact, wrong_layer)
        checker = Checker(begin, exact, rounding)
        return [checker.check(sample) for sample in samples][-1]


def test_halves_raise_no_alarm_and_one_percent_in_any_layer_does(
    stack: ExitStack, tmp_path: Path
) -> None:
    begin, samples = served(stack, write_model(fitting(by_name("llama")), tmp_path))
    right = verified(begin, samples)
    assert right.alarm is None
    assert right.error == pytest.approx(right.expected, rel=0.5), "rounding explains it"
    for layer in (0, -1):
        assert "times what rounding" in str(verified(begin, samples, layer).alarm)


def test_a_recorded_step_costs_one_launch_for_one_row_as_for_all(
    stack: ExitStack, tmp_path: Path
) -> None:
    runner = stack.enter_context(
        closing(load_file(create_hip(), write_model(fitting(by_name("llama")), tmp_path), SMALL))
    )
    requests = [(prompt, SamplingParams(max_tokens=12)) for prompt in PROMPTS]

    def launches(*recorded: int) -> tuple[int, int, int]:
        core, rows = make_core(runner, SMALL), list[int]()
        report = core.step([*submits(requests), RecordSteps(requests=recorded, until=8)])
        while True:
            sizes = [len(event.recorded) // ROW_BYTES for event in report.events]
            rows.append(sum(sizes))
            if not core.has_work:
                return report.stats.totals.launches, sum(map(bool, rows)), sum(rows)
            report = core.step()

    launches()  # captures the graphs
    plain, *nothing = launches()
    assert nothing == [0, 0]
    for recorded in ((3,), (0, 1, 2, 3)):
        count, steps, rows = launches(*recorded)
        assert 5 <= steps <= 8
        assert steps == 8 or len(recorded) == 1
        assert rows > 2 * steps or len(recorded) == 1
        assert count == plain + steps


def test_int8_has_the_error_that_rounding_to_int8_explains(
    stack: ExitStack, tmp_path: Path
) -> None:
    model = write_quantized(quantized(by_name("llama"), "q4_k"), "q4_k", tmp_path)
    begin, samples = served(stack, model, kv_dtype="int8", activation_bits="8")
    right = verified(begin, samples)
    assert right.alarm is None
    assert right.error == pytest.approx(right.expected, rel=0.3)
    runner = replace(begin.runner, kv_dtype="f16", activation_bits=16)
    as_if_finer = verified(structs.replace(begin, runner=runner), samples)
    assert as_if_finer.error > 5 * as_if_finer.expected


def test_an_int8_cache_holds_what_that_of_the_reference_holds(
    stack: ExitStack, tmp_path: Path
) -> None:
    model = write_model(fitting(by_name("llama")), tmp_path)
    begin, samples = served(stack, model, kv_dtype="int8", activation_bits="16")
    right = verified(begin, samples)
    assert right.error == pytest.approx(right.expected, rel=0.3)


def test_a_replay_names_the_layer_of_the_device_that_is_wrong(
    stack: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = by_name("llama")
    tiny = replace(tiny, config=tiny.config | {"num_hidden_layers": 4})
    model = write_model(fitting(tiny), tmp_path)
    begin, samples = served(stack, model, create_hip_third())
    policy = BundlePolicy(folder=str(tmp_path / "bundles"), keeps_tokens=True)
    assert verified(structs.replace(begin, bundles=policy), samples).alarm is not None
    (bundle,) = (tmp_path / "bundles").iterdir()
    erring = "tests.support.fakes.erring_backend:create_hip_third"
    assert main(["verify", "--replay", str(bundle), "--layers", "--backend", erring]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert ["WRONG" in line for line in lines if line.startswith("first ")][:4] == [
        *(False, False),
        *(True, True),
    ]
    assert "first wrong layer            2, counted from 0" in lines
    assert main(["verify", "--replay", str(bundle), "--backend", "hip"]) == 0
