"""Reading a request's JSON body into its wire type; every way that can fail is a 4xx."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request
from litestar.exceptions import InternalServerException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from rocmforge.api.http.allowed_values import allowed_values
from rocmforge.api.http.disconnect import ClientLeft
from rocmforge.api.http.unknown_fields import check_fields, check_query
from rocmforge.errors import InvalidParameter, RequestTooLarge

T = TypeVar("T")

MAX_BODY: Final = "max_body"
"""The key of a route's `opt` for how many bytes its body may have, if not as many as all others."""

# msgspec puts the place of an error into its message and nowhere else:
# "Expected `int`, got `str` - at `$.stop[0]`", "... - at `key` in `$.logit_bias`".
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_NOT_ALLOWED = re.compile(r"^Invalid (?:enum )?value (?P<value>.+)$")


async def read_json(request: Request[Any, Any, Any], decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes the body.

    `browser_guard` has made sure by now that it is declared as JSON and not compressed, if there
    is one.

    Raises:
        RequestTimeout: it did not arrive in time.
        RequestTooLarge: it exceeds the limit of the route or of the application.
        InvalidParameter: it is empty or not JSON, or does not have the right shape.
        UnsupportedFeature: it has fields that are not known, and the server is strict.
    """
    body = await _read(request)
    wanted = decode(body, decoder)
    with _as_mistakes():  # it looks into fields that the decoder passed over
        check_fields(request, body, decoder.type)
    return wanted


async def _read(request: Request[Any, Any, Any]) -> bytes:
    limit: int | None = request.route_handler.opt.get(MAX_BODY)
    if limit is not None and int(request.headers.get("content-length", 0)) > limit:
        raise RequestTooLarge(limit_bytes=limit)
    try:
        body = await request.body()
    except RequestEntityTooLarge:
        limit = request.route_handler.resolve_request_max_body_size()
        assert limit is not None, "only a limit can be exceeded"
        raise RequestTooLarge(limit_bytes=limit) from None
    except InternalServerException:
        raise ClientLeft from None  # in the middle of its own request
    if limit is not None and len(body) > limit:
        raise RequestTooLarge(limit_bytes=limit)
    return body


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes JSON, naming the field when it does not fit."""
    with _as_mistakes():
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as error:
            raise _invalid_field(str(error), decoder.type) from None


@contextmanager
def _as_mistakes() -> Iterator[None]:
    """Makes the client's mistakes of what the parser of JSON raises."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise InvalidParameter(f"The request body is not valid JSON: {error}.") from None
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"The request body is not valid UTF-8: {error.reason}.") from None
    except RecursionError:
        raise InvalidParameter("The request body is nested too deeply.") from None


def read_query(request: Request[Any, Any, Any], kind: type[T]) -> T:
    """Reads the parameters behind the path.

    Raises:
        InvalidParameter: one does not fit.
        UnsupportedFeature: one is not known, and the server is strict.
    """
    check_query(request, kind)
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error), kind) from None


def _invalid_field(message: str, kind: Any) -> InvalidParameter:
    """Rewords msgspec's message, and writes the field's path as OpenAI does.

    Args:
        message: as msgspec says it.
        kind: the type that the body should have.
    """
    place = _PLACE.search(message)
    path = place["path"].lstrip(".") if place else ""
    problem = message[: place.start()] if place else message
    if missing := _MISSING.search(problem):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return InvalidParameter(f"Missing required parameter: '{path}'.", param=path)
    if place and place["key"]:
        # JSON's are always texts: "Expected `int`, got `str`" would ask for what cannot be written.
        problem = problem.replace("Expected `int`, got `str`", "Expected digits, such as '5'")
        return InvalidParameter(f"Invalid key in '{path}': {problem}.", param=path)
    if not path:
        return InvalidParameter(f"The request body must be a JSON object. {problem}.")
    if wrong := _NOT_ALLOWED.match(problem):
        values = ", ".join(repr(value) for value in allowed_values(kind, path))
        problem = f"{wrong['value']}. Supported values are: {values}"
    return InvalidParameter(f"Invalid value for '{path}': {problem}.", param=path)
