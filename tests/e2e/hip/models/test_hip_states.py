"""Models with states on the HIP backend against the reference backend."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.errors import UnsupportedArchitecture
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_mamba import larger_mamba
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.data.models.text.tiny_recurrent import LONG_PROMPT, larger_delta, larger_liquid
from tests.support.engine.conversations import talk
from tests.support.engine.spans import answers
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.options import SMALL
from tests.support.models.runners import load_hip, load_reference
from tests.support.models.state_models import larger, write_states

FLOAT_TOLERANCE = 0.03  # halves in the cache and in prefills
INT8_TOLERANCE = 0.08  # 8-bit activations too
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
PROMPTS = (PROMPT[:34], PROMPT[7:9], PROMPT[20:39], PROMPT[:1], PROMPT[:37])


@pytest.mark.parametrize(
    "name",
    [
        *("lfm2", "lfm2moe", "lfm2-q8_0", "qwen35", "qwen35moe", "qwen3next", "qwen35-q8_0"),
        *("granitehybrid-dense", "granitehybrid-q8_0", "nemotron_h", "nemotron_h_moe-q8_0"),
        *("nemotron_h_moe-latent", "nemotron_h_moe-latent-q8_0"),
    ],
)
def test_probabilities_are_those_of_the_reference(
    name: str, tmp_path: Path, host: HostPlatform | None
) -> None:
    """In one piece, cut, and behind what another sequence left in the slot."""
    stored = "q8_0" if name.endswith("q8_0") else ""
    name = name.removesuffix("-q8_0")
    path = write_states(larger(by_name(name)), tmp_path, stored)
    with ExitStack() as stack:
        rows, blocks = (5, 22), [3, 1, 2]
        chunk = Chunk(tokens=LONG_PROMPT[:23], blocks=blocks, state_slot=1)
        expected = Driver(load_reference(stack, path)).logprobs(chunk, rows)
        driver = Driver(load_hip(stack, path))
        tolerance = (INT8_TOLERANCE if stored else FLOAT_TOLERANCE) * expected.std()
        for _ in range(2):
            assert np.abs(driver.logprobs(chunk, rows) - expected).max() < tolerance
        for start, end in ((0, 1), (1, 9), (9, 21)):
            tokens = LONG_PROMPT[start:end]
            driver.run(Chunk(tokens=tokens, start=start, blocks=blocks, state_slot=3))
        last = Chunk(tokens=LONG_PROMPT[21:23], start=21, blocks=blocks, state_slot=3)
        assert np.abs(driver.logprobs(last, (1,)) - expected[-1:]).max() < tolerance


@pytest.mark.parametrize("name", ["lfm2", "qwen35", "granitehybrid-dense"])
def test_states_between_tokens_go_to_other_slots(
    name: str, tmp_path: Path, host: HostPlatform | None
) -> None:
    """Two sequences go on from one state, which stays; one of them keeps states of prefixes."""
    path = write_model(larger(by_name(name)), tmp_path)
    with ExitStack() as stack:
        reference = Driver(load_reference(stack, path))
        whole = Chunk(tokens=LONG_PROMPT[:43], blocks=[3, 1, 2])
        expected = reference.logprobs(whole, [42])
        driver = Driver(load_hip(stack, path))
        for start in (0, 16):
            tokens = LONG_PROMPT[start : start + 16]
            driver.run(Chunk(tokens=tokens, start=start, blocks=whole.blocks, state_slot=2))
        first = replace(whole, tokens=LONG_PROMPT[32:40], start=32, state_slot=0, state_read=2)
        other = replace(first, blocks=[3, 4], state_slot=3)
        driver.run(replace(first, kept_states={0: 1}), other)
        for slot, done in {0: 40, 3: 40, 2: 32, 1: 33}.items():
            own = other if slot == 3 else first
            rest = replace(own, tokens=LONG_PROMPT[done:43], start=done, state_read=slot)
            found = driver.logprobs(rest, [42 - done])
            assert np.abs(found - expected).max() < FLOAT_TOLERANCE * expected.std(), slot


@pytest.mark.parametrize(
    "model",
    [
        larger_delta(by_name("qwen35"), delta_dim=128),
        larger_mamba(by_name("granitehybrid-dense"), state=128),
        larger_liquid(by_name("lfm2")),
    ],
    ids=lambda model: model.name,
)
def test_parts_of_a_sequence_go_on_from_each_other_in_one_step(
    model: TinyModel, tmp_path: Path, host: HostPlatform | None
) -> None:
    """Long, single and short ones, beside another sequence; what each leaves is right."""
    path = write_model(model, tmp_path)
    options = replace(SMALL, max_context=192, max_batched_tokens=192)
    blocks = [*range(9)]
    with ExitStack() as stack:
        reference = Driver(load_reference(stack, path, options))
        whole = Chunk(tokens=LONG_PROMPT[:130], blocks=blocks)
        expected = reference.logprobs(whole, [129])
        driver = Driver(load_hip(stack, path, options))
        driver.run(Chunk(tokens=LONG_PROMPT[:32], blocks=blocks, state_slot=2))
        other = Chunk(tokens=LONG_PROMPT[40:45], blocks=[9], state_slot=1, wants=())
        cuts = ((32, 96, 2, 0), (96, 97, 0, 3), (97, 128, 3, 2))
        parts = [
            replace(
                whole,
                tokens=LONG_PROMPT[start:end],
                start=start,
                state_read=read,
                state_slot=slot,
                wants=[Want(token=-1)],
            )
            for start, end, read, slot in cuts
        ]
        driver.run(other, *parts)
        for slot, done in {0: 96, 3: 97, 2: 128}.items():
            rest = replace(whole, tokens=LONG_PROMPT[done:130], start=done, state_read=slot)
            found = driver.logprobs(replace(rest, state_slot=1), [129 - done])
            assert np.abs(found - expected).max() < FLOAT_TOLERANCE * expected.std(), slot


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)], ids=["decodes", "drafts"])
def test_parts_of_a_sequence_take_no_graph(
    sizes: tuple[int, int], tmp_path: Path, host: HostPlatform | None
) -> None:
    """Each token has logits, as in a step of decodes or of draft tokens to check."""
    path = write_model(larger_delta(by_name("qwen35")), tmp_path)
    first, rest = sizes
    with ExitStack() as stack:
        whole = Chunk(tokens=LONG_PROMPT[: 9 + first + rest], blocks=[3, 1, 2])
        reference = Driver(load_reference(stack, path))
        expected = reference.logprobs(whole, [9 + first + rest - 1])[0]
        driver = Driver(load_hip(stack, path))
        driver.run(replace(whole, tokens=LONG_PROMPT[:9], state_slot=2))
        best = int(expected.argmax())
        chunks = []
        for start, end, read, slot in ((9, 9 + first, 2, 0), (9 + first, 9 + first + rest, 0, 1)):
            wants = [Want(token=i, target=best, num_logprobs=0) for i in range(end - start)]
            tokens = LONG_PROMPT[start:end]
            chunk = replace(whole, tokens=tokens, start=start, state_read=read, state_slot=slot)
            chunks.append(replace(chunk, wants=wants))
        found = driver.run(*chunks).logprobs
    assert found is not None
    assert abs(found[-1] - expected[best]) < FLOAT_TOLERANCE * expected.std()


def test_folders_say_what_the_reference_says(tmp_path: Path, host: HostPlatform | None) -> None:
    """One whose queries, keys, values and gates stand between each other."""
    model = larger_delta(by_name("qwen3next"))
    chunk, row = Chunk(tokens=LONG_PROMPT[:23], blocks=[3, 1, 2]), (22,)
    with ExitStack() as stack:
        expected = Driver(load_reference(stack, write_model(model, tmp_path))).logprobs(chunk, row)
        driver = Driver(load_hip(stack, write_folder(model, tmp_path / "folder")))
        found = driver.logprobs(chunk, row)
    assert np.abs(found - expected).max() < FLOAT_TOLERANCE * expected.std()


@pytest.mark.parametrize(
    "model",
    [
        larger_delta(by_name("qwen35"), delta_dim=128),
        larger_mamba(by_name("granitehybrid-dense"), state=128),
    ],
    ids=lambda model: model.name,
)
def test_prompts_are_computed_in_chunks(
    model: TinyModel, tmp_path: Path, host: HostPlatform | None
) -> None:
    """States of 128, beside the borders of chunks; the next token goes on from the one behind."""
    path = write_model(model, tmp_path)
    options = replace(SMALL, max_context=192, max_batched_tokens=192)
    blocks = [*range(12)]
    with ExitStack() as stack:
        reference = Driver(load_reference(stack, path, options))
        driver = Driver(load_hip(stack, path, options))
        for length in (65, 130):
            prompt = Chunk(tokens=LONG_PROMPT[:length], blocks=blocks)
            follows = Chunk(tokens=(5,), start=length, blocks=blocks)
            for chunk, row in ((prompt, length - 1), (follows, 0)):
                expected = reference.logprobs(chunk, (row,))
                found = driver.logprobs(chunk, (row,))
                limit = FLOAT_TOLERANCE * expected.std()
                assert np.abs(found - expected).max() < limit, (length, row)


@pytest.mark.parametrize("name", ["lfm2", "qwen35", "nemotron_h_moe"])
def test_answers_through_the_engine_are_those_of_the_reference(
    name: str, tmp_path: Path, host: HostPlatform | None
) -> None:
    """Mixed steps, two in flight, preempted sequences and slots that were used before."""
    path = write_model(larger(by_name(name)), tmp_path)
    options = replace(SMALL, kv_blocks=8, graphs="auto")
    with ExitStack() as stack:
        expected, _ = answers(load_reference(stack, path, options), options, PROMPTS, GREEDY)
        runner = load_hip(stack, path, options)
        assert runner.info.graphs == "checked"
        got, stats = answers(runner, options, PROMPTS, GREEDY)
        assert stats.slots_total == options.max_sequences
        assert got == expected


def test_answers_that_go_on_from_snapshots_are_those_without(
    tmp_path: Path, host: HostPlatform | None
) -> None:
    path = write_model(larger_liquid(by_name("lfm2")), tmp_path)
    options = replace(SMALL, max_context=256, kv_blocks=32, max_sequences=2)
    with ExitStack() as stack:
        expected, found = talk(load_hip(stack, path, options), options, LONG_PROMPT)
        assert found == [0, 0, 0, 0]
        options = replace(options, state_snapshots=6)
        runner = load_hip(stack, path, options)
        assert (runner.info.state_slots, runner.info.snapshots) == (8, 6)
        assert talk(runner, options, LONG_PROMPT) == (expected, [0, 96, 64, 64])


def test_scored_prompts_do_not_become_sequences_of_one_token(
    tmp_path: Path, host: HostPlatform | None
) -> None:
    path = write_model(larger_liquid(by_name("lfm2")), tmp_path)
    sampling = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=0, ignore_eos=True)
    options = replace(SMALL, max_sequences=16, max_batched_tokens=16)
    with ExitStack() as stack:
        (expected,), _ = answers(
            load_reference(stack, path, options), options, [PROMPT[:12]], sampling
        )
        (got,), _ = answers(load_hip(stack, path, options), options, [PROMPT[:12]], sampling)
    wanted = np.array([each.logprob for each in expected.prompt_logprobs if each])
    found = np.array([each.logprob for each in got.prompt_logprobs if each])
    assert len(wanted) == 11
    assert np.abs(found - wanted).max() < FLOAT_TOLERANCE * wanted.std()


def test_what_there_are_no_kernels_for_is_refused(
    tmp_path: Path, host: HostPlatform | None
) -> None:
    with ExitStack() as stack:
        for delta_dim, problem in ((160, "160"), (30, "30")):
            model = larger_delta(by_name("qwen35"), delta_dim)
            with pytest.raises(UnsupportedArchitecture, match=f"keys of {problem} elements"):
                load_hip(stack, write_model(model, tmp_path))
