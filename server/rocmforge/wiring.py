"""Puts the parts together: settings and a model file in, a running server out."""

from __future__ import annotations

import logging
import os
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from litestar import Litestar

from rocmforge.api.app import build_app
from rocmforge.api.http.keys import ApiKey, Keyring, given_keys, read_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.request_log import RequestLog
from rocmforge.api.metrics.tracing import Tracer
from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.config import EngineConfig
from rocmforge.engine.client.verifier import ProofConfig, Verifier
from rocmforge.engine.context import LEAST_CONTEXT
from rocmforge.engine.ipc.params import TokenPieces
from rocmforge.engine.ipc.tier_options import TierOptions
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.proof.messages import BundlePolicy
from rocmforge.errors import ConfigurationError
from rocmforge.fleet.entry import FleetEntry, ModelPolicy
from rocmforge.fleet.fleet import Fleet, FleetSettings
from rocmforge.fleet.model import MAX_AT_ONCE, ServedModel
from rocmforge.fleet.sharing import Wish, memory_shares
from rocmforge.library.finding import default_names, find_model
from rocmforge.logits.registry import load_processors
from rocmforge.models.checkpoint import Checkpoint, Identity
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import AdapterSpec, parse_adapters
from rocmforge.models.memory import stored_weight_bytes
from rocmforge.models.rank_head import RankHead, read_rank_head
from rocmforge.models.sampling import UNRECOMMENDED, SamplingDefaults
from rocmforge.models.vision.config import VisionConfig
from rocmforge.opening import open_checkpoint
from rocmforge.sensors.watch import DeviceWatch
from rocmforge.served_models import ModelSettings
from rocmforge.settings import AUTO, MTP, NO_DRAFT_MODEL, Settings
from rocmforge.sizes import parse_size
from rocmforge.text.template.rank_prompt import rank_prompt
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.draft_vocabulary import check_draft_vocabulary
from rocmforge.text.tokenizer.token_sets import TokenSets
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tokenizer.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFront:
    """The parts of a model file that the server process needs; the weights stay in the engine's."""

    path: Path
    identity: Identity
    names: tuple[str, ...]  # what clients may call it; the first is shown
    tokenizer: Tokenizer
    templates: ChatTemplates
    config: ModelConfig
    vision: VisionConfig | None  # how it takes images
    rank_head: RankHead | None  # of a decoder
    sampling: SamplingDefaults
    adapters: tuple[str, ...]  # what clients may call the LoRA adapters
    draft: Path | None  # the draft model
    weights_bytes: int  # as they are in the files, with the draft model's and the tower's

    @property
    def has_drafter(self) -> bool:
        """Whether a draft model or a predictor drafts tokens."""
        return self.draft is not None or self.config.predicts

    def check_generates(self) -> None:
        """Raises ConfigurationError for an encoder, or what ranks only: it generates no text."""
        causal = self.config.causal
        if not causal or (self.rank_head is not None and self.rank_head.is_all):
            what = "only ranks" if causal else "is an encoder"
            raise ConfigurationError(
                f"{self.names[0]} {what}: it generates no text. Use it with rocmforge serve."
            )


def read_front(model: str, settings: Settings, found: Path | None = None) -> ModelFront:
    """Finds a model, reads tokenizer and templates, and refuses what the engine would refuse.

    Args:
        model: the path of a model, or a name.
        settings: its names and template.
        found: what that stands for; None = look for it.

    Raises:
        ModelLoadError: the file cannot be served; found before anything is started.
        ConfigurationError: the file of --chat-template cannot be read.
    """
    path = found or find_model(model)
    with open_model(path, settings) as checkpoint:
        config, vision = checkpoint.config, checkpoint.vision
        identity = checkpoint.identify()
        tokenizer = Tokenizer(checkpoint.read_tokenizer())
        templates = ChatTemplates.compile(
            checkpoint.chat_templates,
            tokenizer,
            override=settings.chat_template and _read_template(settings.chat_template),
        )
        if not config.causal:
            _refuse_drafts_and_chats(settings)
        if settings.draft_model == MTP and not config.predicts:
            raise ConfigurationError(
                f"{path.name} has no predictor of further tokens, so --draft-model {MTP} has "
                "nothing to draft with. Take a draft model, or a file with MTP in its name."
            )
        prompt = rank_prompt(templates, checkpoint.rank_instruction)
        rank_head = read_rank_head(checkpoint, prompt) if config.causal else None
        adapters = tuple(adapter.name for adapter in checkpoint.adapters)
        sampling = _sampling_defaults(checkpoint, settings)
        draft = find_draft(checkpoint, settings)
        weights_bytes = stored_weight_bytes(checkpoint.weights)
        if checkpoint.tower is not None:
            weights_bytes += stored_weight_bytes(checkpoint.tower.weights)
    if draft is not None:
        with open_checkpoint(draft) as checkpoint:
            weights_bytes += stored_weight_bytes(checkpoint.weights)
    names = settings.served_model_name or default_names(model, path)
    warn_of_context(settings, config.max_context, names[0])
    for name in adapters:
        if name in names:
            raise ConfigurationError(f"--lora {name}=...: the model has that name. Give another.")
    return ModelFront(
        path=path,
        identity=identity,
        names=names,
        tokenizer=tokenizer,
        templates=templates,
        config=config,
        vision=vision,
        rank_head=rank_head,
        sampling=sampling,
        adapters=adapters,
        draft=draft,
        weights_bytes=weights_bytes,
    )


