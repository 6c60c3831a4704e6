"""What an operator can set, and where it comes from: file < environment < flags.

`Settings` is the one table. Each field is at once a command-line flag (`--max-context`), an
environment variable (`ROCMFORGE_MAX_CONTEXT`) and a key of the TOML file that `--config` names
(`max_context`). This module is the only reader of the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from rocmforge.errors import ConfigurationError
from rocmforge.logs import LogFormat

ENV_PREFIX = "ROCMFORGE_"
GPU_VARIABLES = (
    *("ROCM_PATH", "HIP_PLATFORM", "HSA_OVERRIDE_GFX_VERSION"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
)
# Variables of the test suite and of the kernel build; not settings.
OTHER_PREFIXES = ("ROCMFORGE_TEST_", "ROCMFORGE_KERNEL_")


_Name = Annotated[str, Meta(min_length=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `rocmforge serve` can be told. Frozen; made once at start."""

    # Models: which there are, and when they are in memory
    model: Annotated[
        tuple[str, ...], Meta(description="a further model to serve: name=path of a GGUF file")
    ] = ()
    models: dict[str, dict[str, Any]] = {}  # tables of the file only: see `ServedModel`
    served_model_name: Annotated[
        tuple[_Name, ...], Meta(description="names clients use for the model; the first is shown")
    ] = ()
    load: Annotated[
        Literal["start", "request"],
        Meta(description="load models when the server starts, or when a request names them"),
    ] = "start"
    load_timeout: Annotated[
        float, Meta(gt=0, description="seconds that a request waits for its model to be loaded")
    ] = 600.0
    idle_unload: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="seconds without a request after which a model is unloaded"),
    ] = None
    max_loaded_models: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="models in memory at once; the least recently used makes room"),
    ] = None

    # Model and device
    chat_template: Annotated[
        str | None, Meta(description="Jinja file to use instead of the model's chat template")
    ] = None
    lora: Annotated[
        tuple[str, ...],
        Meta(
            description="LoRA adapter that requests may name: name=path of a GGUF file, or "
            "name=path:scale"
        ),
    ] = ()
    tool_format: Annotated[
        Literal[
            "auto",
            "hermes",
            "mistral",
            "mistral-v11",
            "llama3",
            "pythonic",
            "functionary",
            "phi4",
            "phi4-mini",
            "granite",
            "qwen3-coder",
            "seed-oss",
            "glm4",
            "gemma4",
        ],
        Meta(description="how the model writes tool calls; auto = as its chat template says"),
    ] = "auto"
    backend: Annotated[str, Meta(description="auto, or a name that `rocmforge backends` lists")] = (
        "auto"
    )
    device: Annotated[
        str | None,
        Meta(description="device of the backend: index, name or bus id; several with commas"),
    ] = None
    tensor_parallel: Annotated[
        int, Meta(ge=1, description="equal devices of this host that share each layer of the model")
    ] = 1

    # Memory and batching
    max_context: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(description="tokens per sequence (default: the model's own limit)"),
    ] = None
    max_sequences: Annotated[int, Meta(ge=1, description="sequences that run at once")] = 64
    max_batched_tokens: Annotated[
        int,
        Meta(ge=16, description="tokens computed in one step; prompts are cut into such chunks"),
    ] = 2048
    prompt_lookup_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=32,
            description="tokens to guess in each step from what the text repeats (speculative "
            "decoding by prompt lookup); 0 = off",
        ),
    ] = 0
    draft_model: Annotated[
        str | None,
        Meta(description="smaller GGUF model with the same vocabulary, to guess tokens with"),
    ] = None
    draft_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=32,
            description="tokens that the draft model may guess in each step; fewer where that pays",
        ),
    ] = 5
    kv_blocks: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="blocks in the KV cache (default: as many as fit)"),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "f32", "f16", "int8"], Meta(description="type of the KV cache")
    ] = "auto"
    activation_bits: Annotated[
        Literal["auto", "8", "16"],
        Meta(description="bits of activations that meet quantised weights in decode"),
    ] = "auto"
    memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="share of the device's memory to use")
    ] = 0.9
    max_waiting: Annotated[
        int, Meta(ge=0, description="requests that may wait; more get status 429")
    ] = 256

    # HTTP
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 = any free")] = 8000
    api_key: Annotated[
        tuple[str, ...], Meta(description="keys that open everything; none = no authentication")
    ] = ()
    keys_file: Annotated[
        str | None,
        Meta(description="TOML file of named keys with scopes and limits; SIGHUP reads it again"),
    ] = None
    insecure: Annotated[
        bool, Meta(description="allow listening on other than loopback without a key")
    ] = False
    cors_origin: Annotated[
        tuple[str, ...], Meta(description="browser origins that may call; * = all")
    ] = ()
    tls_certificate: Annotated[
        str | None, Meta(description="PEM file: serve HTTPS; SIGHUP reads it again")
    ] = None
    tls_key: Annotated[str | None, Meta(description="PEM file of the certificate's key")] = None
    receive_timeout: Annotated[
        float, Meta(gt=0, description="seconds a client may take to send a request")
    ] = 30.0
    max_stored_responses: Annotated[
        int, Meta(ge=0, description="responses of /v1/responses that are kept, in memory")
    ] = 1000
    max_body_bytes: Annotated[
        int, Meta(ge=1024, description="largest request body that is accepted")
    ] = 16 * 1024 * 1024
    metrics_compat: Annotated[
        tuple[Literal["vllm"], ...],
        Meta(description="also export metrics under another server's names: vllm"),
    ] = ()

    # Life cycle
    drain_timeout: Annotated[
        float, Meta(ge=0, description="seconds that running requests get after SIGTERM")
    ] = 30.0
    resume: Annotated[
        bool, Meta(description="go on with running requests when the engine had to be restarted")
    ] = False
    step_timeout: Annotated[
        float, Meta(gt=0, description="seconds after which a silent engine counts as hung")
    ] = 120.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="how much is logged")
    ] = "info"
    log_format: Annotated[
        LogFormat, Meta(description="text for people, json for programs; one line a record")
    ] = "text"
    log_requests: Annotated[
        bool, Meta(description="log prompts and answers, which are private, with each request")
    ] = False
    slow_request: Annotated[
        float, Meta(gt=0, description="seconds after which a request is logged as a warning")
    ] = 60.0
    otlp_endpoint: Annotated[
        Annotated[str, Meta(pattern="^https?://")] | None,
        Meta(description="send a trace of each request to this OTLP/HTTP address (extra otel)"),
    ] = None


