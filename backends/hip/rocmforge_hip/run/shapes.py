"""The shapes of steps: those of graphs that have room for them, or their own."""

from __future__ import annotations

from typing import Final

import numpy as np

from rocmforge.backend.step import MAX_KEPT_STATES, StepInput
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.ops.step.shape import (
    PredictorUse,
    StateLaunch,
    StepShape,
    in_turn,
    reads_all,
    reads_ends,
)
from rocmforge_hip.weights.adapters import most_tiles, tile_rows
from rocmforge_hip.weights.formats import ceil_div, round_up

MIN_GRAPH_BLOCKS: Final = 8
"""Blocks of the longest sequence that the smallest graphs have room for."""
_CHECKED_TOKENS: Final = 8
"""Of graphs that check drafts of models with states, tokens of a sequence: multiples of this."""
PROMPT_SIZES: Final = (8, 16, 32, MAX_KEPT_STATES, 64, 128, *range(192, 513, 64))
"""New tokens of a prompt that graphs have room for; longer ones keep a device busy.

States are taken in one after the other up to MAX_KEPT_STATES, and then in chunks. From 64 on,
padding fills tiles of products that are begun anyway."""
_MOST_BESIDE: Final = 128
"""Tokens of a step with decodes that graphs have room for, since sums of sizes fill no tiles."""
_BUCKETS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class StepShapes:
    """Finds the shapes of the steps of a model.

    Args:
        limits: Of a step.
        predicts: Whether the model has a predictor.
        has_axes: Whether its positions have axes.
    """

    def __init__(self, limits: StepLimits, *, predicts: bool, has_axes: bool) -> None:
        self._limits = limits
        self._sizes = graph_sizes(limits.sequences)
        self._predicts = predicts
        self._has_axes = has_axes

    def exact(self, step: StepInput) -> StepShape:
        """Returns the shape of a step that is not a graph's, without padding."""
        return exact_shape(step, self._predictor(step), has_axes=self._has_axes)

    def of_graph(
        self, step: StepInput, whole: StepInput, *, prompts: bool = True
    ) -> StepShape | None:
        """Returns the shape of the graph for a step, None if it is none of a graph's.

        Graphs are for decodes, and for a short part of one prompt, alone or beside decodes.

        Args:
            step: The step.
            whole: What it was before `as_decodes`.
            prompts: Whether there are graphs for prompts.
        """
        if step.goes_on.any():
            return None  # one launch takes all of a graph
        if len(step.hidden_ranges) or len(step.embedding_tokens):
            return None
        if step.num_tokens > step.num_sequences:
            return self._of_prompt(step) if prompts else None
        count = step.num_sequences
        if len(step.logit_rows) != count:
            return None
        size = self._size_for(count)
        checked = longest_checked = 0
        if step is not whole and len(whole.state_reads):
            checked = self._size_for(whole.num_sequences)
            longest_checked = _longest_checked(int(whole.new_tokens.max()))
        return StepShape(
            tokens=size,
            sequences=size,
            rows=size,
            blocks=self._blocks_for(step, 2),
            decodes=size,
            prefills=0,
            longest_prefill=0,
            lora_tiles=most_tiles(size, self._limits.adapters) if len(step.adapters) else 0,
            predictor=self._predictor(step),
            checked=checked,
            longest_checked=longest_checked,
            window_groups=len(step.window_tables),
            has_axes=self._has_axes,
            reads_all=reads_all(step),
        )

    def _of_prompt(self, step: StepInput) -> StepShape | None:
        """Returns the shape of the graph for a part of one prompt, and decodes if there are."""
        counts, limits = step.new_tokens, self._limits
        longest, decodes = int(counts.max()), step.num_sequences - 1
        if step.num_tokens != longest + decodes or longest > PROMPT_SIZES[-1]:
            return None  # there are several
        if decodes >= limits.sequences or len(step.logit_rows) > step.num_sequences:
            return None
        longest = next(size for size in PROMPT_SIZES if longest <= size)
        decodes = min(self._size_for(decodes), limits.sequences - 1) if decodes else 0
        if longest + decodes > min(limits.tokens, _MOST_BESIDE if decodes else PROMPT_SIZES[-1]):
            return None
        of_decodes = (StateLaunch(decodes, 1),) if decodes else ()
        return StepShape(
            tokens=decodes + longest,
            sequences=decodes + 1,
            rows=decodes + 1,
            blocks=self._blocks_for(step, 4),
            decodes=decodes,
            prefills=1,
            longest_prefill=longest,
            state_launches=(*of_decodes, StateLaunch(1, longest)) if len(step.state_reads) else (),
            lora_tiles=(
                most_tiles(decodes + longest, limits.adapters) if len(step.adapters) else 0
            ),
            predictor=self._predictor(step),
            window_groups=len(step.window_tables),
            has_axes=self._has_axes,
            reads_ends=reads_ends(step),
        )

    def _blocks_for(self, step: StepInput, growth: int) -> int:
        """Returns the blocks of a sequence that the smallest graph for a step has room for.

        Args:
            step: The step.
            growth: How many times as much the next larger graph has room for.
        """
        needed = ceil_div(int(step.context_len.max()), BLOCK_TOKENS)
        blocks = MIN_GRAPH_BLOCKS
        while blocks < needed:
            blocks *= growth
        return min(blocks, ceil_div(self._limits.context, BLOCK_TOKENS))

    def _size_for(self, sequences: int) -> int:
        """Returns the sequences of the smallest graph that has room for so many."""
        return next(size for size in self._sizes if sequences <= size)

    def _predictor(self, step: StepInput) -> PredictorUse:
        if not self._predicts:
            return PredictorUse.NONE
        return PredictorUse.DRAFT if step.predicts else PredictorUse.FILL


def _longest_checked(tokens: int) -> int:
    """Returns the tokens of a sequence that a graph has room for which checks so many of one."""
    return min(round_up(tokens, _CHECKED_TOKENS), MAX_KEPT_STATES)


def graph_sizes(most: int) -> tuple[int, ...]:
    """Returns the sequences that graphs have room for, ascending, up to the most of a step."""
    return (*(size for size in _BUCKETS if size < most), most)


def exact_shape(
    step: StepInput, predictor: PredictorUse = PredictorUse.NONE, *, has_axes: bool = False
) -> StepShape:
    """Returns the shape without padding, of a step that is not a graph's."""
    lengths = step.new_tokens
    decodes = int((lengths == 1).sum())
    prefills = lengths[lengths > 1].tolist()
    return StepShape(
        tokens=step.num_tokens,
        sequences=step.num_sequences,
        rows=len(step.logit_rows),
        # Without columns, there is no cache.
        blocks=ceil_div(int(step.context_len.max()), BLOCK_TOKENS) if step.block_table.size else 0,
        decodes=decodes,
        prefills=len(prefills),
        longest_prefill=int(lengths.max()),
        prefill_tokens=tuple(prefills) if len(prefills) > 1 else (),
        state_launches=in_turn(step)[1] if len(step.state_reads) else (),
        lora_tiles=len(tile_rows(step.token_adapters)[0]) if len(step.adapters) else 0,
        sums=len(step.hidden_ranges),
        predictor=predictor,
        window_groups=len(step.window_tables),
        has_axes=has_axes,
        has_places=len(step.place_ids) > 0,
        tile_windows=max(len(step.tile_windows) - 1, 0),
        longest_window=int(np.diff(step.tile_windows).max(initial=0)),
        both_ways=len(step.seen_ends) > 0,
        reads_ends=(decodes < step.num_sequences and len(step.logit_rows) > 0 and reads_ends(step)),
        reads_all=reads_all(step),
    )
