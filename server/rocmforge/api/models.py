"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from litestar import Request, Response, get
from litestar.params import FromPath

from rocmforge.api.answer import json_response
from rocmforge.api.dependencies import ServiceDep
from rocmforge.api.messages.schema import ModelInfo, ModelPage
from rocmforge.api.schema import ModelCard, ModelList
from rocmforge.api.service import Service

ANTHROPIC_VERSION = "anthropic-version"


@get("/v1/models")
async def list_models(request: Request[Any, Any, Any], service: ServiceDep) -> Response[bytes]:
    """The served model under each of its names; Anthropic's clients get them in its format."""
    if ANTHROPIC_VERSION in request.headers:
        infos = [_info(service, name) for name in service.shown_names]
        return json_response(ModelPage(data=infos, first_id=infos[0].id, last_id=infos[-1].id))
    return json_response(ModelList(data=[_card(service, name) for name in service.shown_names]))


@get("/v1/models/{model_id:path}")
async def get_model(
    request: Request[Any, Any, Any], service: ServiceDep, model_id: FromPath[str]
) -> Response[bytes]:
    """One name; ids may hold slashes, as those of Hugging Face do."""
    name = model_id.removeprefix("/")
    service.check_model(name)
    if ANTHROPIC_VERSION in request.headers:
        return json_response(_info(service, name))
    return json_response(_card(service, name))


def _card(service: Service, name: str) -> ModelCard:
    runner = service.engine.status.runner
    adapter = service.adapter_names.get(name)
    return ModelCard(
        id=name,
        created=int(service.started),
        root=service.model if adapter is None else service.adapters[adapter],
        parent=None if adapter is None else service.model,
        max_model_len=None if runner is None else runner.max_context,
    )


def _info(service: Service, name: str) -> ModelInfo:
    created_at = datetime.fromtimestamp(int(service.started), UTC).isoformat()
    return ModelInfo(id=name, display_name=name, created_at=created_at)
