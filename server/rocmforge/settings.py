"""Every setting of an operator.

`Settings` is the one table. Each field is at once a command-line flag (`--max-context`), an
environment variable (`ROCMFORGE_MAX_CONTEXT`) and a key of the TOML file that `--config` names
(`max_context`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from rocmforge.checkpoint.cache_types import KvDtype
from rocmforge.choices import ActivationBits, DecodeVariant, Switch
from rocmforge.logs import LogFormat
from rocmforge.sizes import SIZE_PATTERN

ENV_PREFIX = "ROCMFORGE_"
GROUPS = {
    "models": "model",
    "model and device": "chat_template",
    "memory and batching": "max_context",
    "HTTP": "host",
    "reliability": "drain_timeout",
    "logs": "log_level",
}
"""The parts of the table below, in which the help shows settings: each with its first one."""
MTP: Final = "mtp"
"""The draft model that is a part of the model itself: its predictor."""
AUTO: Final = "auto"
"""The same if the file has one and there is room for it; else no draft model."""
NO_DRAFT_MODEL: Final = "none"

Name = Annotated[str, Meta(min_length=1)]
# An empty one is a shell variable that was not set. Taken for none, it would leave the door open.
_File = Annotated[str, Meta(min_length=1)]
_Key = Annotated[str, Meta(min_length=8)]  # as in the file of keys
_SIZE: Final[dict[str, Any]] = {"pattern": SIZE_PATTERN, "examples": ["24GiB", "512MiB"]}
_Size = Annotated[str, Meta(**_SIZE)]


def _about(description: str, metavar: str | None = None, **limits: Any) -> Meta:
    """Says what a setting is, and what its value is called in the help: else N, or its choices."""
    extra = None if metavar is None else {"metavar": metavar}
    return Meta(description=description, extra=extra, **limits)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `rocmforge serve` can be told. Frozen; made once at start."""

    # Models: which there are, and when they are in memory
    model: Annotated[
        tuple[str, ...], _about("a further model to serve, under that name", "NAME=FILE")
    ] = ()
    models: dict[str, dict[str, Any]] = {}  # tables of the file only: see `served_models`
    served_model_name: Annotated[
        tuple[Name, ...], _about("names clients use for the model; the first is shown", "NAME")
    ] = ()
    load: Annotated[
        Literal["start", "request"],
        _about("load models when the server starts, or when a request names them"),
    ] = "start"
    load_timeout: Annotated[
        float,
        _about(
            "seconds that a request waits for its model to be loaded, "
            "and that loading may go without progress",
            "SECONDS",
            gt=0,
        ),
    ] = 600.0
    idle_unload: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        _about("seconds without a request after which a model is unloaded", "SECONDS"),
    ] = None
    max_loaded_models: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _about("models in memory at once; the least recently used makes room", "MODELS"),
    ] = None

    # Model and device
    chat_template: Annotated[
        _File | None, _about("Jinja file to use instead of the model's chat template", "FILE")
    ] = None
    lora: Annotated[
        tuple[str, ...], _about("LoRA adapter that requests may name", "NAME=FILE[:SCALE]")
    ] = ()
    sampling: Annotated[
        tuple[str, ...],
        _about(
            "how tokens are drawn for requests that do not say it: temperature, top_k, top_p, "
            "min_p or repetition_penalty (default: as the model's maker recommends)",
            "KEY=NUMBER",
        ),
    ] = ()
    tool_format: Annotated[
        Literal[
            "auto",
            "harmony",
            "hermes",
            "mistral",
            "mistral-v11",
            "llama3",
            "pythonic",
            "functionary",
            "phi4",
            "phi4-mini",
            "granite",
            "nemotron-v2",
            "qwen3-coder",
            "seed-oss",
            "glm4",
            "minimax",
            "gemma4",
            "lfm2",
        ],
        _about("how the model writes tool calls; auto = as its chat template says", "FORMAT"),
    ] = "auto"
    backend: Annotated[str, _about("auto, or a name that `rocmforge backends` lists", "NAME")] = (
        "auto"
    )
    device: Annotated[
        str | None,
        _about("device of the backend: index, name or bus id; several with commas", "DEVICE"),
    ] = None
    tensor_parallel: Annotated[
        int,
        _about("equal devices of this host that share each layer of the model", "DEVICES", ge=1),
    ] = 1

    # Memory and batching
    max_context: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        _about(
            "tokens per sequence (default: as many as the model was trained for and fit)", "TOKENS"
        ),
    ] = None
    max_sequences: Annotated[int, _about("sequences that run at once", "SEQUENCES", ge=1)] = 64
    state_snapshots: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        _about(
            "snapshots of states for the prefix cache, in models that have any; 0 = no prefix is "
            "reused (default: an eighth of the memory for the KV cache, at most 64)",
            "SNAPSHOTS",
        ),
    ] = None
    max_batched_tokens: Annotated[
        int,
        _about("tokens computed in one step; prompts are cut into such chunks", "TOKENS", ge=16),
    ] = 2048
    max_stall: Annotated[
        float,
        _about(
            "milliseconds that a step with prompts may take while other sequences wait for their "
            "next token; 0 = no limit but --max-batched-tokens",
            "MILLISECONDS",
            ge=0,
            le=60_000,
        ),
    ] = 30.0
    prompt_lookup_tokens: Annotated[
        int,
        _about(
            "draft tokens in each step, from what the text repeats (speculative "
            "decoding by prompt lookup); 0 = off",
            "TOKENS",
            ge=0,
            le=32,
        ),
    ] = 0
    draft_model: Annotated[
        str,
        _about(
            "smaller GGUF model with the same vocabulary, which drafts tokens; mtp = the model's "
            "own predictor, which some files have; auto = that, if it has room; none = neither",
            "FILE",
            min_length=1,
        ),
    ] = AUTO
    mmproj: Annotated[
        _File | None,
        _about(
            "GGUF file of the tower with which the model takes images (default: the one beside it "
            "whose name has mmproj in it, if there is one that fits)",
            "FILE",
        ),
    ] = None
    draft_tokens: Annotated[
        int,
        _about(
            "most draft tokens of the draft model or predictor in each step; fewer where that pays",
            "TOKENS",
            ge=1,
            le=32,
        ),
    ] = 5
    kv_blocks: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _about("blocks in the KV cache (default: as many as fit)", "BLOCKS"),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", KvDtype],
        _about("type of the KV cache; k8v4 has keys in int8 and values in four bits"),
    ] = "auto"
    activation_bits: Annotated[
        ActivationBits,
        _about("bits of activations that are multiplied with quantised weights in decode"),
    ] = "auto"
    graphs: Annotated[
        Switch,
        _about(
            "captured graphs for decode steps; auto = if a check at load finds that they give "
            "what plain launches do"
        ),
    ] = "auto"
    decode_variant: Annotated[
        DecodeVariant,
        _about(
            "kernels of decode steps: many short ones, or few that do more; auto = what is "
            "measured to be faster at load"
        ),
    ] = "auto"
    shared_prefix: Annotated[
        Switch,
        _about(
            "read what the prompts of several sequences have in common once in a decode step; auto "
            "= where the step then reads at most half as much of the KV cache"
        ),
    ] = "off"
    device_experts: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        _about(
            "share of each layer's experts that the device holds, 0..1, where those of the others "
            "are read from the host's memory (default: all if they fit, else as many as do)",
            "SHARE",
        ),
    ] = None
    memory_utilization: Annotated[
        float, _about("share of the device's memory to use", "SHARE", gt=0, le=1)
    ] = 0.9
    host_cache: Annotated[
        _Size | None,
        _about(
            "memory of the host for KV blocks that the device gives up, for each model "
            "(default: none, or 1GiB with --cache-dir)",
            "SIZE",
        ),
    ] = None
    cache_dir: Annotated[
        _File | None,
        _about("folder of files of such blocks, which are found again after a restart", "FOLDER"),
    ] = None
    cache_dir_size: Annotated[str, _about("size of all files in that folder", "SIZE", **_SIZE)] = (
        "32GiB"
    )
    max_waiting: Annotated[
        int, _about("requests that may wait; more get status 429", "REQUESTS", ge=0)
    ] = 256

    # HTTP
    host: Annotated[str, _about("address to listen on", "ADDRESS")] = "127.0.0.1"
    port: Annotated[int, _about("port to listen on; 0 = any free", "PORT", ge=0, le=65535)] = 8000
    api_key: Annotated[
        tuple[_Key, ...],
        _about(
            "API keys with full access, of 8 characters or more; none = no authentication", "KEY"
        ),
    ] = ()
    keys_file: Annotated[
        _File | None,
        _about("TOML file of named keys with scopes and limits; SIGHUP reads it again", "FILE"),
    ] = None
    insecure: Annotated[bool, _about("allow listening on other than loopback without a key")] = (
        False
    )
    cors_origin: Annotated[
        tuple[str, ...], _about("origins of web pages that may call the API; * = all", "ORIGIN")
    ] = ()
    image_hosts: Annotated[
        tuple[Name, ...],
        _about(
            "hosts that images of requests are fetched from: NAME, *.NAME, NAME:PORT, "
            "NAME=ADDRESS, or * = all public ones (default: none)",
            "HOST",
        ),
    ] = ()
    no_page: Annotated[bool, _about("leave out the page at /, on which people chat")] = False
    tls_certificate: Annotated[
        _File | None, _about("PEM file: serve HTTPS; SIGHUP reads it again", "FILE")
    ] = None
    tls_key: Annotated[_File | None, _about("PEM file of the certificate's key", "FILE")] = None
    receive_timeout: Annotated[
        float, _about("seconds a client may take to send a request", "SECONDS", gt=0)
    ] = 30.0
    max_stored_responses: Annotated[
        int, _about("responses of /v1/responses that are kept, in memory", "RESPONSES", ge=0)
    ] = 1000
    max_body_bytes: Annotated[
        int, _about("largest request body that is accepted", "BYTES", ge=1024)
    ] = 16 * 1024 * 1024
    strict_requests: Annotated[
        bool, _about("refuse requests with unknown fields, which are ignored otherwise")
    ] = False
    metrics_compat: Annotated[
        tuple[Literal["vllm"], ...],
        _about("also export metrics under another server's names: vllm"),
    ] = ()

    # Reliability
    drain_timeout: Annotated[
        float, _about("seconds that running requests get after SIGTERM", "SECONDS", ge=0)
    ] = 30.0
    resume: Annotated[
        bool, _about("continue running requests after the engine had to be restarted")
    ] = False
    restart_limit: Annotated[
        int, _about("restarts without a finished request until a model fails; 0 = no limit", ge=0)
    ] = 10
    step_timeout: Annotated[
        float, _about("seconds after which a silent engine counts as hung", "SECONDS", gt=0)
    ] = 120.0
    verify_rate: Annotated[
        float,
        _about("share of served tokens that the reference computes again", "SHARE", ge=0, le=1),
    ] = 0.0
    verify_action: Annotated[
        Literal["alarm", "not-ready"],
        _about("what a wrong result does: raise the alarm, or also take no more requests"),
    ] = "alarm"
    verify_tolerance: Annotated[
        Annotated[float, Meta(gt=1)] | None,
        _about(
            "times the error that rounding explains, above which a result is wrong (default: 3, or "
            "2 where keys, values or activations are int8)"
        ),
    ] = None
    verify_seconds: Annotated[
        float, _about("seconds of a core that this may take in a minute", "SECONDS", gt=0, le=60)
    ] = 20.0
    verify_bundles: Annotated[
        _File | None, _about("folder for bundles, which reproduce what was wrong", "FOLDER")
    ] = None
    verify_prompts: Annotated[
        bool, _about("keep token ids in bundles: they are prompts and answers, which are private")
    ] = False

    # Logs and traces
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("how much is logged")
    ] = "info"
    log_format: Annotated[
        LogFormat, _about("text for people, json for programs; one line a record")
    ] = "text"
    log_requests: Annotated[
        bool, _about("log prompts and answers, which are private, with each request")
    ] = False
    slow_request: Annotated[
        float, _about("seconds after which a request is logged as a warning", "SECONDS", gt=0)
    ] = 60.0
    otlp_endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://", examples=["http://127.0.0.1:4318"])] | None,
        _about("send a trace of each request to this OTLP/HTTP address (extra otel)", "URL"),
    ] = None

    @property
    def predicts(self) -> bool:
        """Whether the model's own predictor drafts tokens, if it has one.

        On several devices it cannot, and nobody loses those for one that was not asked for.
        """
        if self.draft_model != AUTO:
            return self.draft_model == MTP
        return self.tensor_parallel == 1

    @property
    def mmproj_path(self) -> Path | None:
        """The file of the tower that was asked for, if any."""
        return None if self.mmproj is None else Path(self.mmproj)

    @property
    def other_draft_model(self) -> str | None:
        """The draft model that is a model of its own, if there is one."""
        return None if self.draft_model in (AUTO, MTP, NO_DRAFT_MODEL) else self.draft_model


