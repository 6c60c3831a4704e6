"""Puts the parts together: settings and a model file in, a running server out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from litestar import Litestar

from rocmforge.api.app import build_app
from rocmforge.api.http.keys import ApiKey, Keyring, given_keys, read_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.request_log import RequestLog
from rocmforge.api.metrics.tracing import Tracer
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.verifier import Verifier
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine_options import engine_config, proof_config
from rocmforge.fleet.entry import FleetEntry, ModelPolicy
from rocmforge.fleet.fleet import Fleet, FleetSettings
from rocmforge.fleet.model import MAX_AT_ONCE, ServedModel
from rocmforge.fleet.sharing import Wish, memory_shares
from rocmforge.logits.registry import load_processors
from rocmforge.model_front import ModelFront, read_front
from rocmforge.sensors.watch import DeviceWatch
from rocmforge.served_models import ModelSettings
from rocmforge.settings import Settings
from rocmforge.text.tokenizer.token_sets import TokenSets


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
