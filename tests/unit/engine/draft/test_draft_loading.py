"""How a model and its draft model are loaded beside each other, and share the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from msgspec import structs

from rocmforge.backend.optional import HostedEstimate, MemoryEstimate
from rocmforge.backend.protocol import LoadOptions, ProgressCallback
from rocmforge.engine.draft.draft_memory import (
    draft_blocks,
    draft_options,
    share_memory,
    shared_blocks,
)
from rocmforge.engine.loading import load
from rocmforge.engine.predictor_memory import predictor_has_room
from rocmforge.errors import OutOfMemory
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.opening import open_checkpoint
from tests.data.models.text.tiny_models import by_name
from tests.support.engine.start import start_message
from tests.support.fakes.fake_backend import FakeBackend, FakeConfig, FakeRunner
from tests.support.models.any_model import any_model
from tests.support.models.predicting import write_predicting
from tests.unit.engine.helpers import options

MODEL: Final = MemoryEstimate(
    device="a device",
    free=10_000,
    allowed=9_000,
    weights=4_000,
    activations=500,
    kv_block=30,
    block_size=16,
    kv_dtype="f16",
    context=256,  # 16 blocks
)
DRAFT: Final = replace(MODEL, weights=400, activations=100, kv_block=10)
PREDICTING: Final = replace(MODEL, weights=5_300, kv_block=33)
FEW: Final = options(max_sequences=4)
START: Final = start_message(
    "tests.unit.engine.draft.test_draft_loading:planning",
    str(any_model()),
    FEW,
    draft=str(any_model("draft")),
)


class NotingFake(FakeBackend):
    """A backend that says in a note what it loads."""

    def note(self, checkpoint: Checkpoint, options: LoadOptions) -> str:
        raise NotImplementedError

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> FakeRunner:
        runner = super().load(checkpoint, options, progress)
        runner.info = replace(runner.info, notes=(self.note(checkpoint, options),))
        return runner


class PlanningFake(NotingFake):
    """A backend that plans its memory."""

    name = "planning"

    def estimate(
        self, checkpoint: Checkpoint, options: LoadOptions, memory: int | None
    ) -> MemoryEstimate:
        return DRAFT if checkpoint.path.stem == "draft" else MODEL

    def note(self, checkpoint: Checkpoint, options: LoadOptions) -> str:
        return f"{options.kv_blocks} blocks, {options.memory_utilization:.1f}"


def planning() -> PlanningFake:
    return PlanningFake()


class PredictingFake(NotingFake):
    """A backend that has room for few sequences more."""

    name = "predicting"

    def estimate(
        self, checkpoint: Checkpoint, options: LoadOptions, memory: int | None
    ) -> MemoryEstimate:
        return PREDICTING if checkpoint.config.predicts else MODEL

    def note(self, checkpoint: Checkpoint, options: LoadOptions) -> str:
        return f"{checkpoint.config.predicts}, {options.draft_tokens} draft tokens"


def predicting() -> PredictingFake:
    return PredictingFake()


class FailingDraft(FakeBackend):
    """A backend that loads models, but no draft models."""

    loaded: FakeRunner | None = None

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> FakeRunner:
        if checkpoint.path.stem == "draft":
            raise OutOfMemory("no room for it")
        self.loaded = super().load(checkpoint, options, progress)
        return self.loaded


def test_each_sequence_has_room_in_both_caches() -> None:
    assert shared_blocks(MODEL, DRAFT, replace(FEW, max_sequences=64)) == 4_000 // 40
    assert shared_blocks(MODEL, DRAFT, FEW) == 4 * 16
    assert shared_blocks(MODEL, DRAFT, replace(FEW, kv_blocks=77)) == 77
    assert draft_blocks(64, replace(DRAFT, context=64), FEW) == 4 * 4


def test_a_cache_that_releases_windows_gets_what_the_other_one_leaves() -> None:
    """A sequence takes 16 blocks of both, and 120 bytes for its windows; a step takes 200."""
    model = replace(MODEL, window_groups=2, kv_windows=120, kv_step=200)
    for sequences, blocks in ((4, 64), (64, 80)):
        wanted = replace(FEW, max_sequences=sequences)
        of_model, of_draft = share_memory(model, DRAFT, wanted)
        assert (of_model.kv_blocks, of_draft.kv_blocks) == (None, blocks)
        left = model.allowed * of_model.memory_utilization / wanted.memory_utilization
        assert left == pytest.approx(model.allowed - 500 - blocks * 10)
        assert left - 4_500 >= blocks * 30 + blocks // 16 * 120 + 200
    assert shared_blocks(model, DRAFT, replace(FEW, kv_blocks=40)) == 40  # of 100 bytes each
    with pytest.raises(OutOfMemory, match="The model and its draft model need"):
        shared_blocks(model, DRAFT, replace(FEW, kv_blocks=41))


def test_a_draft_model_has_more_blocks_where_those_of_the_model_have_more_tokens() -> None:
    """As those of Gemma 4 have: as many tokens have a place in both caches."""
    model = replace(MODEL, block_size=64, kv_block=4 * 30, window_groups=2, kv_step=400)
    for wanted in (FEW, replace(FEW, kv_blocks=10)):
        of_model, of_draft = share_memory(model, DRAFT, wanted)
        blocks = shared_blocks(model, DRAFT, wanted)
        assert of_draft.kv_blocks == 4 * blocks
        left = model.allowed * of_model.memory_utilization / wanted.memory_utilization
        assert left == pytest.approx(model.allowed - 500 - 4 * blocks * 10)
    assert shared_blocks(model, DRAFT, replace(FEW, kv_blocks=10)) == 10  # of 400 bytes each
    with pytest.raises(OutOfMemory, match="The model and its draft model need"):
        shared_blocks(model, DRAFT, replace(FEW, kv_blocks=11))


@pytest.mark.parametrize(
    ("draft", "wanted"),
    [
        (replace(DRAFT, weights=5_000), FEW),
        (DRAFT, replace(FEW, kv_blocks=101)),
        (replace(DRAFT, kv_block=400), FEW),
    ],
)
def test_what_does_not_fit_together_is_refused(draft: MemoryEstimate, wanted: LoadOptions) -> None:
    with pytest.raises(OutOfMemory, match="The model and its draft model need"):
        shared_blocks(MODEL, draft, wanted)


@pytest.mark.parametrize(
    ("together", "sequences", "has_room"),
    [
        (PREDICTING, 64, False),  # 96 blocks of 150
        (replace(PREDICTING, weights=5_100), 64, True),  # 103
        (replace(PREDICTING, weights=6_000), 4, True),  # 64, all that four sequences can fill
        (replace(PREDICTING, context=240), 4, False),
        (
            replace(PREDICTING, hosted=HostedEstimate(seats=2, experts=8, host=9, token_bytes=1)),
            *(4, False),
        ),
    ],
)
def test_a_predictor_that_nobody_asked_for_costs_no_context_and_little_of_the_cache(
    together: MemoryEstimate, sequences: int, has_room: bool, tmp_path: Path
) -> None:
    path = write_predicting(by_name("glm4moe"), tmp_path / "m.gguf")
    asked: list[tuple[bool, int]] = []

    def estimate(checkpoint: Checkpoint, options: LoadOptions) -> MemoryEstimate:
        asked.append((checkpoint.config.predicts, options.draft_tokens))
        return together if checkpoint.config.predicts else MODEL

    wanted = replace(FEW, max_sequences=sequences, draft_tokens=5)
    with open_checkpoint(path) as alone, open_checkpoint(path, predicts=True) as model:
        assert predictor_has_room(alone, model, wanted, 2, estimate) is has_room
    assert set(asked) == {(False, 2), (True, 5)}


@pytest.mark.parametrize(
    ("sequences", "loaded", "note"),
    [(4, "True, 5 draft tokens", "drafts tokens"), (64, "False, 2 draft tokens", "left out")],
)
def test_a_predictor_is_loaded_if_it_has_room(
    sequences: int, loaded: str, note: str, tmp_path: Path
) -> None:
    start = start_message(
        "tests.unit.engine.draft.test_draft_loading:predicting",
        str(write_predicting(by_name("glm4moe"), tmp_path / "m.gguf")),
        replace(FEW, max_sequences=sequences, draft_tokens=5),
    )
    start = structs.replace(start, predicts=True, drafts_without_predictor=2)
    found = load(start, lambda stage, share: None)
    assert found.runner.info.notes == (loaded,)
    assert found.info.notes[0].startswith(f"predictor    {note}")


def test_a_draft_model_is_loaded_whole_onto_the_first_device() -> None:
    split = replace(FEW, device="2,3", tensor_parallel=2)
    assert draft_options(split) == replace(FEW, device="2")


def test_both_are_loaded_as_planned_and_closed_together() -> None:
    stages: list[str] = []
    loaded = load(START, lambda stage, share: stages.append(stage))
    assert loaded.info.notes[0] == "64 blocks, 0.9"
    assert loaded.info.notes[-1] == "draft model  64 blocks, 1.0"
    assert any(stage.startswith("draft model: ") for stage in stages)
    loaded.close()
    assert isinstance(loaded.runner, FakeRunner)
    assert isinstance(loaded.draft, FakeRunner)
    assert loaded.runner.closed
    assert loaded.draft.closed


def test_without_a_plan_the_drafts_cache_is_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []

    class Noting(FakeBackend):
        def load(
            self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
        ) -> FakeRunner:
            seen.append(options.kv_blocks)
            return super().load(checkpoint, options, progress)

    use(monkeypatch, Noting)
    load(START, lambda stage, share: None)
    assert seen == [None, FakeConfig().num_blocks]


def test_a_draft_uses_no_graphs_where_the_models_were_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    class Stale(FakeBackend):
        def load(
            self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
        ) -> FakeRunner:
            seen.append(options.graphs)
            runner = super().load(checkpoint, options, progress)
            runner.info = replace(runner.info, graphs="failed")
            return runner

    use(monkeypatch, Stale)
    load(structs.replace(START, options=replace(FEW, graphs="auto")), lambda stage, share: None)
    assert seen == ["auto", "off"]


def test_a_draft_that_cannot_be_loaded_takes_the_model_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = FailingDraft()
    use(monkeypatch, lambda: backend)
    with pytest.raises(OutOfMemory, match="no room"):
        load(START, lambda stage, share: None)
    assert backend.loaded is not None
    assert backend.loaded.closed


def use(monkeypatch: pytest.MonkeyPatch, create: Callable[[], FakeBackend]) -> None:
    """Makes `load` find this backend."""
    monkeypatch.setattr("tests.unit.engine.draft.test_draft_loading.planning", create)
