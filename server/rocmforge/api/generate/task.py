"""The way that all endpoints share which generate something: plan, wait for the model, answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from litestar import Request
from litestar.types import ASGIApp

from rocmforge.api.fleet.dispatch import Dispatch, openai_failure
from rocmforge.api.generate.answer import Writer, answer
from rocmforge.api.generate.plan import Plan
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.service import Service

W = TypeVar("W", bound=Writer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[W]):
    """What a handler has made of its request: all that is particular to its endpoint."""

    model: str
    plan: Callable[[Service], Plan]  # raises all that a client can get wrong; for any thread
    writer: Callable[[Service, Plan], W]
    stream: bool
    takes_long: bool = False  # to plan, however small the body is
    timeout_s: float | None = None  # as the body says
    failure: Callable[[Exception], bytes] = openai_failure  # as in `Dispatch.answer`


async def perform(
    request: Request[Any, Any, Any],
    dispatch: Dispatch,
    settings: ApiSettings,
    task: Task[W],
) -> ASGIApp:
    """Answers the request with what comes of the task; raises as `Dispatch.answer`."""

    async def begin(service: Service, plan: Plan, writer: W) -> ASGIApp:
        return await answer(request, service, settings, plan, writer, stream=task.stream)

    return await perform_with(begin, dispatch, task)


async def perform_with(
    begin: Callable[[Service, Plan, W], Awaitable[ASGIApp]],
    dispatch: Dispatch,
    task: Task[W],
) -> ASGIApp:
    """The same, but for `begin`, which runs the plan."""

    async def respond(service: Service, plan: Plan) -> ASGIApp:
        return await begin(service, plan, task.writer(service, plan))

    return await dispatch.answer(
        task.model,
        task.plan,
        respond,
        takes_long=task.takes_long,
        timeout_s=task.timeout_s,
        stream=task.stream,
        failure=task.failure,
    )
