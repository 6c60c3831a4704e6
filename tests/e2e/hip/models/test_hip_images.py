"""Images beside what else changes how a model computes: adapters, drafts, several devices."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import StepInput
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.prompt import Prompt
from rocmforge.engine.ipc.totals import Totals
from rocmforge.models.lora import AdapterSpec
from rocmforge.opening import open_checkpoint
from tests.data.models.text.tiny_adapters import write_random_adapter
from tests.data.models.towers.tiny_gemma4_tower import GEMMA4, GEMMA4_E
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED
from tests.data.models.towers.tiny_internvl import INTERNVL_6B
from tests.data.models.towers.tiny_predicting_tower import write_predicting_tower
from tests.data.models.towers.tiny_tower import TinyTower
from tests.data.models.towers.tiny_towers import GEMMA3, QWEN3_VL, QWEN35
from tests.data.models.towers.tiny_windows import QWEN2_VL
from tests.data.models.towers.tower_files import write_tower_files, write_tower_folder
from tests.e2e.conftest import RANKS
from tests.support.engine.core import reports, tokens_of
from tests.support.models.options import SMALL
from tests.support.models.towers import Loaded, load_as_engine, shown

pytestmark = pytest.mark.slow

OPTIONS = replace(SMALL, max_context=256, kv_blocks=64, max_batched_tokens=48, draft_tokens=4)
GREEDY = SamplingParams(max_tokens=10, temperature=0.0)
MODELS = (QWEN3_VL, QWEN2_VL, GEMMA4, GEMMA4_E, GEMMA4_UNIFIED, INTERNVL_6B)
FEW_TOKENS = tuple((token, 100.0) for token in (3, 7, 11))
SHARED = tuple(range(5, 26))
CONVERSATIONS: tuple[tuple[Sequence[int] | int, ...], ...] = (
    (SHARED, 0, (1, 2, 3)),
    (SHARED, 1, (1, 2, 3)),
    ((4,), 2, (7,), 3, (9, 9, 9, 9)),
    ((3, 4, 5),),
)


def prompts_of(model: TinyTower, loaded: Loaded) -> list[Prompt]:
    """Two images behind one text, two in one prompt, and none."""
    return [shown(model, parts, loaded.vision) for parts in CONVERSATIONS]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_adapters_see_images_as_on_the_reference(
    model: TinyTower, stack: ExitStack, tmp_path: Path
) -> None:
    """Some with an adapter, some without, at once; no tile is computed twice for it.

    Rounding moves log-probabilities of their first tokens by 0.015, the adapter by 0.15 or more.
    """
    path = write_tower_files(model, tmp_path / "m")
    adapter = write_random_adapter(tmp_path / "adapter.gguf", path, 3)
    options = replace(OPTIONS, adapters=(AdapterSpec(name="a", path=str(adapter)),))
    first = structs.replace(GREEDY, max_tokens=1, num_logprobs=20)
    found = []
    for backend in ("hip", "reference"):
        loaded, totals = load_as_engine(stack, backend, path, options), Totals()
        requests = [
            (prompt, structs.replace(first, adapter=number))
            for prompt in prompts_of(model, loaded)
            for number in (-1, 0)
        ]
        likeliest = np.full((len(requests), 97), np.nan)
        for report in reports(loaded.core(totals), requests):
            for event in report.events:
                for logprob in event.logprobs or ():
                    for token, value in logprob.top:
                        likeliest[event.request_id, token] = value
        assert totals.image_tiles == 4
        found.append(likeliest)
    assert np.nanmax(np.abs(found[0] - found[1])) < 0.03
    assert np.nanmax(np.abs(found[1][::2] - found[1][1::2]), axis=1).min() > 0.15


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        *((GEMMA3, "reference"), (QWEN3_VL, "hip"), (QWEN35, "reference"), (QWEN2_VL, "reference")),
        *((GEMMA4, "hip"), (GEMMA4_E, "hip"), (GEMMA4_UNIFIED, "hip"), (INTERNVL_6B, "hip")),
    ],
)
def test_looked_up_drafts_change_no_answer_about_images(
    model: TinyTower, backend: str, stack: ExitStack, tmp_path: Path
) -> None:
    loaded = load_as_engine(stack, backend, write_tower_folder(model, tmp_path / "m"), OPTIONS)
    plain = SamplingParams(max_tokens=20, seed=3, logit_bias=FEW_TOKENS)
    drafting = structs.replace(plain, prompt_lookup_tokens=4)
    prompts = prompts_of(model, loaded)
    expected, _ = tokens_of(loaded.core(), [(prompt, plain) for prompt in prompts])
    found, stats = tokens_of(loaded.core(), [(prompt, drafting) for prompt in prompts])
    assert found == expected
    assert 0 < stats.totals.accepted_tokens < stats.totals.drafted_tokens


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_draft_model_without_a_tower_drafts_for_those_who_show_no_image(
    model: TinyTower, stack: ExitStack, tmp_path: Path
) -> None:
    """It is the model itself."""
    path = write_tower_files(model, tmp_path / "m")
    (tmp_path / "draft").mkdir()
    draft = Path(shutil.copy(path, tmp_path / "draft"))
    loaded = load_as_engine(stack, "reference", path, OPTIONS, draft=draft)
    drafting = structs.replace(GREEDY, draft_model_tokens=4)
    prompts = prompts_of(model, loaded)
    without = replace(loaded, draft=None)
    expected, _ = tokens_of(without.core(), [(prompt, GREEDY) for prompt in prompts])
    found, stats = tokens_of(loaded.core(), [(prompt, drafting) for prompt in prompts])
    assert found == expected
    assert stats.totals.model_drafted_tokens > 0
    _, stats = tokens_of(loaded.core(), [(prompt, drafting) for prompt in prompts[:3]])
    assert stats.totals.model_drafted_tokens == 0


class Guesses:
    """Where the tokens that a predictor guesses lie on the axes, of the steps of a runner."""

    def __init__(self, loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[Int32Array, Int32Array]] = []
        submit = loaded.runner.submit

        def watch(step: StepInput) -> None:
            if step.predicts:
                self.found.append((step.positions, step.axis_positions))
            submit(step)

        monkeypatch.setattr(loaded.runner, "submit", watch)


def test_a_predictor_guesses_behind_images_at_their_positions(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the token alone, and no layer adds anything: each of its guesses is right."""
    path = write_predicting_tower(tmp_path / "m")
    loaded = load_as_engine(stack, "hip", path, OPTIONS, predicts=True)
    sampling = SamplingParams(max_tokens=20, temperature=0.9, seed=5)
    prompt = prompts_of(QWEN35, loaded)[0]
    without = load_as_engine(stack, "hip", path, OPTIONS)
    expected, _ = tokens_of(without.core(), [(prompt, sampling)])
    guesses = Guesses(loaded, monkeypatch)
    drafting = structs.replace(sampling, draft_model_tokens=4)
    found, stats = tokens_of(loaded.core(), [(prompt, drafting)])
    assert found == expected
    assert stats.totals.predictor_accepted_tokens == stats.totals.predictor_drafted_tokens > 10
    rows, columns = prompt.images[0].grid
    behind = max(rows, columns) // 2 - rows * columns // 4  # of what follows the image
    for positions, axes in guesses.found:
        np.testing.assert_array_equal(axes, np.repeat(positions[:, None] + behind, 3, axis=1))


