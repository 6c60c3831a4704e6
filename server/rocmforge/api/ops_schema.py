"""The wire format of what generates nothing: models, their tokenizers, and the server's health."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rocmforge.api.generate.schema import Message, TokenIds
from rocmforge.errors import Fault
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.throttling import Throttle


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /tokenize: a text, or a conversation to run through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None  # llama.cpp's: false = special tokens in `prompt` are text
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /detokenize."""

    tokens: TokenIds
    model: str | None = None


class ModelCard(msgspec.Struct, kw_only=True):
    """One model as /v1/models lists it.

    `root` is the name behind an alias; a LoRA adapter has a `parent`, the model it changes.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    root: str
    parent: str | None = None
    max_model_len: int | None
    owned_by: str = "rocmforge"
    aliases: tuple[str, ...] = ()  # other names of the same model
    capabilities: tuple[str, ...] = ()  # what it can be asked for
    sampling: SamplingDefaults | None  # for requests that do not say; None = it generates nothing
    state: str
    status: LoadStatus


class ModelName(msgspec.Struct, kw_only=True):
    """Body of POST /models/load and /models/unload."""

    model: str


class ModelChanged(msgspec.Struct, kw_only=True):
    """Their answer."""

    success: Literal[True] = True


class LoadStatus(msgspec.Struct, kw_only=True):
    """The progress of loading a model, as llama.cpp's router words it."""

    value: Literal["unloaded", "loading", "loaded"]
    failed: bool  # the last time that it was tried
    reason: str | None  # why
    stage: str  # what loading is doing now
    progress: float  # of that stage, 0..1


class ModelList(msgspec.Struct, kw_only=True):
    """Answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(msgspec.Struct, kw_only=True):
    """Answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(msgspec.Struct, kw_only=True):
    """Answer of POST /detokenize."""

    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """Answer of GET /tokenizer_info."""

    tokenizer_class: str
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str


ErrorCode = Literal["engine_died", "model_unavailable"]


class Health(msgspec.Struct, kw_only=True):
    """Answer of GET /health: the HTTP side is alive; what it serves, on what, and what went wrong.

    What stands beside `models` and `status` is about the first of them. On a server with keys,
    texts of errors (they may name files) are for requests with a key; others get null or "".
    """

    model: str
    engine: str
    backend: str | None
    device: str | None
    is_fallback: bool
    fallback_reason: str
    notes: tuple[str, ...]
    restarts: int
    last_error_code: ErrorCode | None
    last_error: str | None
    last_error_at: float | None
    last_fault: Fault | None
    silent_s: float
    models: list[ModelHealth]
    devices: list[DeviceHealth]
    events: list[DeviceEventInfo]
    status: Literal["ok", "degraded", "wedged"]  # of the worst of them


class ProofHealth(msgspec.Struct, kw_only=True):
    """Whether answers that were computed again were right (`--verify-rate`)."""

    running: bool
    problem: str | None  # names files; see `Health`
    tokens: int
    error: float
    expected_error: float
    alarm: str | None
    alarm_at: float | None


class ModelHealth(msgspec.Struct, kw_only=True):
    """One of the models of a server, loaded or not."""

    model: str
    state: str
    backend: str | None
    device: str | None
    restarts: int  # of its engine process
    last_error_code: ErrorCode | None
    last_error: str | None  # why that last died, or why the model could not be loaded; see `Health`
    last_error_at: float | None  # seconds since the epoch
    last_fault: Fault | None  # of what kind the last end of the process was
    silent_s: float  # since there was news of loading, or of the requests there are
    proof: ProofHealth | None  # None = nothing is computed again


class DeviceHealth(msgspec.Struct, kw_only=True):
    """The last words of a device that is in use; null where it does not tell."""

    device: str  # PCI address
    age_s: float  # since it was asked
    power_w: float | None
    power_cap_w: float | None
    power_cap_default_w: float | None
    idle_power_w: float | None
    temperature_c: float | None  # of the hottest sensor
    throttled_by: tuple[Throttle, ...] | None
    memory_total: int | None
    memory_used: int | None
    memory_of_others: int | None
    uncorrected_errors: int | None
    notes: tuple[str, ...]


class DeviceEventInfo(msgspec.Struct, kw_only=True):
    """Words of the kernel about a device that is in use."""

    at: float  # seconds since the epoch
    device: str
    event: KernelEvent
    text: str


class Readiness(msgspec.Struct, kw_only=True):
    """Answer of GET /ready: whether requests would be taken now, and how far loading is."""

    ready: bool
    state: str
    stage: str
    progress: float
    restarts: int


class Version(msgspec.Struct, kw_only=True):
    """Answer of GET /version."""

    version: str
