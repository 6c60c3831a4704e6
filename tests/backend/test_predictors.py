"""Drafts by a model's own predictor: what it guesses, and that guesses change no answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rocmforge.backend import registry
from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.ipc.status import EngineStats
from tests.backend.driving import Chunk, Want, make_step
from tests.data.models.text.model_files import gguf_metadata, write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.core import tokens_of
from tests.support.engine.drafting import LIMITS
from tests.support.fakes.timed import Timed
from tests.support.files.gguf_writer import write_gguf
from tests.support.models.loading import load_file
from tests.support.models.predicting import load_predicting, predicting_tensors, write_predicting

OPTIONS = LoadOptions(
    device=None,
    max_context=128,
    max_sequences=LIMITS.max_sequences,
    max_batched_tokens=LIMITS.max_batched_tokens,
    kv_blocks=64,
    kv_dtype="auto",
    memory_utilization=0.9,
    draft_tokens=4,
)
PROMPTS = [PROMPT[:start] for start in (5, 9, 14, 3, 22, 17, 33, 16)]
GREEDY = SamplingParams(max_tokens=24, temperature=0, draft_model_tokens=4)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, seed=5, draft_model_tokens=4)
SAMPLINGS = pytest.mark.parametrize(
    "sampling",
    [GREEDY, SAMPLED, msgspec.structs.replace(SAMPLED, repetition_penalty=1.2, top_k=20)],
    ids=["greedy", "sampled", "penalty"],
)
MODELS = pytest.mark.parametrize("name", ["glm4moe", "deepseek-v3"])
WITH_STATES = ("qwen35", "qwen3next")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def load(stack: ExitStack, path: Path, *, predicts: bool = True, kv_blocks: int = 64) -> Runner:
    backend, chosen = registry.create("reference"), replace(OPTIONS, kv_blocks=kv_blocks)
    loading = load_predicting if predicts else load_file
    return stack.enter_context(closing(loading(backend, path, chosen)))


def core_of(runner: Runner) -> EngineCore:
    """A core for which no step takes any time, so that drafting pays."""
    return EngineCore(Timed(runner), LIMITS, lambda: 1)


def rate(stats: EngineStats) -> float:
    assert stats.totals.predictor_drafted_tokens > 0
    return stats.totals.predictor_accepted_tokens / stats.totals.predictor_drafted_tokens


@pytest.mark.parametrize("name", ["glm4moe", "deepseek-v3", *WITH_STATES])
@SAMPLINGS
@pytest.mark.parametrize("is_right", [False, True], ids=["wrong", "right"])
def test_the_tokens_are_those_without_a_predictor(
    name: str, sampling: SamplingParams, is_right: bool, stack: ExitStack, tmp_path: Path
) -> None:
    path = write_predicting(by_name(name), tmp_path / "m.gguf", is_right=is_right)
    requests = [(p, msgspec.structs.replace(sampling, seed=i)) for i, p in enumerate(PROMPTS)]
    plain, _ = tokens_of(core_of(load(stack, path, predicts=False)), requests)
    drafted, stats = tokens_of(core_of(load(stack, path)), requests)
    assert drafted == plain
    assert rate(stats) == 1 if is_right else rate(stats) < 0.9


@MODELS
def test_what_it_guesses_is_what_a_model_of_its_layer_makes_of_its_inputs(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    """Two guesses in a row: the second follows from the hidden state of the first."""
    recipe = by_name(name)
    tensors = predicting_tensors(recipe)
    runner = load(stack, write_predicting(recipe, tmp_path / "m.gguf"))
    alone = load(stack, write_layer_alone(recipe.name, tmp_path / "layer.gguf"), predicts=False)
    known, blocks = list(PROMPT[:21]), [5, 2]
    states = [np.zeros(48, np.float32)]
    for position, token in enumerate(known[:-1]):
        states.append(
            hidden_of(runner, position, Chunk(tokens=[token], start=position, blocks=[7, 8]))
        )
    run(runner, 20, Chunk(tokens=known[:-1], blocks=blocks))
    place = f"blk.{recipe.config['num_hidden_layers']}.nextn."

    def inputs() -> Float32Array:
        e = normed(tensors["token_embd.weight"][known], tensors[f"{place}enorm.weight"])
        h = normed(np.stack(states), tensors[f"{place}hnorm.weight"])
        rows: Float32Array = np.concatenate([e, h], axis=1) @ tensors[f"{place}eh_proj.weight"].T
        return rows

    for guess, (number, token) in enumerate([(21, known[-1]), (22, 11)]):
        start = len(known) - 1 + guess
        known = known if guess == 0 else [*known, token]
        chunk = Chunk(tokens=[token], start=start, blocks=blocks, wants=all_tokens())
        step = replace(make_step(number, [chunk], 16), predicts=True, hidden_ranges=RANGE)
        runner.submit(step)
        output = runner.collect()
        whole = Chunk(tokens=known, blocks=[1, 3], wants=all_tokens())
        oracle = replace(
            make_step(guess, [whole], 16),
            embedding_tokens=np.arange(len(known), dtype=np.int32),
            embedding_rows=(inputs(),),
        )
        alone.submit(oracle)
        expected = alone.collect().logprobs
        assert output.logprobs is not None
        assert expected is not None
        assert output.hidden is not None
        np.testing.assert_allclose(output.logprobs, expected, atol=2e-4)
        states.append(output.hidden[0])


RANGE = np.array([[0, 1]], np.int32)


def all_tokens() -> list[Want]:
    return [Want(target=target, num_logprobs=0) for target in range(97)]


def run(runner: Runner, number: int, chunk: Chunk) -> None:
    runner.submit(make_step(number, [chunk], 16))
    runner.collect()


def hidden_of(runner: Runner, number: int, chunk: Chunk) -> Float32Array:
    runner.submit(replace(make_step(number, [chunk], 16), hidden_ranges=RANGE))
    hidden = runner.collect().hidden
    assert hidden is not None
    state: Float32Array = hidden[0]
    return state


def normed(x: Float32Array, weight: Float32Array) -> Float32Array:
    y: Float32Array = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weight
    return y


def write_layer_alone(name: str, path: Path) -> Path:
    """A model whose only layer is that of the predictor."""
    recipe, keys = by_name(name), gguf_metadata(by_name(name))
    tensors, place = predicting_tensors(recipe), f"blk.{recipe.config['num_hidden_layers']}."
    layer = {
        each.replace(place, "blk.0."): values
        for each, values in tensors.items()
        if each.startswith(place) and "nextn" not in each
    }
    whole = {each: tensors[each] for each in ("token_embd.weight", "output.weight")}
    whole["output_norm.weight"] = tensors[f"{place}nextn.shared_head_norm.weight"]
    keys |= {f"{recipe.architecture}.block_count": 1}
    keys |= {f"{recipe.architecture}.leading_dense_block_count": 0}
    return write_gguf(path, keys, layer | whole)


@pytest.mark.parametrize("name", ["lfm2", *WITH_STATES])
def test_states_go_back_to_the_last_accepted_token_whatever_drafts(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    """By prompt lookup, which is right now and then where few tokens are likely; some wait."""
    few = tuple((token, 100.0) for token in (3, 7, 11))
    sampling = SamplingParams(max_tokens=40, seed=3, prompt_lookup_tokens=4, logit_bias=few)
    path = write_model(by_name(name), tmp_path)
    prompts = [[*PROMPT[:9], *PROMPT[:9]], PROMPT[7:9], [5, 5, 5, 5, 5], PROMPT[:38]]
    requests = [(prompt, sampling) for prompt in prompts]
    plain, _ = tokens_of(
        core_of(load(stack, path, predicts=False)),
        [(prompt, msgspec.structs.replace(sampling, prompt_lookup_tokens=0)) for prompt in prompts],
    )
    runner = load(stack, path, predicts=False, kv_blocks=10)
    assert runner.info.state_slots == LIMITS.max_sequences + 4 * 4
    drafted, stats = tokens_of(core_of(runner), requests)
    assert drafted == plain
    assert 0 < stats.totals.accepted_tokens < stats.totals.drafted_tokens
    assert stats.slots_used == 0


@pytest.mark.parametrize("is_right", [False, True], ids=["wrong", "right"])
def test_it_goes_on_after_prefix_hits_preemption_and_resume(
    is_right: bool, stack: ExitStack, tmp_path: Path
) -> None:
    """Its cache lies in the blocks; a right predictor stays right whatever happens to them."""
    path = write_predicting(by_name("glm4moe"), tmp_path / "m.gguf", is_right=is_right)
    prompts = [PROMPT[:34], PROMPT[7:9], PROMPT[20:39], PROMPT[:38]]
    sampling = msgspec.structs.replace(SAMPLED, max_tokens=40)
    requests = [(p, msgspec.structs.replace(sampling, seed=i)) for i, p in enumerate(prompts)]
    plain, _ = tokens_of(core_of(load(stack, path, predicts=False)), requests)
    core = core_of(load(stack, path, kv_blocks=10))
    drafted, stats = tokens_of(core, requests)
    again, _ = tokens_of(core, requests)
    assert drafted == again == plain
    assert stats.totals.preemptions > 0
    assert stats.totals.prefix_hit_tokens > 0
    resumed = GenerateRequest(
        request_id=9,
        prompt=token_prompt(prompts[0]),
        sampling=requests[0][1],
        eos_ids=(),
        arrival_ns=0,
        generated_ids=tuple(plain[0][:11]),
    )
    found: list[int] = []
    report = core.step([resumed])
    while core.has_work:
        found += [token for event in report.events for token in event.token_ids]
        report = core.step()
    found += [token for event in report.events for token in event.token_ids]
    assert found == plain[0][11:]
    if is_right:
        assert rate(report.stats) == 1
