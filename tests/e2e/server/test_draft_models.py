"""Speculative decoding with a draft model on real backends: the tokens are those without it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from openai import OpenAI

from benchmarks import draft_model
from benchmarks.synthetic_model import SHAPES, write_synthetic
from rocmforge.backend import registry
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.errors import ConfigurationError
from rocmforge.model_front import read_front
from rocmforge.settings import Settings
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.e2e.conftest import SMOLLM2_NAME, serve_command
from tests.support.engine.core import reports, tokens_of
from tests.support.engine.drafting import LIMITS, make_drafting_core, rate
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting
from tests.support.models.loading import load_file
from tests.support.models.shallow import write_idle, write_shallow
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

Float64Array = npt.NDArray[np.float64]

OPTIONS = LoadOptions(
    device=None,
    max_context=128,
    max_sequences=LIMITS.max_sequences,
    max_batched_tokens=LIMITS.max_batched_tokens,
    kv_blocks=64,
    kv_dtype="auto",
    memory_utilization=0.9,
)
PROMPTS = [PROMPT[:start] for start in (5, 9, 14, 3, 22, 17)]
GREEDY = SamplingParams(max_tokens=40, temperature=0, draft_model_tokens=4)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, top_p=0.95, seed=5, draft_model_tokens=4)
SAMPLINGS = pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SAMPLED,
        msgspec.structs.replace(SAMPLED, repetition_penalty=1.2, top_k=20),
        msgspec.structs.replace(SAMPLED, frequency_penalty=0.3, presence_penalty=0.2),
    ],
    ids=["greedy", "sampled", "repetition penalty", "frequency penalty"],
)


@dataclass(frozen=True)
class Models:
    """A model, and draft models whose tokens are accepted often, seldom and always."""

    model: Path
    shallow: Path
    other: Path

    @property
    def itself(self) -> Path:
        return self.model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    recipe = fitting(by_name("llama"))
    config = recipe.config | {"num_hidden_layers": 3}
    deep = write_model(replace(recipe, config=config), folder)
    model = write_idle(deep, 2, folder / "model.gguf")
    return Models(
        model=model,
        shallow=write_shallow(model, 2, folder / "shallow.gguf"),
        other=write_shallow(model, 1, folder / "other.gguf"),
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def load(stack: ExitStack, path: Path, backend: str = "reference") -> Runner:
    runner = load_file(registry.create(backend), path, OPTIONS)
    return stack.enter_context(closing(runner))


@SAMPLINGS
@pytest.mark.parametrize(
    ("draft", "least", "most"),
    [("itself", 1.0, 1.0), ("shallow", 0.99, 1.0), ("other", 0.01, 0.99)],
)
def test_the_tokens_are_those_without_a_draft_model(
    sampling: SamplingParams,
    draft: str,
    least: float,
    most: float,
    models: Models,
    stack: ExitStack,
) -> None:
    requests = [(p, msgspec.structs.replace(sampling, seed=i)) for i, p in enumerate(PROMPTS)]
    plain, _ = tokens_of(make_drafting_core(load(stack, models.model), None), requests)
    draft_model = load(stack, getattr(models, draft))
    drafted, stats = tokens_of(make_drafting_core(load(stack, models.model), draft_model), requests)
    assert drafted == plain
    assert least <= rate(stats) <= most


def test_sampled_tokens_have_the_distribution_they_have_without_a_draft_model(
    stack: ExitStack, tmp_path: Path
) -> None:
    """The second and third token of an answer, against the model's exact probabilities.

    Pearson's chi-square over all pairs, at five standard deviations.
    """
    vocab_size, count, prompt = 8, 1500, [1, 2, 3, 5]
    recipe = fitting(by_name("llama"))
    path = write_model(replace(recipe, config=recipe.config | {"vocab_size": vocab_size}), tmp_path)
    shallow = write_shallow(path, 1, tmp_path / "draft.gguf")

    contexts = [prompt]
    contexts += [[*prompt, token] for token in range(vocab_size)]
    contexts += [[*context, token] for context in contexts[1:] for token in range(vocab_size)]
    probabilities = next_probabilities(load(stack, path), contexts)
    first, second, third = np.split(probabilities, [1, 1 + vocab_size])
    third = third.reshape(vocab_size, vocab_size, vocab_size)
    expected = np.einsum("a,ab,abc->bc", first[0], second, third).ravel() * count

    sampling = SamplingParams(max_tokens=3, draft_model_tokens=2)
    answers, stats = tokens_of(
        make_drafting_core(load(stack, path), load(stack, shallow)),
        [(prompt, msgspec.structs.replace(sampling, seed=seed)) for seed in range(count)],
    )
    assert 0.05 < rate(stats) < 0.95
    assert stats.totals.model_drafts > count / 4
    pairs = [answer[1] * vocab_size + answer[2] for answer in answers]
    observed = np.bincount(pairs, minlength=vocab_size**2)
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = vocab_size**2 - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


def next_probabilities(runner: Runner, contexts: Sequence[Sequence[int]]) -> Float64Array:
    """Probabilities of all tokens after each context, [contexts, V]."""
    vocab_size = runner.info.vocab_size
    sampling = SamplingParams(max_tokens=1, num_logprobs=vocab_size)
    probabilities = np.zeros((len(contexts), vocab_size))
    core = make_drafting_core(runner, None)
    for report in reports(core, [(context, sampling) for context in contexts]):
        for event in report.events:
            (logprob,) = event.logprobs or ()
            for token, value in logprob.top:
                probabilities[event.request_id, token] = np.exp(value)
    return probabilities


def test_draft_tokens_on_the_hip_backend_are_those_it_would_draw_itself(
    host: HostPlatform | None, models: Models, stack: ExitStack
) -> None:
    """With two steps of the draft model in flight, and captured as graphs.

    A step that checks draft tokens multiplies otherwise than one that decodes, so a near tie may
    end otherwise; hardly any does.
    """
    requests = [
        (prompt, msgspec.structs.replace(sampling, max_tokens=16, seed=i))
        for i, (prompt, sampling) in enumerate(zip(PROMPTS, [GREEDY, SAMPLED] * 3, strict=True))
    ]
    plain, _ = tokens_of(make_drafting_core(load(stack, models.model, "hip"), None), requests)
    draft = load(stack, models.shallow, "hip")
    drafted, stats = tokens_of(
        make_drafting_core(load(stack, models.model, "hip"), draft), requests
    )
    same = [ours == theirs for ours, theirs in zip(drafted, plain, strict=True)]
    assert sum(same) >= len(same) - 1
    assert rate(stats) > 0.95
    if host is not None:
        assert host.take_finding() == ""


def test_the_benchmark_gives_the_tokens_without_a_draft_model_in_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_synthetic(tmp_path / "model.gguf", SHAPES["tiny"], "q8_0")
    shallow = write_shallow(model, 2, tmp_path / "draft.gguf")
    for draft in (("--layers", "2"), ("--draft", str(shallow))):
        flags = ("--backend", "reference", "--tokens", "12", "--streams", "3", "--repeat", "1")
        monkeypatch.setattr("sys.argv", ["draft_model", str(model), *draft, *flags])
        draft_model.main()
        assert capsys.readouterr().out.endswith(" 3 of 3\n")


@pytest.mark.model
def test_a_real_model_as_its_own_draft_is_always_right(
    smollm2_path: Path, stack: ExitStack
) -> None:
    prompts = [(504, 3575, 282, 4649, 314), (33, 28, 216, 34, 28, 216, 35)]
    requests = [
        (prompt, msgspec.structs.replace(sampling, max_tokens=16))
        for prompt, sampling in zip(prompts, (GREEDY, SAMPLED), strict=True)
    ]
    with ExitStack() as alone:  # three of them at once would take more than 2 GB
        plain, _ = tokens_of(make_drafting_core(load(alone, smollm2_path), None), requests)
    draft = load(stack, smollm2_path)
    drafted, stats = tokens_of(make_drafting_core(load(stack, smollm2_path), draft), requests)
    assert drafted == plain
    assert rate(stats) == 1
    assert stats.totals.steps < 12


@pytest.mark.model
def test_a_server_with_a_draft_model_answers_as_without(smollm2_path: Path, tmp_path: Path) -> None:
    draft = write_shallow(smollm2_path, 4, tmp_path / "draft.gguf")
    command = serve_command(smollm2_path, "--draft-model", str(draft), "--draft-tokens", "3")
    with (
        LiveServer(command, tmp_path / "log") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client,
    ):

        def ask(**fields: Any) -> str:
            answer = client.completions.create(
                model=SMOLLM2_NAME, prompt="1, 2, 3, 4, 5,", max_tokens=12, **fields
            )
            text: str = answer.choices[0].text
            return text

        for fields in ({"temperature": 0}, {"seed": 4}):
            assert ask(**fields) == ask(**fields, extra_body={"num_assistant_tokens": 0})
        health = server.get("/health").text
        assert "draft model" in health
        scraped = server.get("/metrics").text
        (drafted,) = re.findall(r'num_draft_tokens_total{.*method="draft_model".*} (\d+)', scraped)
        assert int(drafted) > 0


@pytest.mark.model
def test_a_draft_model_of_another_family_is_refused_by_name(
    smollm2_path: Path, gemma3_path: Path
) -> None:
    settings = Settings(draft_model=str(gemma3_path))
    with pytest.raises(ConfigurationError, match=r"its token 0 is '<pad>', but the model's is"):
        read_front(str(smollm2_path), settings)
