"""Rows of embeddings of images: a tower makes them between the steps of the model beside it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import SamplingBatch, StepInput
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, TokenEvent
from rocmforge.engine.ipc.prompt import EmbeddingSpan, ImageSpan, Prompt, TokenSpan, token_span
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.waiting.held import HeldRequests
from rocmforge.latest_used import LatestUsed
from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import (
    added_places,
    between_places,
    normalised,
    patch_axes,
    patch_positions,
    window_order,
)

KEPT_BYTES: Final = 256 << 20
"""Of rows that are kept for the next request that shows the same image."""

Rows = dict[bytes, Float32Array | None]
"""Of the tiles of a request, by identity; None while the tower has not made them."""


class WaitingImages(HeldRequests[Rows]):
    """Holds requests with images until their rows are there, in order of arrival.

    The tower computes one tile at a time, and a tile that several requests show once. Rows of the
    tiles that were shown last are kept. Who holds this calls `advance` once for each step, which
    waits for one tile at most: so long does a step of the model wait, if its device is slow.

    Args:
        tower: The loaded tower.
        processor: Of the model.
        totals: Counts tiles.
        kept_bytes: Most bytes of rows that are kept for others.
    """

    def __init__(
        self,
        tower: Runner,
        processor: ProcessorConfig,
        totals: Totals,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        super().__init__()
        self._tower = tower
        self._processor = processor
        self._totals = totals
        self._kept: LatestUsed[bytes, Float32Array] = LatestUsed(kept_bytes)  # by identity
        self._running: ImageSpan | None = None
        self._next_step_id = 0

    def add(self, request: GenerateRequest) -> None:
        """Takes a request with images."""
        rows: Rows = {}
        for span in request.prompt.images:
            if span.identity not in rows:
                rows[span.identity] = self._kept.find(span.identity)
        self._totals.images_found += sum(each is not None for each in rows.values())
        self._held[request.request_id] = request, rows

    def advance(self, now_ns: int) -> list[TokenEvent]:
        """Takes the rows of the tile that was begun last, and begins the next one.

        Returns:
            The ends of requests whose images became numbers that are none.

        Raises:
            EngineError: The tower's device failed.
        """
        following, step = self._next(), None
        if following is not None:  # its numbers are made while the tower has another to compute
            step = image_step(self._next_step_id, following, self._processor)
        events = [] if self._running is None else self._collect(self._running, now_ns)
        self._running = None
        if following is not None and step is not None and self._asking(following.identity):
            self._tower.submit(step)
            self._running = following
            self._next_step_id += 1
        return events

    def take_ready(self) -> list[GenerateRequest]:
        """Gives up the requests all of whose rows are there, with these in their prompts."""
        ready = [
            structs.replace(request, prompt=self._with_rows(request.prompt, rows))
            for request, rows in self._held.values()
            if all(each is not None for each in rows.values())
        ]
        for request in ready:
            del self._held[request.request_id]
        return ready

    def _next(self) -> ImageSpan | None:
        """Returns the first tile that has no rows yet, and that the tower does not compute now."""
        running = None if self._running is None else self._running.identity
        for request, rows in self._held.values():
            for span in request.prompt.images:
                if rows[span.identity] is None and span.identity != running:
                    return span
        return None

    def _asking(self, identity: bytes) -> list[tuple[int, Rows]]:
        """Returns the requests that show a tile, by number, and their rows."""
        return [(number, rows) for number, (_, rows) in self._held.items() if identity in rows]

    def _collect(self, span: ImageSpan, now_ns: int) -> list[TokenEvent]:
        output = self._tower.collect()
        self._totals.image_tiles += 1
        self._totals.tower_ns += output.device_ns
        found, asking = output.hidden, self._asking(span.identity)
        assert found is not None, "a tower gives rows of embeddings"
        if not _is_finite(found):
            message = "The model computed NaN or infinity of an image of this request."
            return [self._end(number, FinishReason.ERROR, now_ns, message) for number, _ in asking]
        found = in_order(found, span, self._processor)
        for _, rows in asking:
            rows[span.identity] = found
        self._kept.keep(span.identity, found, found.nbytes)
        return []

    def _with_rows(self, prompt: Prompt, rows: Rows) -> Prompt:
        """Returns the prompt with rows of embeddings where images were."""
        processor = self._processor

        def made(span: ImageSpan) -> Iterator[TokenSpan | EmbeddingSpan]:
            found, merge = rows[span.identity], processor.merge
            assert found is not None, "the request waits for it"
            data = found.reshape(-1).view(np.uint8).data
            whole = EmbeddingSpan(
                rows=data,
                num_rows=span.num_rows,
                identity=span.identity,
                placeholder=span.placeholder,
                both_ways=span.both_ways,
                grid=(span.grid[0] // merge, span.grid[1] // merge)
                if processor.has_axes
                else (0, 0),
            )
            if not span.breaks:
                yield whole
                return
            count, size = span.num_rows // span.lines, len(data) // span.lines
            for line in range(span.lines):
                if line:
                    yield token_span(span.breaks)
                own = whole.identity + line.to_bytes(4, "little")
                part = data[line * size : (line + 1) * size]
                yield structs.replace(whole, rows=part, num_rows=count, identity=own)

        spans = (
            made(span) if isinstance(span, ImageSpan) else iter((span,)) for span in prompt.spans
        )
        return Prompt(spans=tuple(chain.from_iterable(spans)))


def _is_finite(rows: Float32Array) -> bool:
    """Returns whether no number is NaN or infinity, without an array of answers as a rule."""
    flat = rows.reshape(-1)
    with np.errstate(all="ignore"):  # a sum may overflow where no number is infinite
        return bool(np.isfinite(np.dot(flat, flat))) or bool(np.isfinite(flat).all())


def image_step(step_id: int, span: ImageSpan, processor: ProcessorConfig) -> StepInput:
    """Returns the step in which a tower makes the rows of a tile."""
    count, rows = span.grid[0] * span.grid[1], span.num_rows
    bounds = np.linspace(0, count, rows + 1).astype(np.int32)
    patches: Float32Array = normalised(span.patches, processor)
    token_ids, places = patch_positions(span.grid, processor.merge), _places(span, processor)
    if processor.has_class:
        patches = np.pad(patches, ((0, 1), (0, 0)))
        token_ids = np.append(token_ids, np.int32(count))
    if processor.window:
        order, places["tile_windows"] = _windows(span, processor)
        turned = np.arange(count).reshape(rows, -1)[order].reshape(-1)
        patches, token_ids = patches[turned], token_ids[turned]
        for name in ("axis_positions", "place_ids", "place_shares"):
            places[name] = places[name][turned]
    tokens = len(token_ids)
    return StepInput(
        step_id=step_id,
        token_ids=token_ids,
        token_source=np.full(tokens, -1, np.int32),
        positions=np.arange(tokens, dtype=np.int32),
        slot_mapping=np.zeros(tokens, np.int64),
        query_start=np.array([0, tokens], np.int32),
        context_len=np.array([tokens], np.int32),
        block_table=np.zeros((1, 0), np.int32),
        logit_rows=np.zeros(0, np.int32),
        sampling=SamplingBatch.greedy(0),
        hidden_ranges=np.stack([bounds[:-1], bounds[1:]], axis=1),
        patches=patches,
        **places,
    )


def in_order(rows: Float32Array, span: ImageSpan, processor: ProcessorConfig) -> Float32Array:
    """Returns the rows of embeddings that the step of a tile has made, in the order of its prompt.

    Args:
        rows: In the order of the step, [rows, features].
        span: The tile.
        processor: Of the model.
    """
    if not processor.window:
        return rows
    found = np.empty_like(rows)
    found[_windows(span, processor)[0]] = rows
    return found


def _windows(
    span: ImageSpan, processor: ProcessorConfig
) -> tuple[npt.NDArray[np.intp], Int32Array]:
    return window_order(span.grid, processor.merge, processor.window)


def _places(span: ImageSpan, processor: ProcessorConfig) -> dict[str, Any]:
    """Returns where the patches of a tile lie, of a tower whose table has places of its own."""
    if not processor.places:
        return {}
    axes = patch_axes(span.grid, processor.merge)
    if processor.adds_places:
        ids, shares = added_places(axes, processor.places)
    else:
        ids, shares = between_places(axes, span.grid, processor.places)
    return {"axis_positions": axes, "place_ids": ids, "place_shares": shares}
