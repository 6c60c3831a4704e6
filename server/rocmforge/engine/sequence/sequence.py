"""One request on its way through the engine."""

from __future__ import annotations

from enum import Enum, auto

import numpy as np

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.step import NO_SOURCE
from rocmforge.engine.constraint.constraint import Constraint
from rocmforge.engine.ipc.params import GenerateRequest, RequestTiming, TokenLogprob
from rocmforge.engine.ipc.prompt import EmbeddingSpan
from rocmforge.engine.sequence.axes import axis_positions
from rocmforge.engine.sequence.block_keys import BlockKey, chain_key, root_key
from rocmforge.engine.sequence.drafting import Drafting, DraftMethod
from rocmforge.engine.sequence.embeddings import Embeddings
from rocmforge.engine.sequence.pooling import Pool
from rocmforge.engine.sequence.states import SequenceStates
from rocmforge.engine.sequence.windows import SequenceWindows


class Status(Enum):
    """The stage of a sequence."""

    WAITING = auto()  # holds no blocks
    RUNNING = auto()
    FINISHED = auto()


class SeenTokens:
    """The tokens that a sequence holds and how often it produced each, for the penalties.

    Args:
        prompt: tokens that count as seen but not as produced.
        capacity: how many tokens may follow.
    """

    def __init__(self, prompt: Int32Array, capacity: int) -> None:
        distinct = np.unique(prompt)
        self._size = len(distinct)
        self._tokens = np.zeros(self._size + capacity, np.int32)
        self._tokens[: self._size] = distinct
        self._counts = np.zeros(self._size + capacity, np.int32)
        self._index = {token: i for i, token in enumerate(distinct.tolist())}

    def add(self, token: int) -> None:
        """Counts one produced token."""
        i = self._index.setdefault(token, self._size)
        if i == self._size:
            self._tokens[i] = token
            self._size += 1
        self._counts[i] += 1

    def ahead(self, tokens: Int32Array) -> SeenTokens:
        """Returns what would be seen if these tokens were produced next."""
        copy = self.copy(len(tokens))
        for token in tokens.tolist():
            copy.add(token)
        return copy

    def copy(self, capacity: int) -> SeenTokens:
        """Copies, with room for `capacity` more tokens."""
        copy = SeenTokens(self.tokens[:0], 0)
        copy._size, copy._index = self._size, dict(self._index)
        copy._tokens = np.concatenate([self.tokens, np.zeros(capacity, np.int32)])
        copy._counts = np.concatenate([self.counts, np.zeros(capacity, np.int32)])
        return copy

    @property
    def tokens(self) -> Int32Array:
        """Distinct tokens, int32 [U]."""
        return self._tokens[: self._size]

    @property
    def counts(self) -> Int32Array:
        """The number of times that each was produced, int32 [U]."""
        return self._counts[: self._size]


class LogitBias:
    """Token ids and what to add to their logits, as the backend wants them."""

    def __init__(self, values: dict[int, float]) -> None:
        self.tokens: Int32Array = np.array(list(values.keys()), np.int32)
        self.values: Float32Array = np.array(list(values.values()), np.float32)


