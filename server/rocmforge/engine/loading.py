"""Loads what an engine process serves: a model, and the draft model beside it."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from rocmforge.backend import registry
from rocmforge.backend.optional import MemoryEstimate, Planning
from rocmforge.backend.protocol import Backend, LoadOptions, ProgressCallback, Runner, RunnerInfo
from rocmforge.backend.registry import BackendChoice
from rocmforge.engine.cache.tiers.fingerprint import fingerprint_of
from rocmforge.engine.context import context_note, settle_context
from rocmforge.engine.draft.draft_memory import (
    both,
    draft_options,
    share_memory,
)
from rocmforge.engine.ipc.messages import Start
from rocmforge.engine.predictor_memory import PREDICTOR_LEFT_OUT, predictor_has_room
from rocmforge.errors import RocmForgeError, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.models.config import ModelConfig
from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.opening import check_unchanged, open_checkpoint

logger = logging.getLogger(__name__)

_PREDICTOR_DRAFTS: Final = "drafts tokens where that is faster; --draft-model none: never"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded models."""

    choice: BackendChoice
    runner: Runner
    draft: Runner | None
    tower: Runner | None = None
    images: ProcessorConfig | None = None  # how they are prepared for the tower
    whole_rows: int = 0  # as `VisionConfig.whole_rows`
    notes: tuple[str, ...] = ()  # of the model, beside its runner's
    fingerprint: bytes = b""  # of the model, 32 bytes; b"" = nobody wants to know

    @property
    def info(self) -> RunnerInfo:
        """The model's, with what an operator should know of it and of the draft model."""
        info = replace(
            self.runner.info,
            notes=(*self.notes, *self.runner.info.notes),
            images=None if self.tower is None else self.images,
        )
        if self.tower is not None:
            size = self.tower.info.weights_bytes / (1 << 20)
            note = f"tower        {size:,.0f} MiB of weights, a tile of an image at a time"
            info = replace(info, notes=(*info.notes, note))
        if self.draft is None:
            return info
        draft = self.draft.info
        device = f"device {draft.device.index} ({draft.device.name})"
        notes = (
            f"draft model  on {device}, context of {draft.max_context} tokens, "
            f"{draft.num_blocks} blocks",
            *(f"draft model  {note}" for note in draft.notes),
        )
        return replace(info, notes=(*info.notes, *notes))

    def close(self) -> None:
        """Frees everything."""
        for other in (self.draft, self.tower):
            if other is not None:
                with suppress(RocmForgeError):  # of a device that failed; the model's says so
                    other.close()
        self.runner.close()


def load(start: Start, progress: ProgressCallback) -> Loaded:
    """Chooses the backend and loads the models.

    Raises:
        RocmForgeError: they cannot be loaded.
    """
    choice = registry.choose(start.backend)
    path = Path(start.model)
    if start.identity is not None:
        check_unchanged(path, start.identity)
    progress("reading the header", 0.0)
    with ExitStack() as opened, ExitStack() as loading:
        mmproj = None if start.mmproj is None else Path(start.mmproj)
        opening = partial(open_checkpoint, path, start.options.adapters, mmproj=mmproj)
        model = opened.enter_context(opening(predicts=start.predicts))
        draft = None
        if start.draft is not None:
            draft = opened.enter_context(open_checkpoint(Path(start.draft)))
        tower, left_out = _load_tower(choice.backend, model, start, progress)
        if tower is not None:
            loading.callback(tower.close)
        options, notes = start.options, [*left_out]
        if start.drafts_without_predictor is not None:
            alone = opened.enter_context(opening())
            without = start.drafts_without_predictor
            has_room = _has_room(choice.backend, alone, model, options, without)
            if not has_room:
                model, options = alone, replace(options, draft_tokens=without)
            what = _PREDICTOR_DRAFTS if has_room else PREDICTOR_LEFT_OUT
            notes.append(f"predictor    {what}")
        options = _with_context(choice.backend, model, draft, options)
        if draft is None:
            loaded = Loaded(choice, choice.backend.load(model, options, progress), None)
        else:
            loaded = _load_both(choice, model, draft, options, progress)
        if start.tiers.folder is not None:
            loaded = replace(loaded, fingerprint=fingerprint_of(model, loaded.runner.info, options))
        if tower is not None and model.vision is not None:
            vision = model.vision
            loaded = replace(
                loaded, tower=tower, images=vision.processor, whole_rows=vision.whole_rows
            )
        loading.pop_all()
        trained = start.options.max_context
        if options.max_context != trained:
            notes.append(context_note(options.max_context, trained))
        return replace(loaded, notes=tuple(notes))


