"""GET /v1/responses/{id}/input_items: what a response was made of, page by page."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rocmforge.api.responses.schema import InputItem
from rocmforge.errors import InvalidParameter

_ID_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
}


class InputItemsQuery(msgspec.Struct, kw_only=True):
    """The page that is wanted, as OpenAI's clients ask for it."""

    after: str | UnsetType = UNSET  # the id of an item
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class InputItemPage(msgspec.Struct, kw_only=True):
    """Answer of GET /v1/responses/{id}/input_items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


def listed_items(given: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """Lists the input as items with ids: texts as lists of parts, nothing that is null."""
    if isinstance(given, str):
        given = [InputItem(role="user", content=given)]
    return [_listed(item) for item in given]


def page(items: Sequence[dict[str, Any]], query: InputItemsQuery) -> InputItemPage:
    """Cuts a page out of the items.

    Raises:
        InvalidParameter: `after` is none of them.
    """
    ordered = list(items) if query.order == "asc" else list(reversed(items))
    if query.after is not UNSET:
        places = [place for place, item in enumerate(ordered) if item["id"] == query.after]
        if not places:
            raise InvalidParameter(
                f"'after' is {query.after!r}, which is no input item of this response.",
                param="after",
            )
        ordered = ordered[places[0] + 1 :]
    data = ordered[: query.limit]
    return InputItemPage(
        data=data,
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
        has_more=len(ordered) > len(data),
    )


def _listed(item: InputItem) -> dict[str, Any]:
    fields = msgspec.to_builtins(item)
    listed = {name: value for name, value in fields.items() if value is not None}
    if isinstance(item.content, str):
        part: dict[str, Any] = {"type": "input_text", "text": item.content}
        if item.role == "assistant":
            part = {"type": "output_text", "text": item.content, "annotations": []}
        listed["content"] = [part]
    prefix = _ID_PREFIXES[item.type]
    return {"id": f"{prefix}{uuid.uuid4().hex}", "status": "completed", **listed}