class Sequence:
    """Counters of one request. Only the scheduler changes them.

    Tokens `0..num_known` have ids known to the host; with steps in flight there may be one more
    token, still on the device, at index `num_known == num_tokens - 1`. The keys and values of
    tokens `0..num_computed` are in the cache, or will be once the submitted steps have run.
    What is left to do is `num_new`; whether that is a prompt, a part of one, a recomputation or
    the next token makes no difference to anyone.

    Draft tokens stand in `tokens` behind those that are known, and count as computed while their
    step is in flight. A sequence with draft tokens waits for its results, and `drop_rejected` takes
    back those that were not accepted.
    """

    def __init__(
        self,
        request: GenerateRequest,
        block_size: int,
        matcher: Constraint | None = None,
        *,
        waits: bool = False,
    ) -> None:
        sampling = request.sampling
        prompt = request.prompt.id_array
        # The rows that stand in the place of some of its tokens, which are placeholders then.
        self.embeddings = Embeddings(request.prompt) if request.prompt.embeddings else None
        spans = request.prompt.spans
        assert not (isinstance(spans[-1], EmbeddingSpan) and spans[-1].both_ways), (
            "text follows an image: the last token of a prompt may never be computed"
        )
        self.axes = axis_positions(request.prompt) if self.embeddings else None
        self.request = request
        self.sampling = sampling
        self.matcher = matcher  # what it may draw depends on every token before
        # Logits processors look at one history only, so they are not run for draft tokens. A draft
        # model cannot see embeddings, whose rows are made for the model that checks its tokens.
        limits = {
            DraftMethod.LOOKUP: sampling.prompt_lookup_tokens,
            DraftMethod.MODEL: 0 if self.embeddings else sampling.draft_model_tokens,
            DraftMethod.PREDICTOR: sampling.draft_model_tokens,
        }
        has_drafts = any(limits.values()) and not (sampling.processors or sampling.pooling)
        self.drafting = Drafting(limits) if has_drafts else None
        # Whether its last token must be known before the next is planned. `Speculation` changes it.
        self.waits = self.always_waits = waits
        self.status = Status.WAITING
        self.num_prompt = len(prompt)
        self.max_length = self.num_prompt + sampling.max_tokens
        # The last token is never computed: nothing follows it. Without any output (scoring), the
        # last prompt token is that one.
        # All of a prompt is computed for its embedding.
        self.pool = Pool(sampling.pooling, self.num_prompt) if sampling.pooling else None
        self.compute_limit = self.max_length - (self.pool is None)
        self.tokens: Int32Array = np.zeros(self.max_length, np.int32)
        self.tokens[: self.num_prompt] = prompt
        self.num_known = self.num_prompt
        self.num_tokens = self.num_prompt
        self.num_computed = 0
        self.num_scored = 0  # prompt positions whose successor has been scored
        self.source_row = NO_SOURCE  # where the token on the device will come from

        self.block_size = block_size
        self.block_ids: Int32Array = np.zeros(-(-self.compute_limit // block_size), np.int32)
        self.num_blocks = 0
        self.states: SequenceStates | None = None  # while it runs, if the model has states
        self.windows: SequenceWindows | None = None  # the same, if layers release blocks
        self.num_published = 0  # blocks offered to the prefix index
        self.keys: list[BlockKey] = []  # of its first blocks, as far as they were asked for

        self.stop_ids = frozenset(sampling.stop_token_ids) | (
            frozenset() if sampling.ignore_eos else frozenset(request.eos_ids)
        )
        bias = dict(sampling.logit_bias)
        self._bias = LogitBias(bias) if bias else None
        self._early_bias = self._bias
        if sampling.min_tokens > 0 and self.stop_ids:
            self._early_bias = LogitBias(bias | dict.fromkeys(self.stop_ids, -np.inf))
        self.has_bias = self._early_bias is not None
        self.settings = (
            sampling.temperature,
            float(sampling.top_k),
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        )
        self.seen: SeenTokens | None = None
        if (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        ):
            self.seen = SeenTokens(self.history(self.num_prompt), sampling.max_tokens)

        if request.generated_ids:
            self._resume(request.generated_ids)

        self.cached_tokens = 0
        self.scheduled_ns = 0
        self.first_token_ns = 0

    def _resume(self, generated_ids: tuple[int, ...]) -> None:
        """Learns what an earlier engine generated; all of it is computed again."""
        for token in generated_ids:
            self.append(token)
        self.num_tokens = self.num_known
        self.num_scored = self.num_prompt - 1

    @property
    def num_new(self) -> int:
        """Tokens to compute before this sequence has to wait for a result."""
        end = self.num_known if self.waits else self.num_tokens
        return min(end, self.compute_limit) - self.num_computed

    @property
    def waits_for_token(self) -> bool:
        """Whether it computes nothing now because its next token follows from one not known yet."""
        return self.num_new == 0 and self.num_tokens <= self.compute_limit and self.pool is None

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt's own tokens are wanted."""
        return self.sampling.prompt_logprobs >= 0

    @property
    def blocks(self) -> list[int]:
        """The blocks held, in order of position."""
        held: list[int] = self.block_ids[: self.num_blocks].tolist()
        return held

    def hold(self, *blocks: int) -> None:
        """Appends blocks to the table."""
        end = self.num_blocks + len(blocks)
        self.block_ids[self.num_blocks : end] = blocks
        self.num_blocks = end

    def drop_cache(self) -> None:
        """Forgets all blocks and everything computed."""
        self.num_blocks = 0
        self.num_computed = 0
        if self.drafting is not None:
            self.drafting.take_tokens()

    def block_key(self, block: int) -> BlockKey:
        """Returns the key of the block-th block, all of whose tokens are known."""
        size = self.block_size
        for i in range(len(self.keys), block + 1):
            parent = self.keys[-1] if self.keys else self.root_key
            start, end = i * size, (i + 1) * size
            rows = b"" if self.embeddings is None else self.embeddings.identity(start, end)
            self.keys.append(chain_key(parent, self.tokens[start:end], rows))
        return self.keys[block]

    @property
    def root_key(self) -> BlockKey:
        """The key that stands before its first block."""
        sampling = self.sampling
        return root_key(sampling.adapter, self.request.share, sampling.cache_salt)

    @property
    def known_tokens(self) -> Int32Array:
        """The tokens that the host knows, [num_known]; negative numbers for placeholders.

        No two of those are alike, so that nothing looks like a repetition of an embedding.
        """
        tokens = self.tokens[: self.num_known]
        if self.embeddings is None:
            return tokens
        tokens = tokens.copy()
        hidden = np.flatnonzero(self.embeddings.mask)
        tokens[hidden] = -1 - hidden
        return tokens

    def history(self, end: int) -> Int32Array:
        """Returns the tokens before position `end`, without the placeholders of embeddings."""
        tokens = self.tokens[:end]
        if self.embeddings is None:
            return tokens
        return np.delete(tokens, np.flatnonzero(self.embeddings.mask[:end]))

    def without_placeholders(
        self, scores: tuple[TokenLogprob, ...], start: int
    ) -> tuple[TokenLogprob | None, ...]:
        """Returns the scores of the prompt from position `start` on, None for placeholders."""
        if self.embeddings is None:
            return scores
        has_row = self.embeddings.mask[start : start + len(scores)].tolist()
        return tuple(None if row else score for row, score in zip(has_row, scores, strict=True))

    def append(self, token: int) -> None:
        """Learns the id of the token that was on the device."""
        self.tokens[self.num_known] = token
        self.num_known += 1
        if self.seen is not None:
            self.seen.add(token)

    def add_draft_tokens(self, count: int) -> int:
        """Puts up to `count` draft tokens behind the known tokens; returns how many."""
        if self.drafting is None:
            return 0
        added = self.drafting.take_tokens()[:count]
        stops = np.flatnonzero(np.isin(added, list(self.stop_ids)))
        added = added[: stops[0]] if len(stops) else added
        if self.matcher is not None:
            added = added[: self.matcher.count_allowed(added)]
        self.tokens[self.num_known : self.num_known + len(added)] = added
        return len(added)

    def drop_rejected(self) -> None:
        """Takes back what was computed for draft tokens that were not accepted."""
        self.num_tokens = self.num_known
        self.num_computed = min(self.num_computed, self.num_known - 1)

    def bias_at(self, position: int) -> LogitBias | None:
        """Returns the bias on the token at `position`; before min_tokens, no token may end it."""
        early = position - self.num_prompt < self.sampling.min_tokens
        return self._early_bias if early else self._bias

    def timing(self, finished_ns: int) -> RequestTiming:
        """Returns the times of an ended sequence."""
        return RequestTiming(
            arrival_ns=self.request.arrival_ns,
            scheduled_ns=self.scheduled_ns,
            first_token_ns=self.first_token_ns,
            finished_ns=finished_ns,
        )
