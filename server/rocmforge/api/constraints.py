"""What a request says about the form of its answer, as one grammar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rocmforge.api.schema import GenerationRequest
from rocmforge.errors import InvalidParameter
from rocmforge.text.grammar import (
    ANY_OBJECT,
    Schema,
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

MAX_CHOICES = 1024


def output_grammar(request: GenerationRequest) -> str:
    """The grammar that the whole answer must match; "" if there is none.

    Raises:
        InvalidParameter: it does not compile, or there are several.
    """
    grammars = dict(_grammars(request))
    if len(grammars) > 1:
        names = " and ".join(f"'{name}'" for name in grammars)
        raise InvalidParameter(f"{names} exclude each other.", param=list(grammars)[1])
    for name in ("ignore_eos", "min_tokens"):
        if grammars and getattr(request, name):
            raise InvalidParameter(
                f"'{name}' cannot be combined with '{next(iter(grammars))}': an answer ends where "
                "its grammar does.",
                param=name,
            )
    return next(iter(grammars.values()), "")


def is_constrained(request: GenerationRequest) -> bool:
    """Whether there may be a grammar to compile, which can take a while."""
    return any(
        getattr(request, name, None) is not None
        for name in (
            "response_format",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "structured_outputs",
            "tools",
        )
    )


def _grammars(request: GenerationRequest) -> Iterator[tuple[str, str]]:
    """Parameters that ask for a form, and their grammars."""
    form = request.response_format
    if form is not None and form.type == "json_object":
        yield "response_format", json_schema_grammar(ANY_OBJECT, "response_format")
    elif form is not None and form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema is None:
            missing = "response_format.json_schema.schema"
            raise InvalidParameter(f"Missing required parameter: '{missing}'.", param=missing)
        param = "response_format.json_schema.schema"
        yield "response_format", json_schema_grammar(form.json_schema.schema, param)
    if request.guided_json is not None:
        yield "guided_json", _json_grammar(request.guided_json, "guided_json")
    if request.guided_regex is not None:
        yield "guided_regex", regex_grammar(request.guided_regex, "guided_regex")
    if request.guided_choice is not None:
        yield "guided_choice", _choices(request.guided_choice, "guided_choice")
    if request.guided_grammar is not None:
        yield "guided_grammar", lark_grammar(request.guided_grammar, "guided_grammar")
    outputs = request.structured_outputs
    if outputs is None:
        return
    prefix = "structured_outputs"
    if outputs.json is not None:
        yield f"{prefix}.json", _json_grammar(outputs.json, f"{prefix}.json")
    if outputs.regex is not None:
        yield f"{prefix}.regex", regex_grammar(outputs.regex, f"{prefix}.regex")
    if outputs.choice is not None:
        yield f"{prefix}.choice", _choices(outputs.choice, f"{prefix}.choice")
    if outputs.grammar is not None:
        yield f"{prefix}.grammar", lark_grammar(outputs.grammar, f"{prefix}.grammar")
    if outputs.json_object:
        yield f"{prefix}.json_object", json_schema_grammar(ANY_OBJECT, f"{prefix}.json_object")


def _json_grammar(schema: Schema | str, param: str) -> str:
    """A schema may also be given as JSON text."""
    if isinstance(schema, str):
        try:
            parsed: Schema = msgspec.json.decode(schema, type=dict[str, Any] | bool)
        except msgspec.MsgspecError as error:
            raise InvalidParameter(
                f"'{param}' is not a JSON schema: {error}.", param=param
            ) from None
        return json_schema_grammar(parsed, param)
    return json_schema_grammar(schema, param)


def _choices(choices: list[str], param: str) -> str:
    if not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidParameter(f"'{param}' must have 1 to {MAX_CHOICES} entries.", param=param)
    return choice_grammar(choices, param)
