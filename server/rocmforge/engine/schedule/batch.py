"""Turns the chunks of a step into the arrays a backend computes on. No policy."""

from __future__ import annotations

import numpy as np

from rocmforge.backend.arrays import Float32Array, Int32Array, UInt32Array
from rocmforge.backend.step import NO_ADAPTER, NO_SLOT, NO_SOURCE, SAMPLE, SamplingBatch, StepInput
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.processors import build_processors
from rocmforge.engine.sequence.sequence import LogitBias, SeenTokens, Status


def build_step(
    step_id: int, chunks: list[Chunk], block_size: int, *, masks_later: bool = False
) -> StepInput:
    """Lays out a step; see `StepInput` for the shapes.

    Args:
        step_id: counts up by one.
        chunks: not empty.
        block_size: tokens per KV block.
        masks_later: whether `build_masks` is called later, when all tokens are known.
    """
    counts = np.array([chunk.num_tokens for chunk in chunks], np.int32)
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    query_start = _offsets(counts)
    owner = np.repeat(np.arange(len(chunks)), counts)  # [T], the sequence of each token
    positions = np.arange(len(owner), dtype=np.int32) + (starts - query_start[:-1])[owner]
    block_table = _block_table(chunks)
    window_tables = _window_tables(chunks, block_table.shape[1])
    slots = np.zeros(len(owner), np.int64)
    window_slots = np.zeros((0, 0), np.int64)
    if block_table.size:  # else there is no cache
        columns, offsets = positions // block_size, positions % block_size
        slots = block_table[owner, columns].astype(np.int64) * block_size + offsets
    if window_tables.size:
        blocks = window_tables[:, owner, columns].astype(np.int64)
        window_slots = blocks * block_size + offsets
    token_source = np.full(len(owner), NO_SOURCE, np.int32)
    token_source[query_start[1:] - 1] = [chunk.source_row for chunk in chunks]
    rows = _Rows(chunks, query_start)
    embedding_tokens, embedding_rows = _embeddings(chunks, query_start)
    state_reads, state_writes = _states(chunks, query_start)
    return StepInput(
        step_id=step_id,
        token_ids=np.concatenate([chunk.tokens for chunk in chunks]),
        token_source=token_source,
        positions=positions,
        slot_mapping=slots,
        query_start=query_start,
        context_len=starts + counts,
        block_table=block_table,
        logit_rows=rows.tokens,
        sampling=rows.sampling(positions, masks_later=masks_later),
        hidden_ranges=_hidden_ranges(chunks, query_start),
        adapters=_adapters(chunks),
        state_reads=state_reads,
        state_writes=state_writes,
        window_tables=window_tables,
        window_slots=window_slots,
        embedding_tokens=embedding_tokens,
        embedding_rows=embedding_rows,
        seen_ends=_seen_ends(chunks, positions, query_start),
        axis_positions=_axis_positions(chunks, positions),
    )


def needs_masks(chunks: list[Chunk]) -> bool:
    """Returns whether a row of the step is constrained by a grammar."""
    return any([chunk.matcher is not None for chunk in chunks])


def _no_masks(chunks: list[Chunk]) -> UInt32Array:
    """Masks that allow everything."""
    num_words = next(chunk.matcher.num_words for chunk in chunks if chunk.matcher is not None)
    num_rows = sum([chunk.num_rows for chunk in chunks])
    return np.full((num_rows, num_words), 0xFFFFFFFF, np.uint32)


def build_masks(chunks: list[Chunk]) -> UInt32Array:
    """Builds the masks of allowed tokens, uint32 [L, ceil(V / 32)]; one row at least has one.

    The host knows the tokens before every row now. A sequence may have ended meanwhile: what its
    row draws is dropped.
    """
    matchers = [(chunk.matcher, chunk) for chunk in chunks if chunk.matcher is not None]
    allowed = _no_masks(chunks)
    for matcher, chunk in matchers:
        if chunk.sequence.status is not Status.FINISHED:
            rows = chunk.draw_rows
            matcher.fill_ahead(allowed[rows.start : rows.stop], chunk.draft_tokens)
    return allowed


def _hidden_ranges(chunks: list[Chunk], query_start: Int32Array) -> Int32Array:
    """Returns the tokens of the step whose hidden states are wanted, int32 [P, 2]."""
    ranges = []
    for chunk, offset in zip(chunks, query_start.tolist(), strict=False):
        if chunk.num_hidden:
            first = offset + chunk.hidden_start - chunk.start
            ranges.append((first, first + chunk.num_hidden))
    return np.array(ranges, np.int32).reshape(-1, 2)


