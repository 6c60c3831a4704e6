"""Fields and parameters of a request that the server does not know: named, or refused.

Looked at are the fields of the body and those of the options inside it (`stream_options`,
`response_format`, ...). Lists are taken as they come: clients put into messages and items what
other answers brought, such as ids and hints, and null asks for nothing anywhere.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from litestar import Request
from litestar.types import BeforeMessageSendHookHandler, Message, Scope
from msgspec import inspect

from rocmforge.errors import UnsupportedFeature
from rocmforge.logs import FIELDS

HEADER: Final = "x-ignored-fields"
"""The header of an answer that names what was ignored in its request."""
STRICT: Final = "strict_requests"
"""The option of the application under which unknown fields are refused."""

_STATE: Final = "ignored_fields"
_MOST_NAMES: Final = 16
_LONGEST_NAME: Final = 64
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]+")

_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
log = logging.getLogger("rocmforge.request")

Known = Mapping[str, "Known | None"]
"""Names of fields, with those inside of a field that holds options."""


def check_fields(request: Request[Any, Any, Any], body: bytes, kind: Any) -> None:
    """Notes the fields of a body that its type does not have.

    Args:
        request: whose answer will name them in a header.
        body: JSON that fits the type.
        kind: the type.

    Raises:
        UnsupportedFeature: there are some, and the server is strict.
    """
    _note(request, list(_unknown(_known_fields(kind) or {}, body, "")), "field")


def check_query(request: Request[Any, Any, Any], kind: Any) -> None:
    """Notes parameters behind the path that the type does not have; raises as `check_fields`."""
    known = _known_fields(kind) or {}
    _note(request, [name for name in request.query_params if name not in known], "parameter")


def named_in_header() -> BeforeMessageSendHookHandler:
    """Makes a hook that names ignored fields in the answer's headers."""

    async def add(message: Message, scope: Scope) -> None:
        if message["type"] == "http.response.start" and (names := scope["state"].get(_STATE)):
            message["headers"] = [*message["headers"], (HEADER.encode(), _joined(names).encode())]

    return add


def _note(request: Request[Any, Any, Any], names: Sequence[str], what: str) -> None:
    if not names:
        return
    if request.route_handler.opt.get(STRICT):
        raise UnsupportedFeature(
            f"This server does not know the {what}{'s' if len(names) > 1 else ''} "
            f"{_joined(names)}, and it was started with --strict-requests.",
            param=names[0][:_LONGEST_NAME],
        )
    request.state[_STATE] = names
    fields = {"path": request.scope["path_template"], "ignored": _joined(names)}
    log.info("unknown fields ignored", extra={FIELDS: fields})


def _unknown(known: Known, body: bytes | msgspec.Raw, path: str) -> Iterator[str]:
    for name, value in _decoder.decode(body).items():
        # As much as tells what it is, without space before it: a value may be megabytes.
        text = bytes(memoryview(value)[: len(b"null")])
        if name not in known:
            if text != b"null":
                yield f"{path}{name}"
            continue
        inner = known[name]
        if inner is not None and text.startswith(b"{"):
            yield from _unknown(inner, value, f"{path}{name}.")


@cache
def _known_fields(kind: Any) -> Known | None:
    return _fields_of(inspect.type_info(kind))


def _fields_of(info: inspect.Type) -> Known | None:
    """Returns the fields of objects of this type; None if it may have any, or is no object."""
    match info:
        case inspect.Metadata(type=inner):
            return _fields_of(inner)
        case inspect.UnionType(types=types):
            if any(isinstance(each, inspect.DictType | inspect.AnyType) for each in types):
                return None
            found = [fields for each in types if (fields := _fields_of(each)) is not None]
            return {name: f for fields in found for name, f in fields.items()} if found else None
        case inspect.StructType(fields=fields, tag_field=tag):
            own = {field.encode_name: _fields_of(field.type) for field in fields}
            return own if tag is None else {**own, tag: None}
        case _:
            return None


def _joined(names: Sequence[str]) -> str:
    """Joins the names as ASCII on one line; not more than fit into a header."""
    shown = [name if _PLAIN.fullmatch(name) else json.dumps(name) for name in names]
    shown = [name[:_LONGEST_NAME] for name in shown[:_MOST_NAMES]]
    more = len(names) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])
