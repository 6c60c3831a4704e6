"""For whoever runs the server: /health and /ready need no key, /version and /metrics do."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, get, route

from rocmforge import __version__
from rocmforge.api.dependencies import FleetDep, FleetMetricsDep, SettingsDep
from rocmforge.api.generate.answer import json_response
from rocmforge.api.http.auth import PUBLIC, SCOPE, is_stranger
from rocmforge.api.http.keys import Scope
from rocmforge.api.ops_schema import (
    DeviceEventInfo,
    DeviceHealth,
    ErrorCode,
    Health,
    ModelHealth,
    ProofHealth,
    Readiness,
    Version,
)
from rocmforge.engine.ipc.status import ProofStatus
from rocmforge.fleet.entry import LOADING_RETRY_S, ModelState
from rocmforge.fleet.model import ServedModel
from rocmforge.sensors.reading import DeviceReading, remarks
from rocmforge.sensors.watch import DeviceEvent, Sight

_OPEN = {PUBLIC: True}
_TROUBLED = (ModelState.RESTARTING, ModelState.FAILED, ModelState.DISTRUSTED)


@route("/health", http_method=["GET", "HEAD"], opt=_OPEN)
async def health(request: Request[Any, Any, Any], fleet: FleetDep) -> Response[bytes]:
    """Liveness: 200 as long as the HTTP side works and can restart engines.

    It is 503 if the process of one was killed and does not end, which nothing here can repair.
    """
    tells_why = not is_stranger(request)
    models = [_health(model, tells_why=tells_why) for model in fleet.models]
    first = fleet.models[0]
    status = first.entry.status
    told = models[0]
    is_wedged = any(model.entry.status.is_wedged for model in fleet.models)
    is_degraded = any(map(_is_troubled, models))
    sight = fleet.watch.sight
    body = Health(
        model=told.model,
        engine=told.state,
        backend=told.backend,
        device=told.device,
        is_fallback=status.is_fallback,
        fallback_reason=status.fallback_reason if tells_why else "",
        notes=() if status.runner is None else status.runner.notes,
        restarts=told.restarts,
        last_error_code=told.last_error_code,
        last_error=told.last_error,
        last_error_at=told.last_error_at,
        last_fault=told.last_fault,
        silent_s=told.silent_s,
        models=models,
        devices=[_device(reading, sight) for reading in sight.readings.values()],
        events=[_event(event, tells_text=tells_why) for event in sight.events],
        status="wedged" if is_wedged else "degraded" if is_degraded else "ok",
    )
    return Response(
        msgspec.json.encode(body),
        status_code=503 if is_wedged else 200,
        media_type=MediaType.JSON,
    )


def _health(model: ServedModel, *, tells_why: bool) -> ModelHealth:
    status = model.entry.status
    code: ErrorCode = "engine_died" if model.entry.failure is None else "model_unavailable"
    runner = status.runner
    return ModelHealth(
        model=model.name,
        state=model.entry.state,
        backend=None if runner is None else runner.backend,
        device=None if runner is None else runner.device.name,
        restarts=status.restarts,
        last_error_code=None if status.last_error is None else code,
        last_error=status.last_error if tells_why else None,
        last_error_at=status.last_error_at,
        last_fault=status.last_fault,
        silent_s=round(status.silence_s, 3),
        proof=None if status.proof is None else _proof(status.proof, tells_why=tells_why),
    )


def _is_troubled(model: ModelHealth) -> bool:
    has_alarm = model.proof is not None and model.proof.alarm is not None
    return has_alarm or model.state in _TROUBLED


def _proof(status: ProofStatus, *, tells_why: bool) -> ProofHealth:
    return ProofHealth(
        running=status.is_running,
        problem=status.problem if tells_why else None,
        tokens=status.tokens,
        error=status.error,
        expected_error=status.expected,
        alarm=status.alarm,
        alarm_at=status.alarm_at,
    )


def _device(reading: DeviceReading, sight: Sight) -> DeviceHealth:
    hottest = max((t.now for t in reading.temperatures.values()), default=None)
    throttled_by, errors = reading.throttled_by, reading.errors
    return DeviceHealth(
        device=reading.device,
        age_s=round(max(time.time() - reading.at, 0.0), 1),
        power_w=reading.power_w,
        power_cap_w=reading.power_cap_w,
        power_cap_default_w=reading.default_cap_w,
        idle_power_w=sight.idle_power_w.get(reading.device),
        temperature_c=hottest,
        throttled_by=None if throttled_by is None else tuple(sorted(throttled_by)),
        memory_total=reading.memory_total,
        memory_used=reading.memory_used,
        memory_of_others=reading.memory_of_others,
        uncorrected_errors=None if errors is None else errors.uncorrected,
        notes=tuple(remarks(reading)),
    )


def _event(event: DeviceEvent, *, tells_text: bool) -> DeviceEventInfo:
    return DeviceEventInfo(
        at=event.at,
        device=event.device,
        event=event.event,
        text=event.text if tells_text else "",
    )


@route("/ready", http_method=["GET", "HEAD"], opt=_OPEN)
async def ready(fleet: FleetDep) -> Response[bytes]:
    """Readiness: 200 if requests are taken, else 503 with what is being done about it.

    Models that are loaded on request, or were unloaded, hold nothing up.
    """
    entry = fleet.held_up_by().entry
    status, is_ready = entry.status, fleet.is_ready
    body = Readiness(
        ready=is_ready,
        state=entry.state,
        stage=status.stage,
        progress=status.progress,
        restarts=status.restarts,
    )
    return Response(
        msgspec.json.encode(body),
        status_code=200 if is_ready else 503,
        headers={} if is_ready else {"Retry-After": str(round(LOADING_RETRY_S))},
        media_type=MediaType.JSON,
    )


@get("/version")
async def version() -> Response[bytes]:
    """Returns the program's version."""
    return json_response(Version(version=__version__))


@get("/metrics", opt={SCOPE: Scope.METRICS})
async def metrics(
    request: Request[Any, Any, Any], fleet_metrics: FleetMetricsDep, api_settings: SettingsDep
) -> Response[bytes]:
    """Prometheus metrics."""
    text, content_type = fleet_metrics.render(
        request.headers.get("accept", ""), vllm_names=api_settings.vllm_metrics
    )
    return Response(text, headers={"Content-Type": content_type})
