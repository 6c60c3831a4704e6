"""A model as it is served: what its file and the operator's settings say of it, and its engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rocmforge import __version__
from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.engine.constraint.grammar_checker import GrammarChecker
from rocmforge.errors import NotReady
from rocmforge.fleet.entry import LOADING_RETRY_S, FleetEntry
from rocmforge.latest_used import LatestUsed
from rocmforge.logits.builtin import BUILTIN
from rocmforge.logits.processor import LogitsProcessor
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rank_head import RankHead
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.models.vision.config import VisionConfig
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.encoded_texts import EncodedTexts
from rocmforge.text.tokenizer.token_sets import TokenSets
from rocmforge.text.tokenizer.tokenizer import Tokenizer

MAX_AT_ONCE: Final = 1024
"""Sequences of one request, where the queue has room for more."""
_MOST_GRAMMAR_CHARACTERS: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedModel:
    """One model, loaded or not, for as long as the server runs. Made once, in wiring."""

    name: str  # that is shown
    aliases: tuple[str, ...] = ()  # other names requests may use
    adapters: tuple[str, ...] = ()  # LoRA adapters, as `RunnerInfo` numbers them
    entry: FleetEntry  # its engine
    tokenizer: Tokenizer
    templates: ChatTemplates
    tool_format: str = "auto"  # of `text.tool_calls.FORMATS`; auto = as the template says
    token_sets: TokenSets  # of the tokenizer
    encoded_texts: EncodedTexts = field(default_factory=EncodedTexts)  # by the tokenizer
    processors: Mapping[str, LogitsProcessor] = field(
        default_factory=lambda: {each.name: each for each in BUILTIN}
    )
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    tool_grammars: LatestUsed[bytes, str] = field(  # that were written, by what they are for
        default_factory=lambda: LatestUsed(_MOST_GRAMMAR_CHARACTERS)
    )
    vision: VisionConfig | None = None  # how it takes images; None: it takes none
    causal: bool = True  # as of `ModelConfig`; False: it embeds or ranks, and generates nothing
    pooling: PoolingType = PoolingType.NONE  # what it was trained for
    rank_head: RankHead | None = None  # of a decoder
    # For requests that do not say.
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    prompt_lookup_tokens: int = 0  # draft tokens of a step, for requests that do not say
    draft_model_tokens: int = 0  # the same with the draft model; 0 = there is none
    checks_drafts: bool = True  # False: it has states, and no slots to take them back
    declared_context: int | None = None  # tokens, by the file and the settings
    declared_hidden_size: int | None = None  # by the file
    max_at_once: int = MAX_AT_ONCE  # sequences of one request
    clock: Callable[[], float] = time.time  # seconds since the epoch
    started: float = field(default_factory=time.time)  # on that clock

    @property
    def base_names(self) -> tuple[str, ...]:
        """The names of the model itself."""
        return (self.name, *self.aliases)

    @property
    def names(self) -> tuple[str, ...]:
        """All names a request may use."""
        return (*self.base_names, *self._adapter_names)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names that lists show: adapters under their own names only."""
        return (*self.base_names, *self.adapters)

    @property
    def generates(self) -> bool:
        """Whether the model writes text."""
        return self.causal and not (self.rank_head is not None and self.rank_head.is_all)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The things that the model can be asked for."""
        ranks = not self.causal or self.pooling is not PoolingType.NONE
        found = {
            "chat": bool(self.templates.names) and self.generates,
            "images": self.vision is not None,
            "completions": self.generates,
            "embeddings": self.pooling is not PoolingType.RANK,
            "rerank": ranks,
        }
        return tuple(name for name, can in found.items() if can)

    @property
    def _adapter_names(self) -> dict[str, int]:
        """The number of an adapter by the names it has: its own, and `model:adapter`."""
        return {
            name: number
            for number, adapter in enumerate(self.adapters)
            for name in (adapter, *(f"{model}:{adapter}" for model in self.base_names))
        }

    def adapter_called(self, name: str | None) -> int:
        """Returns the adapter that this name stands for; NO_ADAPTER for the model itself."""
        if name is None or not self.adapters:
            return NO_ADAPTER
        return self._adapter_names.get(name, NO_ADAPTER)

    def answers_as(self, adapter: int) -> str:
        """Returns the name that answers with this adapter carry."""
        return self.name if adapter == NO_ADAPTER else self.adapters[adapter]

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
        """Its context in tokens; before it is loaded what is hoped for, None if not known."""
        runner = self.entry.status.runner
        return self.declared_context if runner is None else runner.max_context

    @property
    def hidden_size(self) -> int:
        """The numbers that the model gives for a prompt; 0 = its backend cannot give them.

        Before the model is loaded: as many as its file says.

        Raises:
            NotReady: it does not say.
        """
        runner = self.entry.status.runner
        if runner is None and self.declared_hidden_size is not None:
            return self.declared_hidden_size
        return self.runner.hidden_size

    @property
    def runner(self) -> RunnerInfo:
        """The facts about the loaded model. Raises NotReady."""
        runner = self.entry.status.runner
        if runner is None:
            raise NotReady("The model is still being loaded.", retry_after_s=LOADING_RETRY_S)
        return runner

    @property
    def fingerprint(self) -> str:
        """Version and backend; says so when the backend is only a stand-in for a GPU."""
        status = self.entry.status
        backend = "none" if status.runner is None else status.runner.backend
        fallback = "-fallback" if status.is_fallback else ""
        return f"rocmforge-{__version__}-{backend}{fallback}"
