"""The sizes of a step, from which the place of every input follows, and which a graph is for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import MAX_KEPT_STATES, StepInput


class PredictorUse(Enum):
    """The work of a predictor in a step."""

    NONE = auto()  # there is none
    FILL = auto()  # its cache is filled
    DRAFT = auto()  # it computes the step in place of the model


class StateLaunch(NamedTuple):
    """Sequences of a step that layers with states take in one launch."""

    sequences: int
    longest: int  # new tokens of the longest


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Sizes of a step's arrays; those of a graph are larger than most of the steps it serves."""

    tokens: int
    sequences: int
    rows: int
    blocks: int  # of the longest sequence
    decodes: int  # sequences with one new token
    prefills: int  # sequences with several
    longest_prefill: int  # new tokens of the longest of those
    prefill_tokens: tuple[int, ...] = ()  # of each of several, if they are not all as many
    # Of a model with states, in their order; the sequences are numbered by `in_turn`.
    state_launches: tuple[StateLaunch, ...] = ()
    # Where each token of a step that checks drafts is a sequence of its own (`run/checked_drafts`),
    # the sequences as layers with states take them, and new tokens of the longest.
    checked: int = 0
    longest_checked: int = 0
    lora_tiles: int = 0  # of rows with one adapter: see `adapters.tile_rows`
    sums: int = 0  # ranges of hidden states
    window_groups: int = 0  # of layers, with block tables of their own
    has_axes: bool = False  # positions have several, and `rope_rows` says what tokens rotate by
    has_places: bool = False  # of patches, between those of a table
    tile_windows: int = 0  # in which patches see each other
    longest_window: int = 0  # patches of the largest
    both_ways: bool = False  # some tokens see others behind them
    has_teams: bool = False  # decodes share the blocks at their fronts (`run/teams.py`)
    reads_ends: bool = False  # logits are of no other tokens than the last of a sequence
    reads_all: bool = False  # logits are of all tokens, in their order
    predictor: PredictorUse = PredictorUse.NONE

    @property
    def tokens_of_prefills(self) -> tuple[int, ...]:
        """The new tokens of each sequence that has several."""
        return self.prefill_tokens or (self.longest_prefill,) * self.prefills


def reads_ends(step: StepInput) -> bool:
    """Returns whether logits are needed of the last new tokens of sequences alone."""
    return set(step.logit_rows.tolist()).issubset((step.query_start[1:] - 1).tolist())


def reads_all(step: StepInput) -> bool:
    """Returns whether logits are needed of all tokens, in their order."""
    return np.array_equal(step.logit_rows, np.arange(step.num_tokens))


def in_turn(step: StepInput) -> tuple[Int32Array, tuple[StateLaunch, ...]]:
    """Returns sequences in the order in which layers with states take them, and its launches.

    Parts of one sequence follow each other. Those of one turn are apart by how many tokens they
    have: one, few, or so many that chunks may take them.
    """
    if step.num_sequences == 1:  # most prompts; what sorts several takes 50 us
        return np.zeros(1, np.int32), (StateLaunch(1, step.num_tokens),)
    counts, turns = step.new_tokens, step.turns
    kinds = 3 * turns + (counts > 1) + (counts > MAX_KEPT_STATES)
    order = np.argsort(kinds, kind="stable").astype(np.int32)
    starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    longest = np.maximum.reduceat(counts[order], starts).tolist()
    sizes = np.diff(starts, append=len(order)).tolist()
    return order, tuple(map(StateLaunch, sizes, longest))
