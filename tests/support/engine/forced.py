"""What a model says behind given tokens: decoded one by one, or checked as draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.step import StepOutput
from tests.backend.driving import Chunk, Driver, Want


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The most probable tokens behind each token, and their log-probabilities: [S, N, K]."""

    ids: Int32Array
    logprobs: Float32Array

    @property
    def leads(self) -> Float32Array:
        """By how much the first of them leads, [S, N]."""
        lead: Float32Array = self.logprobs[..., 0] - self.logprobs[..., 1]
        return lead

    def same(self, other: Rows) -> npt.NDArray[np.bool_]:
        """Whether a greedy draw gives the same, [S, N]."""
        same: npt.NDArray[np.bool_] = self.ids[..., 0] == other.ids[..., 0]
        return same

    def differences(self, other: Rows, most: int = 2) -> Float32Array:
        """Differences of the log-probabilities of its first tokens, [S, N, most].

        Infinite for a token that is none of the other's most probable ones.
        """
        places = self.ids[..., :most, None] == other.ids[..., None, :]
        theirs = np.where(places, other.logprobs[..., None, :], -np.inf).max(axis=-1)
        differences: Float32Array = theirs - self.logprobs[..., :most]
        return differences


class Forcing:
    """Sequences whose tokens are given, in blocks and slots of states of their own.

    Args:
        driver: of a loaded model.
        prompts: of S sequences; they are computed in one step.
        tokens: behind the prompts, [S, N].
        first: sequences whose blocks are left alone.
        room: tokens of a sequence that there are blocks for.
        top: most probable tokens that are asked for, K.
    """

    def __init__(
        self,
        driver: Driver,
        prompts: Sequence[Sequence[int]],
        tokens: Int32Array,
        *,
        first: int = 0,
        room: int | None = None,
        top: int = 4,
    ) -> None:
        self._driver = driver
        self._tokens = tokens
        self._top = top
        self._lengths = [len(prompt) for prompt in prompts]
        size = driver.runner.info.block_size
        most = room or max(self._lengths) + tokens.shape[1]
        each = -(-most // size)
        self._blocks = [
            range((first + row) * each, (first + row + 1) * each) for row in range(len(prompts))
        ]
        self._slots = [first + row for row in range(len(prompts))]
        self._spare = first + len(prompts)
        driver.run(
            *(
                Chunk(tokens=prompt, blocks=blocks, wants=(), state_slot=slot)
                for prompt, blocks, slot in zip(prompts, self._blocks, self._slots, strict=True)
            )
        )

    def chunks(self, start: int, count: int) -> list[Chunk]:
        """The next tokens of each sequence, with logits behind all of them.

        States after each are kept: those after the last where those before the first were.
        """
        between = count - 1
        return [
            Chunk(
                tokens=self._tokens[row, start : start + count].tolist(),
                start=length + start,
                blocks=blocks,
                wants=self._wants(count),
                state_slot=slot,
                kept_states={
                    token: self._spare + row * between + token for token in range(between)
                },
            )
            for row, (length, blocks, slot) in enumerate(
                zip(self._lengths, self._blocks, self._slots, strict=True)
            )
        ]

    def decoded(self, *others: Forcing) -> Rows:
        """Decodes the tokens one by one, beside those of other sequences."""
        outputs = [
            self._driver.run(
                *(chunk for each in (self, *others) for chunk in each.chunks(position, 1))
            )
            for position in range(self._tokens.shape[1])
        ]
        return self._rows(outputs, 1)

    def checked(self, count: int) -> Rows:
        """Takes so many tokens in a step: a known one, and the others as draft tokens of it."""
        assert self._tokens.shape[1] % count == 0
        outputs = [
            self._driver.run(*self.chunks(position, count))
            for position in range(0, self._tokens.shape[1], count)
        ]
        return self._rows(outputs, count)

    def checked_with_rejected(self, accepted: int, rejected: int) -> Rows:
        """As `checked`, with wrong tokens behind those of each step that the next one takes back.

        The next step reads the states after the last accepted token, in the slot that they were
        kept in, and writes the others over.
        """
        outputs = []
        reads = self._slots
        count = accepted + rejected
        for position in range(0, self._tokens.shape[1], accepted):
            chunks = [
                replace(
                    _behind(chunk, rejected, read, self._spare + row * 2 * count, position),
                    wants=self._wants(count),
                )
                for row, (chunk, read) in enumerate(
                    zip(self.chunks(position, accepted), reads, strict=True)
                )
            ]
            reads = [chunk.kept_states[accepted - 1] for chunk in chunks]
            outputs.append(self._driver.run(*chunks))
        return self._rows(outputs, count, accepted)

    def _wants(self, count: int) -> list[Want]:
        return [Want(token=token, num_logprobs=self._top) for token in range(count)]

    def _rows(self, outputs: Sequence[StepOutput], count: int, used: int | None = None) -> Rows:
        sequences = len(self._lengths)

        def of(arrays: Sequence[Any]) -> Any:
            rows = [array[: sequences * count].reshape(sequences, count, -1) for array in arrays]
            return np.concatenate([each[:, : used or count] for each in rows], axis=1)

        return Rows(
            ids=of([output.top_ids for output in outputs]),
            logprobs=of([output.top_logprobs for output in outputs]),
        )


def _behind(chunk: Chunk, rejected: int, read: int, spare: int, position: int) -> Chunk:
    """The chunk with wrong tokens behind it, whose states go to other slots than are read."""
    tokens = [*chunk.tokens, *([0] * rejected)]
    count = len(tokens)
    turn = position // len(chunk.tokens) % 2
    slots = [spare + turn * count + token for token in range(count)]
    return replace(
        chunk,
        tokens=tokens,
        state_read=read,
        state_slot=slots[-1],
        kept_states=dict(enumerate(slots[:-1])),
    )