PER_MODEL = frozenset(
    (
        *("load", "idle_unload", "chat_template", "lora", "tool_format", "backend", "device"),
        *("tensor_parallel", "max_context", "max_sequences", "max_batched_tokens", "kv_blocks"),
        *("kv_dtype", "activation_bits", "memory_utilization", "max_waiting"),
        *("prompt_lookup_tokens", "draft_model", "draft_tokens"),
    )
)
"""Settings that a `[models.<name>]` table may have, for this model only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of the command line, or of a table of the file.

    [models.chat]
    path = "chat.gguf"
    aliases = ["gpt-4o"]
    pinned = true
    max_context = 16384
    """

    path: str  # or the name of a packaged model
    settings: Settings  # with what is said for this model, and its names
    pinned: bool = False  # never unloaded but by hand
    memory_share: float | None = None  # of the device's memory, 0..1; None = by its size


class _ModelTable(msgspec.Struct, frozen=True, kw_only=True):
    """What a table says besides settings."""

    path: str
    aliases: tuple[_Name, ...] = ()
    pinned: bool = False
    memory_share: Annotated[float, Meta(gt=0, le=1)] | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One field of `Settings` as flags and documentation see it."""

    name: str  # max_context
    description: str
    default: Any
    is_flag: bool  # takes no value
    is_list: bool  # may be given several times; commas separate in the environment
    choices: tuple[str, ...]  # of one value; () = free

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENV_PREFIX + self.name.upper()


def options() -> tuple[Option, ...]:
    """All settings, in the order of the table above."""
    hints = get_type_hints(Settings, include_extras=True)
    found = []
    for field in msgspec.structs.fields(Settings):
        if field.name == "models":
            continue
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
            )
        )
    return tuple(found)


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Merges defaults, the file, the environment and flags; later ones win.

    Raises:
        ConfigurationError: an unknown name, or a value that does not fit; names both.
    """
    values: dict[str, Any] = {}
    if config is not None:
        values |= _checked(_read_file(config), source=str(config))
    values |= _checked(_from_environment(os.environ), source="environment")
    values |= _checked(flags, source="command line")
    return msgspec.convert(values, Settings)