def _adapters(chunks: list[Chunk]) -> Int32Array:
    """Returns the adapter of each sequence, int32 [B]; empty if none has one."""
    adapters = [chunk.sequence.sampling.adapter for chunk in chunks]
    return np.array([] if set(adapters) == {NO_ADAPTER} else adapters, np.int32)


def _states(chunks: list[Chunk], query_start: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Returns the slots of the states before each chunk, [B], and after each token, [T].

    Both are empty in a model without states.
    """
    if chunks[0].state_write == NO_SLOT:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    writes = np.full(query_start[-1], NO_SLOT, np.int32)
    for chunk, end in zip(chunks, query_start[1:].tolist(), strict=True):
        slots = *chunk.states_between, chunk.state_write
        writes[end - len(slots) : end] = slots
    return np.array([chunk.state_read for chunk in chunks], np.int32), writes


def _embeddings(
    chunks: list[Chunk], query_start: Int32Array
) -> tuple[Int32Array, tuple[Float32Array, ...]]:
    """Returns the tokens of the step that have rows of embeddings, [E], and those in pieces."""
    tokens: list[Int32Array] = []
    rows: list[Float32Array] = []
    has_any = any([chunk.sequence.embeddings is not None for chunk in chunks])
    for chunk, offset in zip(chunks, query_start.tolist(), strict=False) if has_any else ():
        embeddings = chunk.sequence.embeddings
        if embeddings is not None and chunk.start < chunk.sequence.num_prompt:
            positions, pieces = embeddings.between(chunk.start, chunk.start + chunk.num_tokens)
            tokens.append(positions + np.int32(offset - chunk.start))
            rows += pieces
    if not rows:
        return np.zeros(0, np.int32), ()
    return np.concatenate(tokens), tuple(rows)


def _axis_positions(chunks: list[Chunk], positions: Int32Array) -> Int32Array:
    """Returns the positions on axes of all tokens, [T, 3]; empty if all are their positions."""
    if not any([chunk.sequence.axes is not None for chunk in chunks]):
        return np.zeros((0, 0), np.int32)
    found, start = np.repeat(positions[:, None], 3, axis=1), 0
    for chunk in chunks:
        end = start + chunk.num_tokens
        if chunk.sequence.axes is not None:
            found[start:end] = chunk.sequence.axes.between(
                chunk.start, chunk.start + chunk.num_tokens
            )
        start = end
    return found


def _seen_ends(chunks: list[Chunk], positions: Int32Array, query_start: Int32Array) -> Int32Array:
    """Returns up to where each token sees, [T]; empty if none sees a token behind it."""
    found = np.zeros(0, np.int32)
    for chunk, offset in zip(chunks, query_start.tolist(), strict=False):
        embeddings = chunk.sequence.embeddings
        if embeddings is None or chunk.start >= chunk.sequence.num_prompt:
            continue
        end = chunk.start + chunk.num_tokens
        ends = embeddings.seen_ends(chunk.start, end)
        if ends is not None:
            assert ends[-1] == end, "a chunk ends within an image"
            found = found if len(found) else positions + np.int32(1)
            found[offset : offset + len(ends)] = ends
    return found


def _offsets(counts: Int32Array) -> Int32Array:
    """Start of each run of a concatenation, and its end."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _block_table(chunks: list[Chunk]) -> Int32Array:
    width = max([chunk.sequence.num_blocks for chunk in chunks])
    table = np.zeros((len(chunks), width), np.int32)
    for row, chunk in zip(table, chunks, strict=True):
        num_blocks = chunk.sequence.num_blocks
        row[:num_blocks] = chunk.sequence.block_ids[:num_blocks]
    return table


def _window_tables(chunks: list[Chunk], width: int) -> Int32Array:
    """Returns the block tables of each group of layers with a window, [G, B, M].

    The tables of a sequence are 0 where it holds no block. Without groups, nothing has a size.
    """
    if chunks[0].sequence.windows is None:
        return np.zeros((0, 0, 0), np.int32)
    tables = np.zeros((len(chunks[0].sequence.windows.tables), len(chunks), width), np.int32)
    for row, chunk in enumerate(chunks):
        windows = chunk.sequence.windows
        assert windows is not None, "it runs"
        tables[:, row, : windows.stop] = windows.tables[:, : windows.stop]
    return tables


class _Rows:
    """The logit rows of a step: which token each belongs to and what is wanted of it."""

    def __init__(self, chunks: list[Chunk], query_start: Int32Array) -> None:
        tokens: list[int] = []
        owners: list[int] = []
        targets: list[int] = []
        num_logprobs: list[int] = []
        starts = query_start.tolist()
        for i, chunk in enumerate(chunks):
            seq = chunk.sequence
            if chunk.num_scores:
                first = starts[i] + chunk.score_start - chunk.start
                tokens.extend(range(first, first + chunk.num_scores))
                successor = chunk.score_start + 1
                targets.extend(seq.tokens[successor : successor + chunk.num_scores].tolist())
                owners.extend([i] * chunk.num_scores)
                num_logprobs.extend([seq.sampling.prompt_logprobs] * chunk.num_scores)
            num_draws = len(chunk.draw_rows)
            tokens.extend(range(starts[i + 1] - num_draws, starts[i + 1]))
            targets.extend([SAMPLE] * num_draws)
            owners.extend([i] * num_draws)
            num_logprobs.extend([chunk.num_logprobs] * num_draws)
        self.tokens = np.array(tokens, np.int32)
        self._chunks = chunks
        self._owners = np.array(owners, np.intp)
        self._targets = np.array(targets, np.int32)
        self._num_logprobs = np.array(num_logprobs, np.int32)

    def sampling(self, positions: Int32Array, *, masks_later: bool) -> SamplingBatch:
        """Builds the sampling parameters of every row, given the positions of all tokens, [T]."""
        settings = np.array([chunk.sequence.settings for chunk in self._chunks], np.float32)
        temperature, top_k, top_p, min_p, repetition, presence, frequency = np.ascontiguousarray(
            settings[self._owners].T
        )
        seeds = np.array([chunk.sequence.sampling.seed for chunk in self._chunks], np.uint64)
        drawn = positions[self.tokens] + 1
        seen_offsets, seen_tokens, seen_counts = self._seen()
        bias_offsets, bias_tokens, bias_values = self._bias(drawn)
        return SamplingBatch(
            temperature=temperature,
            top_k=top_k.astype(np.int32),
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            seed=seeds[self._owners],
            position=drawn,
            num_logprobs=self._num_logprobs,
            target_ids=self._targets,
            seen_offsets=seen_offsets,
            seen_tokens=seen_tokens,
            seen_counts=seen_counts,
            bias_offsets=bias_offsets,
            bias_tokens=bias_tokens,
            bias_values=bias_values,
            processors=build_processors(self._chunks, drawn),
            allowed=self._allowed(masks_later=masks_later),
            is_masked_later=masks_later,
        )

    def _allowed(self, *, masks_later: bool) -> UInt32Array | None:
        if not needs_masks(self._chunks):
            return None
        return _no_masks(self._chunks) if masks_later else build_masks(self._chunks)

    def _seen(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Offsets, tokens and counts of the rows with a penalty. Rows that score have none."""
        lengths = np.zeros(len(self.tokens), np.int32)
        parts: list[SeenTokens] = []
        for chunk in self._chunks:
            seen = chunk.sequence.seen
            if seen is None:
                continue
            for i, row in enumerate(chunk.draw_rows):
                ahead = seen.ahead(chunk.draft_tokens[:i]) if i else seen
                lengths[row] = len(ahead.tokens)
                parts.append(ahead)
        return (
            _offsets(lengths),
            _concatenate([seen.tokens for seen in parts]),
            _concatenate([seen.counts for seen in parts]),
        )

    def _bias(self, drawn: Int32Array) -> tuple[Int32Array, Int32Array, Float32Array]:
        """Offsets, tokens and values of the rows with a bias. Rows that score have none."""
        lengths = np.zeros(len(self.tokens), np.int32)
        parts: list[LogitBias] = []
        for chunk in self._chunks:
            for row in chunk.draw_rows if chunk.sequence.has_bias else ():
                bias = chunk.sequence.bias_at(int(drawn[row]))
                if bias is not None:
                    lengths[row] = len(bias.tokens)
                    parts.append(bias)
        values = [bias.values for bias in parts]
        return (
            _offsets(lengths),
            _concatenate([bias.tokens for bias in parts]),
            np.concatenate(values) if values else np.zeros(0, np.float32),
        )


def _concatenate(parts: list[Int32Array]) -> Int32Array:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
