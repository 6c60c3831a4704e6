"""Puts the web application together."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from litestar import Litestar, MediaType, Request, Response
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.exceptions import HTTPException, NotFoundException

from rocmforge.api.acquire import MODEL, Models
from rocmforge.api.dependencies import SettingsDep
from rocmforge.api.http.auth import caller_of, key_guard
from rocmforge.api.http.browsers import browser_guard
from rocmforge.api.http.disconnect import ClientLeft
from rocmforge.api.http.errors import answer_for
from rocmforge.api.http.headers import security_headers
from rocmforge.api.http.hosts import LocalNamesOnly
from rocmforge.api.http.keys import Keyring
from rocmforge.api.http.origin import given_id_of
from rocmforge.api.http.paths import similar_path
from rocmforge.api.http.receive import ReceiveDeadline
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.http.unknown_fields import STRICT, named_in_header
from rocmforge.api.images.fetching import Fetcher
from rocmforge.api.images.hosts import AllowedHosts
from rocmforge.api.images.pictures import Pictures
from rocmforge.api.messages.errors import anthropic_error
from rocmforge.api.messages.handlers import PATH as MESSAGES_PATH
from rocmforge.api.metrics.fleet import FleetMetrics
from rocmforge.api.metrics.request_log import RequestLog, log_refusal
from rocmforge.api.models import ANTHROPIC_VERSION
from rocmforge.api.openapi import docs, endpoints, index, openapi
from rocmforge.api.page import page, page_file, read_bundle
from rocmforge.api.responses.store import OwnResponses, ResponseStore
from rocmforge.api.text_workers import TextWorkers
from rocmforge.errors import UnknownPath
from rocmforge.fleet.fleet import Fleet
from rocmforge.fleet.model import ServedModel

HANDLERS = (*(endpoint.handler for endpoint in endpoints()), openapi, docs, index, page, page_file)
"""Those that are described are those that are served, besides pages for people."""

PATHS = tuple(sorted({path for handler in HANDLERS for path in handler.paths}))

CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody receives it


def build_app(
    fleet: Fleet,
    settings: ApiSettings,
    keys: Keyring | None = None,
    *,
    metrics: FleetMetrics | None = None,
    request_log: RequestLog | None = None,
) -> Litestar:
    """Builds the application that serves these models.

    Args:
        fleet: the models.
        settings: what the operator decides.
        keys: whose holders may call it; None = everybody.
        metrics: of the models.
        request_log: where requests are written down.
    """
    fleet_metrics = metrics or FleetMetrics(fleet)
    log = request_log or RequestLog()
    workers = TextWorkers()
    pictures = Pictures(Fetcher(AllowedHosts(settings.image_hosts)))

    # Asks for the settings as handlers do: they are made one after the other then, where each of
    # several that need nothing would be a task.
    def models_of(request: Request[Any, Any, Any], api_settings: SettingsDep) -> Models:
        keep_alive_s = api_settings.keep_alive_s
        return Models(fleet, fleet_metrics, log, workers, pictures, request, keep_alive_s)

    def responses_of(request: Request[Any, Any, Any]) -> OwnResponses:
        caller = caller_of(request)
        return OwnResponses(response_store, None if caller is None else caller.key.name)

    bundle = read_bundle() if settings.has_page else None
    answer_error = partial(_answer_error, fleet_metrics)
    response_store = ResponseStore(
        settings.max_stored_responses, settings.max_stored_response_bytes
    )
    return Litestar(
        route_handlers=HANDLERS,
        dependencies={
            "fleet_metrics": Provide(lambda: fleet_metrics, sync_to_thread=False),
            "fleet": Provide(lambda: fleet, sync_to_thread=False),
            "models": Provide(models_of, sync_to_thread=False),
            "api_settings": Provide(lambda: settings, sync_to_thread=False),
            "bundle": Provide(lambda: bundle, sync_to_thread=False),
            "response_store": Provide(responses_of, sync_to_thread=False),
        },
        guards=[key_guard(keys or Keyring()), browser_guard(settings.cors_origins)],
        middleware=[
            *([LocalNamesOnly()] if settings.local_names_only else []),
            ReceiveDeadline(settings.receive_timeout_s),
        ],
        before_send=[security_headers(has_tls=settings.has_tls), named_in_header()],
        opt={STRICT: settings.strict_requests},
        exception_handlers={
            HTTPException: answer_error,
            ClientLeft: _client_left,
            Exception: answer_error,
        },
        cors_config=CORSConfig(allow_origins=list(settings.cors_origins))
        if settings.cors_origins
        else None,
        request_max_body_size=settings.max_body_bytes,
        on_startup=[_load_anyio],
        on_shutdown=[response_store.close, pictures.close],
        openapi_config=None,
        logging_config=None,
    )


async def _load_anyio() -> None:
    """Loads the event loop backend, which takes 100 ms on first use, before a client waits."""
    await anyio.lowlevel.checkpoint()


def _answer_error(
    fleet_metrics: FleetMetrics, request: Request[Any, Any, Any], error: Exception
) -> Response[bytes]:
    """Answers any exception as OpenAI would, or Anthropic on its own paths."""
    if isinstance(error, NotFoundException):
        error = UnknownPath(similar=similar_path(request.scope["path"], PATHS))
    answer = answer_for(error)
    body = answer.body
    if _speaks_anthropic(request):
        body = msgspec.json.encode(anthropic_error(error, answer))
    model: ServedModel | None = request.state.get(MODEL)
    (fleet_metrics if model is None else fleet_metrics.of(model)).refused(answer.status)
    caller = caller_of(request)
    log_refusal(
        method=request.method,
        path=request.scope["path"],
        status=answer.status,
        code=answer.detail.code,
        param=answer.detail.param,
        key=None if caller is None else caller.key.name,
        given_id=given_id_of(request),
    )
    return Response(
        body, status_code=answer.status, headers=answer.headers, media_type=MediaType.JSON
    )


def _speaks_anthropic(request: Request[Any, Any, Any]) -> bool:
    """Returns whether a client of Anthropic's asks; those name a version on the shared path."""
    path = request.scope["path"]
    return path.startswith(MESSAGES_PATH) or (
        path.startswith("/v1/models") and ANTHROPIC_VERSION in request.headers
    )


def _client_left(request: Request, error: ClientLeft) -> Response[None]:  # type: ignore[type-arg]
    return Response(None, status_code=CLIENT_CLOSED_REQUEST)