def test_a_predictor_behind_layers_with_states_is_left_out(tmp_path: Path) -> None:
    path = write_predicting_tower(tmp_path / "m", ends_with_states=True)
    with open_checkpoint(path, predicts=True) as checkpoint:
        assert not checkpoint.config.predicts


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("model", [GEMMA3, QWEN35, *MODELS], ids=lambda model: model.name)
def test_two_devices_answer_about_images_as_one(
    model: TinyTower, stack: ExitStack, tmp_path: Path
) -> None:
    """The tower is on the first; its rows, and positions in images, reach both."""
    text = {**model.config["text_config"], "vocab_size": 104, "intermediate_size": 192}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    if "num_global_key_value_heads" in text:
        text["num_global_key_value_heads"] = 2
    if "linear_num_value_heads" in text:
        text |= {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    text.setdefault("head_dim", model.config["text_config"]["hidden_size"] // 2)  # as it is
    split = replace(model, seed=34, config={**model.config, "text_config": text})
    path = write_tower_folder(split, tmp_path / "m")
    answers = []
    for ranks in (1, RANKS):
        loaded = load_as_engine(stack, "hip", path, replace(OPTIONS, tensor_parallel=ranks))
        requests = [(prompt, GREEDY) for prompt in prompts_of(model, loaded)[:2]]
        found, stats = tokens_of(loaded.core(), requests)
        assert stats.totals.image_tiles == 2
        answers.append(found)
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]
