"""Models that take images, loaded with their towers, and prompts with images for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from msgspec import structs

from rocmforge.backend.protocol import Backend, LoadOptions, Runner
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.prompt import ImageSpan, Prompt, TokenSpan, image_span, token_span
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.loading import load, tower_options
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.waiting.images import KEPT_BYTES, WaitingImages
from rocmforge.models.vision.config import VisionConfig
from rocmforge.models.vision.image import ImageTile
from rocmforge.opening import open_checkpoint
from rocmforge.pixels.processors.patches import tile_of
from tests.data.models.towers.tiny_tower import TinyTower
from tests.data.models.towers.tower_files import pixels
from tests.support.engine.start import start_message
from tests.support.fakes.timed import Timed

_LARGEST = 20
"""Rows of embeddings of the largest tile of a tiny model whose rows see each other both ways."""
STEP_NS = 1_000_000
"""Much more than the host takes, by the clock of `Loaded.core`."""


@dataclass(frozen=True)
class Loaded:
    """A model and its tower."""

    runner: Runner
    tower: Runner
    vision: VisionConfig
    options: LoadOptions
    draft: Runner | None = None

    def core(self, totals: Totals | None = None, kept_bytes: int = KEPT_BYTES) -> EngineCore:
        """A core for both, with a clock that moves when it is looked at."""
        clock, totals = count(1), totals or Totals()
        limits = SchedulerLimits(
            max_sequences=self.options.max_sequences,
            max_batched_tokens=self.options.max_batched_tokens,
            max_waiting=1000,
            whole_rows=min(self.vision.whole_rows, _LARGEST),
        )
        images = WaitingImages(self.tower, self.vision.processor, totals, kept_bytes)
        return EngineCore(
            self.runner, limits, lambda: next(clock), totals, draft_runner=self.draft, images=images
        )


def load_both(stack: ExitStack, backend: Backend, folder: Path, options: LoadOptions) -> Loaded:
    """Loads a folder's model and its tower."""
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tower is not None
        assert checkpoint.vision is not None
        own = tower_options(options, checkpoint.tower.config)
        tower = backend.load(checkpoint.tower, own, lambda stage, share: None)
        stack.enter_context(closing(tower))
        runner = backend.load(checkpoint, options, lambda stage, share: None)
        stack.enter_context(closing(runner))
        return Loaded(runner, tower, checkpoint.vision, options)


def load_as_engine(
    stack: ExitStack,
    backend: str,
    path: Path,
    options: LoadOptions,
    *,
    draft: Path | None = None,
    predicts: bool = False,
) -> Loaded:
    """Loads what an engine process does; all steps take as long, so that drafting pays."""
    start = start_message(backend, str(path), options, None if draft is None else str(draft))
    start = structs.replace(start, predicts=predicts)
    loaded = stack.enter_context(closing(load(start, lambda stage, share: None)))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.vision is not None
        assert loaded.tower is not None
        assert loaded.runner.info.predicts == predicts
        return Loaded(
            Timed(loaded.runner, STEP_NS),
            loaded.tower,
            checkpoint.vision,
            options,
            draft=loaded.draft,
        )


def tile(model: TinyTower, number: int, vision: VisionConfig) -> ImageTile:
    """A tile of a tiny model, as its processor would cut it."""
    return tile_of(pixels(model, number), vision.processor)


def shown(model: TinyTower, parts: Sequence[Sequence[int] | int], vision: VisionConfig) -> Prompt:
    """A prompt of token ids and of tiles by their numbers."""
    spans: list[TokenSpan | ImageSpan] = []
    for part in parts:
        if isinstance(part, int):
            found = tile(model, part, vision)
            span = image_span(found, vision.placeholder, both_ways=vision.both_ways)
            if model.line_ends:
                lines = found.grid[0] // model.merge
                span = structs.replace(span, lines=lines, breaks=model.line_ends)
            spans.append(span)
        else:
            spans.append(token_span(part))
    return Prompt(spans=tuple(spans))
