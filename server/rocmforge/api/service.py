"""What the handlers work with: one served model, its text side, and the engine that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from rocmforge import __version__
from rocmforge.api.generate.processors import ProcessorCatalog
from rocmforge.api.generate.schema import GenerationRequest
from rocmforge.api.http.origin import Origin
from rocmforge.api.metrics.request_log import RequestLog
from rocmforge.api.metrics.requests import Metrics
from rocmforge.api.text_workers import TextWorkers
from rocmforge.backend.protocol import NO_ADAPTER, RunnerInfo
from rocmforge.engine.constraint.grammar_checker import GrammarChecker
from rocmforge.engine.ipc.params import NO_KEY, ProcessorUse, SamplingParams, Share, TokenEvent
from rocmforge.engine.ipc.status import EngineStatus
from rocmforge.errors import ModelNotFound, NotReady
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rank_head import RankHead
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer

P = ParamSpec("P")
T = TypeVar("T")

MAX_AT_ONCE = 1024
"""Sequences of one request, where the queue has room for more."""

OFFLOAD_BYTES = 8 * 1024
"""Bodies from this size on are rendered and tokenised in a worker thread, not on the event loop.

So are small ones that take as long, because they bring a grammar.
"""

LOADING_RETRY_S = 5.0


class Handle(Protocol):
    """One sequence in the engine (`engine.client.GenerationHandle`)."""

    async def next(self) -> tuple[TokenEvent, ...]:
        """Waits for news; at least one event. The last event has a finish reason."""
        ...

    def close(self) -> None:
        """Ends the sequence if it still runs and frees what it holds. Idempotent."""
        ...


class Engine(Protocol):
    """What the API uses of `engine.client.AsyncEngine`."""

    @property
    def status(self) -> EngineStatus:
        """A snapshot."""
        ...

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        eos_ids: Sequence[int],
        *,
        deadline_s: float | None = None,
        share: Share = NO_KEY,
    ) -> Handle:
        """Queues one sequence of whoever has that share.

        Raises:
            CapacityError: the queue is full, or the engine is not ready or draining.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One model as it is served. Made once, in wiring."""

    model: str  # the name that is shown
    aliases: tuple[str, ...]  # other names requests may use
    adapters: tuple[str, ...] = ()  # LoRA adapters, as `RunnerInfo` numbers them
    adapter: int = NO_ADAPTER  # of the request it is handed to
    tokenizer: Tokenizer
    templates: ChatTemplates
    engine: Engine
    metrics: Metrics
    processors: ProcessorCatalog = field(default_factory=ProcessorCatalog)
    request_log: RequestLog = field(default_factory=RequestLog)
    origin: Origin = field(default_factory=Origin)  # of the request it is handed to
    is_encoder: bool = False  # the model embeds or ranks, and generates nothing
    pooling: PoolingType = PoolingType.NONE  # what the model was trained for
    rank_head: RankHead | None = None  # of a model that generates text, too
    prompt_lookup_tokens: int = 0  # draft tokens of a step, for requests that do not say
    draft_model_tokens: int = 0  # the same with the draft model; 0 = there is none
    tool_format: str = "auto"  # of `text.tool_calls.FORMATS`; auto = as the template says
    declared_context: int | None = None  # tokens, by the file and the settings
    declared_hidden_size: int | None = None  # by the file
    max_at_once: int = MAX_AT_ONCE  # sequences of one request
    clock: Callable[[], float] = time.time  # seconds since the epoch
    started: float = field(default_factory=time.time)  # on that clock
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    workers: TextWorkers = field(default_factory=TextWorkers)

    @property
    def base_names(self) -> tuple[str, ...]:
        """Those of the model itself."""
        return (self.model, *self.aliases)

    @property
    def names(self) -> tuple[str, ...]:
        """All names a request may use."""
        return (*self.base_names, *self.adapter_names)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """Those that lists show: adapters under their own names only."""
        return (*self.base_names, *self.adapters)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the model can be asked for."""
        ranks = self.is_encoder or self.pooling is not PoolingType.NONE
        found = {
            "chat": bool(self.templates.names) and not self.is_encoder,
            "completions": not self.is_encoder,
            "embeddings": self.pooling is not PoolingType.RANK,
            "rerank": ranks,
        }
        return tuple(name for name, can in found.items() if can)

    @property
    def adapter_names(self) -> dict[str, int]:
        """The number of an adapter by the names it has: its own, and `model:adapter`."""
        return {
            name: number
            for number, adapter in enumerate(self.adapters)
            for name in (adapter, *(f"{model}:{adapter}" for model in self.base_names))
        }

    @property
    def answers_as(self) -> str:
        """The name that answers carry."""
        return self.model if self.adapter == NO_ADAPTER else self.adapters[self.adapter]

    def check_model(self, name: str) -> None:
        """Raises ModelNotFound for a name that is not served."""
        if name not in self.names:
            raise ModelNotFound(name, self.shown_names)

    def called(self, name: str) -> Service:
        """The service as a request for this name gets it; raises ModelNotFound."""
        self.check_model(name)
        adapter = self.adapter_names.get(name)
        return self if adapter is None else replace(self, adapter=adapter)

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its completion may have together.

        Raises:
            NotReady: known only once the model has been loaded.
        """
        known = self.context_length
        return self.runner.max_context if known is None else known

    @property
    def context_length(self) -> int | None:
        """The same; before the model is loaded what is hoped for, None if that is not known."""
        runner = self.engine.status.runner
        return self.declared_context if runner is None else runner.max_context

    @property
    def hidden_size(self) -> int:
        """How many numbers the model gives for a prompt; 0 = its backend cannot give them.

        Before the model is loaded: as many as its file says.

        Raises:
            NotReady: it does not say.
        """
        runner = self.engine.status.runner
        if runner is None and self.declared_hidden_size is not None:
            return self.declared_hidden_size
        return self.runner.hidden_size

    def processor_uses(self, request: GenerationRequest) -> tuple[ProcessorUse, ...]:
        """The logits processors of a request; raises as `ProcessorCatalog.uses`."""
        return self.processors.uses(request, self.tokenizer, self.engine.status.runner)

    @property
    def runner(self) -> RunnerInfo:
        """What the model turned out to be. Raises NotReady."""
        runner = self.engine.status.runner
        if runner is None:
            raise NotReady("The model is still being loaded.", retry_after_s=LOADING_RETRY_S)
        return runner

    @property
    def fingerprint(self) -> str:
        """Version and backend; says so when the backend is only a stand-in for a GPU."""
        status = self.engine.status
        backend = "none" if status.runner is None else status.runner.backend
        fallback = "-fallback" if status.is_fallback else ""
        return f"rocmforge-{__version__}-{backend}{fallback}"

    async def offload(
        self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Calls `function` here, or in a worker thread if the input of `size` bytes is large."""
        if size < OFFLOAD_BYTES:
            return function(*args, **kwargs)
        return await self.workers.run(self.origin.share.key, partial(function, *args, **kwargs))
