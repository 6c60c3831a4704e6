"""Values that cross between the HTTP side and the engine process. All frozen.

They travel as msgpack arrays (`engine/ipc/wire.py`), so the order of fields is the wire format
between two processes of the same installation; nothing else reads it.
"""

from __future__ import annotations

from enum import StrEnum

from rocmforge.backend.step import NO_ADAPTER
from rocmforge.engine.ipc.message import Message
from rocmforge.engine.ipc.prompt import Prompt


class FinishReason(StrEnum):
    """Why a sequence ended, in the engine's terms (the API has its own words)."""

    STOP = "stop"  # end-of-sequence token, stop token, or stop string
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"  # the client left, or asked for it
    DEADLINE = "deadline"
    ERROR = "error"  # of this request alone
    DIED = "died"  # the engine process ended, with everything it had


class Pooling(StrEnum):
    """The way from the hidden states of a prompt to its embedding."""

    MEAN = "mean"
    CLS = "cls"  # of the first token
    LAST = "last"  # of the last token


class TokenPieces(Message, frozen=True):
    """The parts of a tokenizer that constrained sampling needs."""

    pieces: tuple[bytes, ...]  # bytes of each token, by id
    special_ids: tuple[int, ...]  # control tokens: no grammar of text matches them
    eos_ids: tuple[int, ...]  # at least one; allowed where a grammar is complete


class ProcessorUse(Message, frozen=True):
    """A logits processor (`rocmforge.logits`) and what the request sets of it."""

    name: str
    numbers: tuple[float, ...]
    token_set: bytes = b""  # a bit for each token, little-endian 32-bit words
    window: int = 0  # tokens of history it looks at; below 0 = all


class Thinking(Message, frozen=True):
    """A section of reasoning before the answer, between two tokens."""

    begin: int
    end: int
    is_begun: bool  # whether the prompt has opened it; else the first token may
    budget: int | None = None  # tokens within it, after which it is closed; None = any number


class SamplingParams(Message, frozen=True):
    """The settings of one request. `api/generate/convert.py` checks the ranges."""

    max_tokens: int  # output tokens; 0 only with prompt_logprobs or echo
    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0  # 64 bits; the HTTP side draws one when the client gave none
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_logprobs: int = -1  # top_logprobs per token; 0 = the chosen token's only; -1 = none
    prompt_logprobs: int = -1  # the same for the prompt's own tokens
    pooling: Pooling | None = None  # asks for an embedding instead of tokens; max_tokens is 0
    # What the output must match, in llguidance's serialised form; "" = anything. On the way to the
    # engine process its name stands for a long one.
    grammar: str = ""
    processors: tuple[ProcessorUse, ...] = ()  # in the order in which they apply
    thinking: Thinking | None = None  # goes before what `grammar` constrains; None = none may
    prompt_lookup_tokens: int = 0  # draft tokens of a step by prompt lookup; changes no output
    adapter: int = NO_ADAPTER  # index in `RunnerInfo.adapters`
    draft_model_tokens: int = 0  # draft tokens of a step by the draft model, if there is one
    cache_salt: str = ""  # only requests with the same one share cached prefixes

    @property
    def has_drafts(self) -> bool:
        """Whether a step may have draft tokens behind the sequence."""
        return self.prompt_lookup_tokens > 0 or self.draft_model_tokens > 0


class Share(Message, frozen=True):
    """Whose a request is, and how much of the engine they get beside others who wait."""

    key: int = 0  # index of the API key; its name stays with the HTTP side
    weight: float = 1.0  # above 0; twice as much is twice the tokens
    # Made from the key itself, so that it is the same after a restart; b"" = there is none.
    tenant: bytes = b""


NO_KEY = Share()
"""Of all requests on a server without keys."""


class GenerateRequest(Message, frozen=True, tag=True):
    """The command to generate one sequence. `n` > 1 in the API is n of these with derived seeds."""

    prompt: Prompt  # of at least one position
    sampling: SamplingParams
    eos_ids: tuple[int, ...]  # tokens that end a sequence unless ignore_eos
    arrival_ns: int  # time.monotonic_ns() when the HTTP side took it
    request_id: int = -1  # unique within the life of the engine client, which gives it
    deadline_ns: int | None = None  # on the same clock
    generated_ids: tuple[int, ...] = ()  # tokens that an engine before this one generated
    share: Share = NO_KEY


class TokenLogprob(Message, frozen=True):
    """Log-probability of one token, and of the most probable ones at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token, log-probability), most probable first


class RequestTiming(Message, frozen=True):
    """The times of a request, on time.monotonic_ns()'s clock."""

    arrival_ns: int
    scheduled_ns: int  # first computed; 0 = never
    first_token_ns: int  # 0 = never
    finished_ns: int


class TokenEvent(Message, frozen=True):
    """News of one request from one step. The last one has a finish_reason.

    A request that ends at a stop string has no last one: the server finds that end. So what is
    known of the prompt by then comes with the first token, too.
    """

    request_id: int
    token_ids: tuple[int, ...] = ()  # with the token that ended it, on STOP
    logprobs: tuple[TokenLogprob, ...] | None = None  # one for each of token_ids, if asked for
    # For the prompt's positions from 1 on, in pieces; None where a row of embeddings stands.
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None  # with FinishReason.ERROR and DIED
    cached_tokens: int = 0  # prompt tokens found in the prefix cache; with `timing`
    timing: RequestTiming | None = None  # so far; with the first token, and on the last event
    embedding: bytes | None = None  # float32 in native order; on the last event, with `pooling`
    # With ERROR: no token could be drawn, for a NaN or because the request allowed none.
    is_without_token: bool = False
    # Of each of token_ids, if its step was recorded (`RecordSteps`); see `ipc.recorded`.
    recorded: bytes = b""
