"""Models with states against Transformers, with prompts of any length, cut and batched anyhow."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import Backend
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.backend.conftest import DEFAULTS, Load
from tests.backend.driving import Chunk, Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name, goldens
from tests.data.models.text.tiny_recurrent import FAR_PROMPT, LENGTHS, LONG_PROMPT, RECURRENT_MODELS
from tests.support.engine.conversations import talk
from tests.support.models.loading import load_file

TOLERANCE = 3e-5
"""Of a log-probability, relative to the spread of the logits (a few units)."""
LONG = {"max_context": 1024, "max_batched_tokens": 1024, "kv_blocks": 64}
BLOCKS = [*range(44)]
NAMES = [model.name for model in RECURRENT_MODELS]


def ends(driver: Driver, cuts: list[int], slot: int = 0) -> Float32Array:
    """Log-probabilities after the last token of a prompt that is computed up to each cut."""
    for start, end in pairwise([0, *cuts]):
        tokens = LONG_PROMPT[start:end]
        chunk = Chunk(tokens=tokens, start=start, blocks=BLOCKS, state_slot=slot)
        found = driver.logprobs(chunk, [end - start - 1])
    last: Float32Array = found[0]
    return last


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_any_length_say_what_they_say_in_transformers(name: str, load: Load) -> None:
    driver = load(name, **LONG)
    for length, logits in zip(LENGTHS, goldens(name)["ends"], strict=True):
        expected = np.array(logits) - np.log(np.exp(logits).sum())
        found = ends(driver, [length])
        assert np.abs(found - expected).max() / np.std(logits) < TOLERANCE, length
        assert found.argmax() == expected.argmax()


@pytest.mark.parametrize("name", NAMES)
def test_five_thousand_tokens_say_what_they_say_in_transformers(
    name: str, load: Load, tmp_path: Path
) -> None:
    """In steps of 1,000, which begin and end within blocks and chunks."""
    recipe = by_name(name)
    longer = {"max_position_embeddings": 8192}
    path = write_model(replace(recipe, config=recipe.config | longer), tmp_path)
    driver = load(path, max_context=8192, max_batched_tokens=1024, kv_blocks=320)
    for start in range(0, len(FAR_PROMPT), 1000):
        tokens = FAR_PROMPT[start : start + 1000]
        found = driver.logprobs(Chunk(tokens=tokens, start=start, blocks=range(320)), [999])[0]
    logits = goldens(name)["far"]
    expected = np.array(logits) - np.log(np.exp(logits).sum())
    assert np.abs(found - expected).max() / np.std(logits) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@given(cuts=st.sets(st.integers(1, 129), max_size=8))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_prompt_may_be_cut_anywhere(name: str, cuts: set[int], load: Load) -> None:
    driver = load(name, **LONG)
    found = ends(driver, sorted(cuts | {130}), slot=3)
    np.testing.assert_array_equal(found, ends(driver, [130]))


@pytest.mark.parametrize("name", NAMES)
def test_states_between_tokens_go_to_other_slots(name: str, load: Load) -> None:
    """Two sequences go on from one state, which stays; one of them keeps states of prefixes."""
    driver = load(name, **LONG)
    driver.run(Chunk(tokens=LONG_PROMPT[:16], blocks=BLOCKS, state_slot=5))
    first = Chunk(tokens=LONG_PROMPT[16:25], start=16, blocks=BLOCKS, state_slot=0, state_read=5)
    other = replace(first, blocks=[*BLOCKS[:1], 50, 51], state_slot=1)
    driver.run(replace(first, kept_states={0: 2, 4: 3, 6: 4}), other)
    for slot, done in {5: 16, 2: 17, 3: 21, 4: 23, 0: 25, 1: 25}.items():
        own = other if slot == 1 else first
        rest = replace(own, tokens=LONG_PROMPT[done:32], start=done, state_slot=6, state_read=slot)
        found = driver.logprobs(rest, [31 - done])
        np.testing.assert_array_equal(found[0], ends(driver, [32], slot=7), f"slot {slot}")


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_sequence_go_on_from_each_other_in_one_step(name: str, load: Load) -> None:
    """Between other sequences; each part leaves states that others can go on from."""
    driver = load(name, **LONG)
    driver.run(Chunk(tokens=LONG_PROMPT[:16], blocks=BLOCKS, state_slot=5))
    neighbour = Chunk(tokens=LONG_PROMPT[40:43], blocks=[50], state_slot=6, wants=())
    parts = [
        Chunk(
            tokens=LONG_PROMPT[start:end],
            start=start,
            blocks=BLOCKS,
            state_read=read,
            state_slot=slot,
            wants=(),
        )
        for start, end, read, slot in ((16, 80, 5, 0), (80, 81, 0, 1), (81, 96, 1, 2))
    ]
    driver.run(neighbour, *parts, replace(neighbour, blocks=[51], state_slot=7))
    for slot, done in {5: 16, 0: 80, 1: 81, 2: 96}.items():
        rest = Chunk(tokens=LONG_PROMPT[done:110], start=done, blocks=BLOCKS, state_slot=3)
        found = driver.logprobs(replace(rest, state_read=slot), [109 - done])
        np.testing.assert_array_equal(found[0], ends(driver, [110], slot=4), f"slot {slot}")


@pytest.mark.parametrize("name", NAMES)
def test_sequences_of_a_step_have_their_own_states(name: str, load: Load) -> None:
    """Eight prompts of other lengths at once, in slots that others have used, in any order."""
    driver = load(name, **LONG)
    prompts = [LONG_PROMPT[n : 2 * n + 1] for n in range(8)]
    alone = [driver.greedy(prompt, [0, 1], 6) for prompt in prompts]
    slots = [5, 0, 7, 2, 6, 1, 3, 4]
    tokens: list[list[int]] = [[] for _ in prompts]
    for _ in range(6):
        chunks = []
        for n, (prompt, drawn) in enumerate(zip(prompts, tokens, strict=True)):
            start = len(prompt) + len(drawn) - 1 if drawn else 0
            chunk = Chunk(tokens=drawn[-1:] or prompt, start=start, blocks=[2 * n + 2, 2 * n + 3])
            chunks.append(replace(chunk, state_slot=slots[n]))
        for drawn, token in zip(tokens, driver.run(*chunks).token_ids.tolist(), strict=True):
            drawn.append(token)
    assert tokens == alone


@pytest.mark.parametrize("name", NAMES)
def test_answers_that_go_on_from_snapshots_are_those_without(
    name: str, backend: Backend, tmp_path: Path
) -> None:
    path = write_model(by_name(name), tmp_path)
    options = replace(DEFAULTS, max_context=256, kv_blocks=64, max_sequences=2)
    with closing(load_file(backend, path, options)) as runner:
        expected, found = talk(runner, options, LONG_PROMPT)
        assert found == [0, 0, 0, 0]
    options = replace(options, state_snapshots=6)
    with closing(load_file(backend, path, options)) as runner:
        assert (runner.info.state_slots, runner.info.snapshots) == (8, 6)
        assert talk(runner, options, LONG_PROMPT) == (expected, [0, 112, 0, 64])


def requests(generated: dict[int, list[int]] | None = None) -> list[GenerateRequest]:
    """Greedy requests, which may have got some of their tokens from another engine."""
    prompts = [LONG_PROMPT[5 * n : 5 * n + 20 + n] for n in range(6)]
    return [
        GenerateRequest(
            request_id=n,
            prompt=token_prompt(prompt),
            sampling=SamplingParams(max_tokens=24, temperature=0, ignore_eos=True),
            eos_ids=(),
            arrival_ns=0,
            generated_ids=tuple((generated or {}).get(n, ())),
        )
        for n, prompt in enumerate(prompts)
    ]


def serve(
    backend: Backend, path: Path, wanted: list[GenerateRequest], *, blocks: int, sequences: int
) -> tuple[dict[int, list[int]], int]:
    """The tokens of each request, of an engine of its own, and how often one was preempted."""
    options = replace(DEFAULTS, kv_blocks=blocks, max_sequences=sequences)
    limits = SchedulerLimits(
        max_sequences=sequences, max_batched_tokens=16, max_waiting=10, max_stall_ns=0
    )
    with closing(load_file(backend, path, options)) as runner:
        core, commands = EngineCore(runner, limits, lambda: 1), wanted
        found: dict[int, list[int]] = {each.request_id: [] for each in wanted}
        while commands or core.has_work:
            report = core.step(commands)
            commands = []
            core.check_integrity()
            for event in report.events:
                found[event.request_id].extend(event.token_ids)
    return found, report.stats.totals.preemptions


@pytest.mark.parametrize("name", NAMES)
def test_answers_survive_preemption_reused_slots_and_another_engine(
    name: str, backend: Backend, tmp_path: Path
) -> None:
    path = write_model(by_name(name), tmp_path)
    expected, none = serve(backend, path, requests(), blocks=64, sequences=1)
    found, preemptions = serve(backend, path, requests(), blocks=8, sequences=3)
    assert none == 0 < preemptions
    assert found == expected
    done = {n: tokens[: 1 + 4 * n] for n, tokens in expected.items()}
    rest, _ = serve(backend, path, requests(done), blocks=64, sequences=4)
    assert {n: done[n] + tokens for n, tokens in rest.items()} == expected