def _has_room(
    backend: Backend, alone: Checkpoint, model: Checkpoint, options: LoadOptions, drafts: int
) -> bool:
    """Returns whether there is room for a predictor; a backend that does not plan has some."""
    if not isinstance(backend, Planning):
        return True

    def estimate(each: Checkpoint, asked: LoadOptions) -> MemoryEstimate:
        return backend.estimate(each, asked, None)

    return predictor_has_room(alone, model, options, drafts, estimate)


def _load_tower(
    backend: Backend, model: Checkpoint, start: Start, progress: ProgressCallback
) -> tuple[Runner | None, tuple[str, ...]]:
    """Loads the tower before its model, whose cache takes what is left of the memory.

    Returns:
        None if there is none, or none that the backend has kernels for, unless it was asked for:
        text is served all the same. Then notes say why.
    """
    if model.tower is None:
        return None, ()
    try:
        runner = backend.load(
            model.tower,
            tower_options(start.options, model.tower.config),
            lambda stage, share: progress(f"tower: {stage}", share),
        )
    except (UnsupportedArchitecture, UnsupportedTensor) as error:
        if start.mmproj is not None:
            raise
        logger.warning("%s takes no images: %s", start.model, error.message)
        return None, (f"tower        left out, images are refused: {error.message}",)
    return runner, ()


def tower_options(options: LoadOptions, tower: ModelConfig) -> LoadOptions:
    """Returns the options of a tower: on the first device of the model, for a tile at a time."""
    return replace(
        draft_options(options),
        max_context=tower.max_context,
        least_context=None,
        max_sequences=1,
        max_batched_tokens=tower.max_context,
        kv_blocks=None,
    )


def _with_context(
    backend: Backend, model: Checkpoint, draft: Checkpoint | None, options: LoadOptions
) -> LoadOptions:
    """Returns the options with the context that fits; one that does not plan takes the whole."""
    if not isinstance(backend, Planning):
        return replace(options, least_context=None)

    def estimate(changed: LoadOptions) -> MemoryEstimate:
        own = backend.estimate(model, changed, None)
        if draft is None:
            return own
        return both(own, backend.estimate(draft, draft_options(changed), None))

    return settle_context(options, estimate)


def _load_both(
    choice: BackendChoice,
    model: Checkpoint,
    draft: Checkpoint,
    options: LoadOptions,
    progress: ProgressCallback,
) -> Loaded:
    options, for_draft = _share(choice.backend, model, draft, options)
    runner = choice.backend.load(model, options, progress)
    try:
        if for_draft.kv_blocks is None:
            info = runner.info
            for_draft = replace(for_draft, kv_blocks=info.num_blocks // (1 + info.window_groups))
        if runner.info.graphs == "failed":
            for_draft = replace(for_draft, graphs="off")
        drafting = choice.backend.load(
            draft, for_draft, lambda stage, share: progress(f"draft model: {stage}", share)
        )
    except BaseException:
        runner.close()
        raise
    return Loaded(choice, runner, drafting)


def _share(
    backend: Backend, model: Checkpoint, draft: Checkpoint, options: LoadOptions
) -> tuple[LoadOptions, LoadOptions]:
    """Returns the options of both, with the blocks that both have room for.

    A backend that does not plan decides of the model's cache alone; the draft model's is as large.
    """
    for_draft = draft_options(options)
    if not isinstance(backend, Planning):
        return options, for_draft
    estimate = backend.estimate(model, options, None)
    return share_memory(estimate, backend.estimate(draft, for_draft, None), options)
