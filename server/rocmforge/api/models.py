"""GET /v1/models and /v1/models/{id}, and loading and unloading manually.

The latter is there in the words of llama.cpp's router too, which other programs know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath

from rocmforge.api.acquire import Models
from rocmforge.api.dependencies import FleetDep, ModelsDep
from rocmforge.api.generate.answer import json_response
from rocmforge.api.http.auth import SCOPE
from rocmforge.api.http.body import MAX_BODY, read_json
from rocmforge.api.http.keys import Scope
from rocmforge.api.messages.schema import ModelInfo, ModelPage
from rocmforge.api.ops_schema import LoadStatus, ModelCard, ModelChanged, ModelList, ModelName
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.errors import ModelNotFound
from rocmforge.fleet.entry import ModelState
from rocmforge.fleet.model import ServedModel

ANTHROPIC_VERSION = "anthropic-version"

COMMANDS: Final[dict[str, Callable[[Models, str], Awaitable[ServedModel]]]] = {
    "load": Models.load,
    "unload": Models.unload,
}
"""What POST /v1/models/{id}/{command} can do."""

_LOAD_VALUES: dict[ModelState, Literal["unloaded", "loading", "loaded"]] = {
    ModelState.UNLOADED: "unloaded",
    ModelState.FAILED: "unloaded",
    ModelState.LOADING: "loading",
    ModelState.RESTARTING: "loading",
    ModelState.READY: "loaded",
    ModelState.DRAINING: "loaded",
    ModelState.DISTRUSTED: "loaded",
    ModelState.STOPPED: "unloaded",
}
_ADMIN = {SCOPE: Scope.ADMIN, MAX_BODY: 64 * 1024}

_name_decoder = msgspec.json.Decoder(ModelName)


@get("/v1/models")
async def list_models(request: Request[Any, Any, Any], fleet: FleetDep) -> Response[bytes]:
    """Lists all models under each of their names; Anthropic's clients get its format."""
    named = [(model, name) for model in fleet.models for name in model.shown_names]
    if ANTHROPIC_VERSION in request.headers:
        infos = [_info(model, name) for model, name in named]
        return json_response(ModelPage(data=infos, first_id=infos[0].id, last_id=infos[-1].id))
    return json_response(ModelList(data=[_card(model, name) for model, name in named]))


@get("/v1/models/{model_id:path}")
async def get_model(
    request: Request[Any, Any, Any], fleet: FleetDep, model_id: FromPath[str]
) -> Response[bytes]:
    """Returns one name; ids may hold slashes, as those of Hugging Face do."""
    name = model_id.removeprefix("/")
    model = fleet.find(name)
    if ANTHROPIC_VERSION in request.headers:
        return json_response(_info(model, name))
    return json_response(_card(model, name))


@post("/v1/models/{command:path}", status_code=200, opt=_ADMIN)
async def command_model(
    fleet: FleetDep, models: ModelsDep, command: FromPath[str]
) -> Response[bytes]:
    """Does `MODEL/load` or `MODEL/unload`; answers with the model when that is done."""
    name, _, verb = command.removeprefix("/").rpartition("/")
    if verb not in COMMANDS:
        raise ModelNotFound(command.removeprefix("/"), fleet.shown_names)
    return json_response(_card(await COMMANDS[verb](models, name), name))


@post("/models/load", status_code=200, opt=_ADMIN)
async def load_model(request: Request[Any, Any, Any], models: ModelsDep) -> Response[bytes]:
    """Loads a model, for programs that know llama.cpp's router."""
    await models.load((await read_json(request, _name_decoder)).model)
    return json_response(ModelChanged())


@post("/models/unload", status_code=200, opt=_ADMIN)
async def unload_model(request: Request[Any, Any, Any], models: ModelsDep) -> Response[bytes]:
    """Unloads a model, for programs that know llama.cpp's router."""
    await models.unload((await read_json(request, _name_decoder)).model)
    return json_response(ModelChanged())


def _card(model: ServedModel, name: str) -> ModelCard:
    entry, adapter = model.entry, model.adapter_called(name)
    is_base = adapter == NO_ADAPTER
    return ModelCard(
        id=name,
        created=int(model.started),
        root=model.answers_as(adapter),
        parent=None if is_base else model.name,
        max_model_len=model.context_length,
        aliases=tuple(n for n in model.base_names if n != name) if is_base else (),
        capabilities=model.capabilities,
        sampling=model.sampling_defaults if model.generates else None,
        state=entry.state,
        status=LoadStatus(
            value=_LOAD_VALUES[entry.state],
            failed=entry.failure is not None,
            reason=None if entry.failure is None else entry.unavailable().reason,
            stage=entry.status.stage,
            progress=entry.status.progress,
        ),
    )


def _info(model: ServedModel, name: str) -> ModelInfo:
    created_at = datetime.fromtimestamp(int(model.started), UTC).isoformat()
    return ModelInfo(id=name, display_name=name, created_at=created_at)