def open_model(path: Path, settings: Settings) -> Checkpoint:
    """Opens a model with its adapters, and with its predictor if that drafts by these settings.

    In models with states it drafts only if asked for: with eight streams it was slower than none.

    Raises:
        RocmForgeError: as `open_checkpoint`.
    """
    opened = partial(open_checkpoint, path, adapter_specs(settings), mmproj=settings.mmproj_path)
    checkpoint = opened(predicts=settings.predicts)
    is_asked = settings.draft_model == MTP
    if is_asked or not checkpoint.config.predicts or not checkpoint.config.has_states:
        return checkpoint
    checkpoint.release()
    return opened()


def _refuse_drafts_and_chats(settings: Settings) -> None:
    has_drafter = settings.draft_model not in (AUTO, NO_DRAFT_MODEL)
    for flag, value in (
        ("--draft-model", has_drafter),
        ("--chat-template", settings.chat_template),
    ):
        if value:
            raise ConfigurationError(f"The model is an encoder: leave {flag} out.")


def _sampling_defaults(checkpoint: Checkpoint, settings: Settings) -> SamplingDefaults:
    """Returns what the operator says, else what the model's maker recommends."""
    defaults = checkpoint.sampling or UNRECOMMENDED
    for text in settings.sampling:
        name, _, value = text.partition("=")
        try:
            defaults = defaults.changed({name: float(value)})
        except ValueError as error:
            raise ConfigurationError(f"--sampling {text}: {error}.") from error
    return defaults


def build_fleet(
    models: Sequence[ModelSettings], settings: Settings, root: Path = Path("/")
) -> Fleet:
    """Builds all models, none of them loaded yet.

    Args:
        models: those that are served.
        settings: of all of them.
        root: where the kernel's files about devices are looked for.

    Raises:
        ModelLoadError: one of the files cannot be served.
        ConfigurationError: names or shares of memory contradict each other.
    """
    fronts = [read_front(model.path, model.settings, model.found) for model in models]
    policies = [_policy(model) for model in models]
    shares = memory_shares(
        [
            Wish(
                name=front.names[0],
                weights=front.weights_bytes,
                policy=policy,
                share=model.memory_share,
            )
            for model, front, policy in zip(models, fronts, policies, strict=True)
        ],
        settings.max_loaded_models,
    )
    watch = DeviceWatch(root, pid=os.getpid())
    served = [
        build_model(front, model.settings, policy, share, watch)
        for model, front, policy, share in zip(models, fronts, policies, shares, strict=True)
    ]
    return Fleet(
        served,
        FleetSettings(
            max_loaded=settings.max_loaded_models,
            load_timeout_s=settings.load_timeout,
            drain_timeout_s=settings.drain_timeout,
        ),
        watch,
    )


def _policy(model: ModelSettings) -> ModelPolicy:
    settings = model.settings
    return ModelPolicy(
        at_start=settings.load == "start",
        pinned=model.pinned,
        idle_unload_s=settings.idle_unload,
        devices=frozenset((settings.device or "").split(",")) - {""},
        max_waiting=settings.max_sequences + settings.max_waiting,
    )