def served_models(given: Sequence[str], settings: Settings) -> tuple[ServedModel, ...]:
    """The models of the command line (`given` without a name, others with one) and of the file.

    Raises:
        ConfigurationError: there is none, or what is said of one makes no sense.
    """
    named = [_named(text) for text in settings.model]
    if settings.served_model_name and (len(given), len(named) + len(settings.models)) != (1, 0):
        raise ConfigurationError(
            "--served-model-name names one model. Name several with --model NAME=PATH."
        )
    models = [
        *(ServedModel(path=path, settings=settings) for path in given),
        *(ServedModel(path=path, settings=_renamed(settings, (name,))) for name, path in named),
        *(_from_table(name, table, settings) for name, table in settings.models.items()),
    ]
    if not models:
        raise ConfigurationError(
            "There is no model to serve: give the path of a .gguf file, --model NAME=PATH, or a "
            "[models.<name>] table in the file of --config."
        )
    limit = settings.max_loaded_models
    at_start = sum(model.settings.load == "start" for model in models)
    if limit is not None and at_start > limit:
        raise ConfigurationError(
            f"{at_start} models would be loaded at the start, but --max-loaded-models allows "
            f"{limit}. Raise it, or say --load request."
        )
    return tuple(models)


def _named(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise ConfigurationError(f"--model {text}: write it as NAME=PATH.")
    return name, path


def _renamed(settings: Settings, names: tuple[str, ...]) -> Settings:
    return msgspec.structs.replace(settings, served_model_name=names)


def _from_table(name: str, values: Mapping[str, Any], settings: Settings) -> ServedModel:
    source = f"[models.{name}]"
    own = {field.name for field in msgspec.structs.fields(_ModelTable)}
    unknown = values.keys() - own - PER_MODEL
    if unknown:
        raise ConfigurationError(
            f"{source}: {min(unknown)!r} is not a setting of one model. Known: "
            f"{', '.join(sorted(own | PER_MODEL))}."
        )
    try:
        table = msgspec.convert({k: v for k, v in values.items() if k in own}, _ModelTable)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source}: {error}.") from error
    said = _checked({k: v for k, v in values.items() if k in PER_MODEL}, source)
    changed = msgspec.structs.replace(_renamed(settings, (name, *table.aliases)), **said)
    return ServedModel(
        path=table.path, settings=changed, pinned=table.pinned, memory_share=table.memory_share
    )


def gpu_environment() -> dict[str, str]:
    """Variables that are not ours, but change which GPUs HIP finds: for `rocmforge doctor`."""
    return {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}.") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {option.variable: option for option in options()}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable.startswith(OTHER_PREFIXES):
            continue
        option = by_variable.get(variable)
        if option is None:
            raise ConfigurationError(
                f"{variable} is not a setting. Known: {', '.join(sorted(by_variable))}."
            )
        values[option.name] = (
            [part.strip() for part in text.split(",") if part.strip()] if option.is_list else text
        )
    return values


def _checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Converts each value to its field's type, so that a message can name where it came from."""
    hints = get_type_hints(Settings, include_extras=True)
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise ConfigurationError(
                f"{source}: {name!r} is not a setting. Known: {', '.join(sorted(hints))}."
            )
        try:
            result[name] = msgspec.convert(value, hints[name], strict=False)
        except msgspec.ValidationError as error:
            choices = next((o.choices for o in options() if o.name == name), ())
            one_of = f" It must be one of: {', '.join(map(str, choices))}." if choices else ""
            raise ConfigurationError(f"{source}: {name} = {value!r}: {error}.{one_of}") from error
    return result