PER_MODEL = frozenset(
    (
        *("load", "idle_unload", "chat_template", "lora", "tool_format", "backend", "device"),
        *("tensor_parallel", "max_context", "max_sequences", "max_batched_tokens", "kv_blocks"),
        *("sampling", "kv_dtype", "activation_bits", "graphs", "decode_variant"),
        "shared_prefix",
        *("device_experts", "host_cache", "state_snapshots"),
        *(
            "memory_utilization",
            "max_stall",
            "max_waiting",
            "prompt_lookup_tokens",
            "draft_model",
            "draft_tokens",
            "mmproj",
            "verify_rate",
        ),
    )
)
"""Settings that a `[models.<name>]` table may have, for this model only."""


@dataclass(frozen=True, slots=True)
class Option:
    """One field of `Settings` as flags and documentation see it."""

    name: str  # max_context
    description: str
    default: Any
    is_flag: bool  # takes no value
    is_list: bool  # may be given several times; commas separate in the environment
    choices: tuple[str, ...]  # of one value; () = free
    metavar: str  # what stands for its value in the help
    group: str  # one of `GROUPS`

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return flag_of(self.name)

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return variable_of(self.name)


def flag_of(name: str) -> str:
    """Returns a setting's name on the command line."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Returns a setting's name in the environment."""
    return ENV_PREFIX + name.upper()


@cache
def options() -> tuple[Option, ...]:
    """Returns all settings, in the order of the table above."""
    hints = get_type_hints(Settings, include_extras=True)
    begins = {first: title for title, first in GROUPS.items()}
    found, group = [], ""
    for field in msgspec.structs.fields(Settings):
        if field.name == "models":
            continue
        group = begins.get(field.name, group)
        kind, meta = get_args(hints[field.name])
        is_list = get_origin(kind) is tuple
        item = get_args(kind)[0] if is_list else kind
        found.append(
            Option(
                name=field.name,
                description=meta.description,
                default=field.default,
                is_flag=kind is bool,
                is_list=is_list,
                choices=get_args(item) if get_origin(item) is Literal else (),
                metavar=_metavar(meta, item),
                group=group,
            )
        )
    return tuple(found)


def _metavar(meta: Meta, kind: Any) -> str:
    if meta.extra is not None:
        return str(meta.extra["metavar"])
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return "N"