def build_model(
    front: ModelFront,
    settings: Settings,
    policy: ModelPolicy | None = None,
    memory_share: float | None = None,
    watch: DeviceWatch | None = None,
) -> ServedModel:
    """Builds a model under the names that clients use, which is not loaded yet."""
    config = engine_config(front, settings)
    if memory_share is not None:
        config = replace(config, options=replace(config.options, memory_share=memory_share))

    verifier = Verifier(proof_config(settings)) if settings.verify_rate else None

    def make_engine(totals: Totals) -> AsyncEngine:
        return AsyncEngine(config, totals, verifier, watch)

    name, *aliases = front.names
    return ServedModel(
        name=name,
        aliases=tuple(aliases),
        adapters=front.adapters,
        entry=FleetEntry(name, make_engine, policy),
        tokenizer=front.tokenizer,
        templates=front.templates,
        tool_format=settings.tool_format,
        token_sets=TokenSets(front.tokenizer),
        processors=load_processors(),
        vision=front.vision,
        causal=front.config.causal,
        pooling=front.config.pooling,
        rank_head=front.rank_head,
        sampling_defaults=front.sampling,
        prompt_lookup_tokens=settings.prompt_lookup_tokens,
        draft_model_tokens=settings.draft_tokens if front.has_drafter else 0,
        checks_drafts=not front.config.has_states or config.options.draft_tokens > 0,
        declared_context=config.options.max_context,
        declared_hidden_size=front.config.output_size,
        max_at_once=min(MAX_AT_ONCE, settings.max_sequences + settings.max_waiting),
    )


def build_engine(front: ModelFront, settings: Settings) -> AsyncEngine:
    """Builds the engine for that model alone; nothing is started yet."""
    return AsyncEngine(engine_config(front, settings), watch=DeviceWatch(pid=os.getpid()))


def engine_config(front: ModelFront, settings: Settings) -> EngineConfig:
    """Derives an engine's configuration from the settings."""
    is_optional = front.config.predicts and settings.draft_model == AUTO
    return EngineConfig(
        backend=settings.backend,
        model=front.path,
        name=front.names[0],
        identity=front.identity,
        draft=front.draft,
        predicts=front.config.predicts,
        mmproj=settings.mmproj_path,
        drafts_without_predictor=settings.prompt_lookup_tokens if is_optional else None,
        options=load_options(
            settings,
            front.config.max_context,
            causal=front.config.causal,
            has_drafter=front.has_drafter,
            vision=front.vision,
        ),
        vocabulary=token_pieces(front.tokenizer) if front.config.causal else None,
        max_waiting=settings.max_waiting,
        max_stall_ns=round(1e6 * settings.max_stall),
        tiers=tier_options(settings),
        resume=settings.resume,
        log_level=settings.log_level.upper(),
        log_format=settings.log_format,
        step_timeout_s=settings.step_timeout,
        load_timeout_s=settings.load_timeout,
        restart_limit=settings.restart_limit,
    )


def proof_config(settings: Settings) -> ProofConfig:
    """Derives what is verified of a model's answers, and what it may cost."""
    bundles = None
    if settings.verify_bundles is not None:
        folder = str(Path(settings.verify_bundles).absolute())
        bundles = BundlePolicy(folder=folder, keeps_tokens=settings.verify_prompts)
    return ProofConfig(
        rate=settings.verify_rate,
        seconds=settings.verify_seconds,
        tolerance=settings.verify_tolerance,
        is_strict=settings.verify_action == "not-ready",
        bundles=bundles,
    )


def tier_options(settings: Settings) -> TierOptions:
    """Derives where KV blocks go that the device gives up.

    Raises:
        ConfigurationError: a size is none.
    """
    return TierOptions(
        host_bytes=0 if settings.host_cache is None else parse_size(settings.host_cache),
        folder=None if settings.cache_dir is None else str(Path(settings.cache_dir).absolute()),
        folder_bytes=parse_size(settings.cache_dir_size),
    )


def warn_of_context(settings: Settings, trained_context: int, name: str) -> None:
    """Logs that --max-context is more than a model was trained for; fewer are used then."""
    if settings.max_context is not None and settings.max_context > trained_context:
        logger.warning(
            "%s was trained for %d tokens: these are its context, not the %d of --max-context",
            *(name, trained_context, settings.max_context),
        )


def find_draft(model: Checkpoint, settings: Settings) -> Path | None:
    """Finds the draft model that the settings name, if any.

    Raises:
        ModelLoadError: the file cannot be served.
        ConfigurationError: it cannot draft for this model.
    """
    if settings.other_draft_model is None:
        return None
    path = find_model(settings.other_draft_model)
    with open_checkpoint(path) as checkpoint:
        if not checkpoint.config.causal:
            raise ConfigurationError(f"{path.name} is an encoder: it cannot draft the next tokens.")
        if checkpoint.config.has_states:
            raise ConfigurationError(
                f"{path.name} cannot draft: it has states that cannot be taken back when a token "
                "of it is rejected. Take a draft model of attention alone."
            )
        check_draft_vocabulary(
            Vocabulary.of(model.read_tokenizer()), Vocabulary.of(checkpoint.read_tokenizer())
        )
    return path


