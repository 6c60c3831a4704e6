"""Models that take images, from pixels to logits, against Transformers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from rocmforge.backend.protocol import Backend
from rocmforge.engine.ipc.messages import Cancel, StepReport
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.waiting.images import image_step, in_order
from tests.data.models.towers.tiny_gemma4_tower import GEMMA4, GEMMA4_E
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED
from tests.data.models.towers.tiny_internvl import INTERNVL_6B
from tests.data.models.towers.tiny_tower import (
    GOLDEN_ROWS,
    GOLDEN_TOKENS,
    PARTS,
    TinyTower,
    goldens,
)
from tests.data.models.towers.tiny_towers import GEMMA3, QWEN3_VL
from tests.data.models.towers.tiny_windows import QWEN2_VL
from tests.data.models.towers.tower_files import write_tower_files, write_tower_folder
from tests.data.models.towers.towers import IN_FILES, TOWERS
from tests.support.engine.core import reports, submits, tokens_of
from tests.support.models.options import SMALL
from tests.support.models.towers import Loaded, load_both, shown

TOLERANCE = 3e-5
"""Of a row of embeddings, or a log-probability, relative to their spread."""
OPTIONS = replace(SMALL, max_batched_tokens=256, max_context=256, kv_blocks=64)


@pytest.fixture(params=TOWERS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> TinyTower:
    found: TinyTower = request.param
    return found


WRITERS: dict[str, Callable[..., Path]] = {
    "folder": write_tower_folder,
    "files": write_tower_files,
}


@pytest.fixture(params=WRITERS)
def loaded(
    request: pytest.FixtureRequest, model: TinyTower, backend: Backend, tmp_path: Path
) -> Iterator[Loaded]:
    if model not in IN_FILES and request.param == "files":
        pytest.skip("the file of its tower is as another's")
    with ExitStack() as stack:
        yield load_both(stack, backend, WRITERS[request.param](model, tmp_path / "model"), OPTIONS)


def test_a_tower_makes_the_rows_of_transformers(model: TinyTower, loaded: Loaded) -> None:
    expected = np.array(goldens(model.name)["rows"])
    prompt = shown(model, PARTS, loaded.vision)
    for number, span in enumerate(prompt.images):
        loaded.tower.submit(image_step(number, span, loaded.vision.processor))
        hidden = loaded.tower.collect().hidden
        assert hidden is not None
        assert hidden.shape == (span.num_rows, loaded.tower.info.hidden_size)
        found = in_order(hidden, span, loaded.vision.processor)[list(GOLDEN_ROWS)]
        assert np.abs(found - expected[number]).max() < TOLERANCE * expected.std()


def test_a_prompt_with_images_has_the_logits_of_transformers(
    model: TinyTower, loaded: Loaded
) -> None:
    logits = np.array(goldens(model.name)["logits"])
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    prompt, vocab = shown(model, PARTS, loaded.vision), loaded.runner.info.vocab_size
    sampling = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=vocab)
    found = np.zeros(vocab)
    for report in reports(loaded.core(), [(prompt, sampling)]):
        for event in report.events:
            assert event.error is None
            for logprob in event.logprobs or ():
                for token, value in logprob.top:
                    found[token] = value
    last = expected[GOLDEN_TOKENS.index(-1)]
    assert np.abs(found - last).max() < TOLERANCE * logits.std()


def test_an_answer_after_images_is_that_of_transformers(model: TinyTower, loaded: Loaded) -> None:
    """Also where steps cut through images, if these may be cut."""
    expected = goldens(model.name)["answer"]
    prompt = shown(model, PARTS, loaded.vision)
    sampling = SamplingParams(max_tokens=len(expected), temperature=0.0)
    for budget in (256, 24 if model.both_ways else 7):
        core = replace(loaded, options=replace(OPTIONS, max_batched_tokens=budget)).core()
        found, _ = tokens_of(core, [(prompt, sampling)])
        assert found == [expected]


def conversations() -> list[list[Sequence[int] | int]]:
    """Prompts that show four tiles, some of them alike up to an image."""
    shared = tuple(range(40, 61))
    found: list[list[Sequence[int] | int]] = []
    for index in range(8):
        found.append([shared, index % 4, (index, 70)])
        found[-1] += [(index + 3) % 4, (80,)] if index % 2 else []
    return found


def test_conversations_with_images_at_once_are_answered_as_alone(
    model: TinyTower, backend: Backend, tmp_path: Path
) -> None:
    """With few blocks, so that some are preempted; each tile costs the tower one step."""
    sampling = SamplingParams(max_tokens=30, temperature=0.0)
    folder = write_tower_folder(model, tmp_path / "model")
    options = replace(OPTIONS, kv_blocks=11, max_sequences=8, max_batched_tokens=64)
    options = replace(options, state_snapshots=4)  # without them, states cannot be found again
    with ExitStack() as stack:
        loaded = load_both(stack, backend, folder, options)
        prompts = [shown(model, parts, loaded.vision) for parts in conversations()]
        alone = [tokens_of(loaded.core(), [(prompt, sampling)])[0][0] for prompt in prompts]
        found, stats = tokens_of(loaded.core(), [(prompt, sampling) for prompt in prompts])
    assert found == alone
    assert len(set(map(tuple, alone))) > 4
    assert stats.totals.image_tiles == 4
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0


KILLED = 30
"""The step at which another engine goes on."""


@pytest.mark.parametrize(
    ("kind", "blocks"),
    [
        *((GEMMA3, 16), (QWEN3_VL, 12), (QWEN2_VL, 12), (INTERNVL_6B, 16)),
        *((GEMMA4, 16), (GEMMA4_E, 16), (GEMMA4_UNIFIED, 16)),
    ],
)
def test_conversations_that_come_and_go_are_answered_as_alone(
    kind: TinyTower, blocks: int, backend: Backend, tmp_path: Path
) -> None:
    """At random: they arrive, leave, are preempted, and go on in another engine in the middle."""
    sampling = SamplingParams(max_tokens=24, temperature=0.0)
    folder = write_tower_folder(kind, tmp_path / "model")
    options = replace(OPTIONS, kv_blocks=blocks, max_sequences=8, max_batched_tokens=64)
    randomness = random.Random(7)
    with ExitStack() as stack:
        loaded = load_both(stack, backend, folder, options)
        prompts = [shown(kind, parts, loaded.vision) for parts in conversations()]
        alone = [tokens_of(loaded.core(), [(prompt, sampling)])[0][0] for prompt in prompts]
        said: list[list[int]] = [[] for _ in prompts]
        left = {0: 25, 5: 40}
        arrivals = [randomness.randrange(10) for _ in prompts]
        core = loaded.core()
        running: dict[int, GenerateRequest] = {}
        step = preemptions = 0
        while step <= KILLED or core.has_work:
            if step == KILLED:
                core = loaded.core()
                for number, request in running.items():
                    again = structs.replace(request, generated_ids=tuple(said[number]))
                    note(core.step([again]), said, running)
            arrived = {
                number: request
                for number, request in enumerate(submits((prompt, sampling) for prompt in prompts))
                if arrivals[number] == step
            }
            running |= arrived
            cancels = [Cancel(request_id=number) for number, at in left.items() if at == step]
            report = core.step([*arrived.values(), *cancels])
            note(report, said, running)
            core.check_integrity()
            preemptions = max(preemptions, report.stats.totals.preemptions)
            step += 1
    assert [said[number] for number in range(8) if number not in left] == [
        alone[number] for number in range(8) if number not in left
    ]
    for number in left:
        assert said[number] == alone[number][: len(said[number])]
    assert preemptions > 0


def note(report: StepReport, said: list[list[int]], running: dict[int, GenerateRequest]) -> None:
    """Files what was said, and forgets who has ended."""
    for event in report.events:
        assert event.error is None
        said[event.request_id] += event.token_ids
        if event.finish_reason is not None:
            del running[event.request_id]
