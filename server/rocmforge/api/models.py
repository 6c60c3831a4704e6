"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from litestar import Response, get
from litestar.params import FromPath

from rocmforge.api.answer import json_response
from rocmforge.api.dependencies import ServiceDep
from rocmforge.api.schema import ModelCard, ModelList
from rocmforge.api.service import Service


@get("/v1/models")
async def list_models(service: ServiceDep) -> Response[bytes]:
    """The served model under each of its names."""
    return json_response(ModelList(data=[_card(service, name) for name in service.names]))


@get("/v1/models/{model_id:path}")
async def get_model(service: ServiceDep, model_id: FromPath[str]) -> Response[bytes]:
    """One name; ids may hold slashes, as those of Hugging Face do."""
    name = model_id.removeprefix("/")
    service.check_model(name)
    return json_response(_card(service, name))


def _card(service: Service, name: str) -> ModelCard:
    runner = service.engine.status.runner
    return ModelCard(
        id=name,
        created=int(service.started),
        root=service.model,
        max_model_len=None if runner is None else runner.max_context,
    )