def load_options(
    settings: Settings,
    trained_context: int,
    *,
    causal: bool,
    has_drafter: bool = False,
    vision: VisionConfig | None = None,
) -> LoadOptions:
    """Derives load options, for a model trained with a context of `trained_context` tokens.

    Unless the model is causal, a step has room for the longest prompt, which cannot be cut, and
    for an image that cannot be cut beside all sequences.
    Without --max-context, the context may be lowered to what fits. There is room for draft tokens
    of a draft model or predictor if it has one.
    """
    context = min(settings.max_context or trained_context, trained_context)
    may_be_lowered = causal and settings.max_context is None
    of_image = 0 if vision is None else vision.whole_rows
    least_tokens = max(settings.max_sequences + of_image, 0 if causal else context)
    drafted = settings.draft_tokens if has_drafter else 0
    return LoadOptions(
        device=settings.device,
        max_context=context,
        least_context=min(LEAST_CONTEXT, context) if may_be_lowered else None,
        max_sequences=settings.max_sequences,
        state_snapshots=settings.state_snapshots,
        max_batched_tokens=max(settings.max_batched_tokens, least_tokens),
        kv_blocks=settings.kv_blocks,
        kv_dtype=settings.kv_dtype,
        activation_bits=settings.activation_bits,
        graphs=settings.graphs,
        draft_tokens=max(settings.prompt_lookup_tokens, drafted),
        decode_variant=settings.decode_variant,
        shared_prefix=settings.shared_prefix,
        device_experts=settings.device_experts,
        memory_utilization=settings.memory_utilization,
        tensor_parallel=settings.tensor_parallel,
        adapters=adapter_specs(settings),
        # A tier keeps whole blocks, of all layers.
        releases_windows=not tier_options(settings).wanted,
    )


def adapter_specs(settings: Settings) -> tuple[AdapterSpec, ...]:
    """Parses the LoRA adapters of the settings; raises ConfigurationError as `parse_adapters`."""
    return parse_adapters(settings.lora)


def token_pieces(tokenizer: Tokenizer) -> TokenPieces | None:
    """Returns the vocabulary for constrained sampling.

    None if no token could end an answer, or if there is a character that no token spells alone: a
    grammar may leave no other choice than that character.
    """
    pieces = tokenizer.piece_tables(skip_special=False).data
    alone = {bytes([byte]) for byte in (string.printable.strip() + " \t\n").encode()}
    if not tokenizer.eos_ids or not alone <= set(pieces):
        return None
    return TokenPieces(
        pieces=pieces,
        special_ids=tuple(sorted(tokenizer.special_ids)),
        eos_ids=tokenizer.eos_ids,
    )


def build_request_log(settings: Settings) -> RequestLog:
    """Opens the log of ended requests.

    Raises:
        ConfigurationError: traces are wanted, but OpenTelemetry is not installed.
    """
    return RequestLog(
        slow_s=settings.slow_request,
        with_texts=settings.log_requests,
        trace=Tracer(settings.otlp_endpoint) if settings.otlp_endpoint else None,
    )


def read_all_keys(settings: Settings) -> tuple[ApiKey, ...]:
    """Reads the keys of flags and file.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    keys = given_keys(settings.api_key)
    return (*keys, *read_keys(Path(settings.keys_file))) if settings.keys_file else keys


def build_web_app(
    fleet: Fleet, settings: Settings, keys: Keyring, request_log: RequestLog | None = None
) -> Litestar:
    """Builds the HTTP application; it admits holders of `keys`, or everybody if there are none.

    Args:
        fleet: the models.
        settings: of the server.
        keys: whose holders may call it.
        request_log: where requests are written down; None = as `build_request_log`.
    """
    return build_app(
        fleet,
        ApiSettings(
            cors_origins=settings.cors_origin,
            image_hosts=settings.image_hosts,
            max_body_bytes=settings.max_body_bytes,
            max_stored_responses=settings.max_stored_responses,
            receive_timeout_s=settings.receive_timeout,
            local_names_only=not keys and not settings.insecure,
            strict_requests=settings.strict_requests,
            has_tls=settings.tls_certificate is not None,
            has_page=not settings.no_page,
            vllm_metrics="vllm" in settings.metrics_compat,
        ),
        keys,
        request_log=request_log or build_request_log(settings),
    )


def _read_template(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read the chat template {name}: {error}.") from error
