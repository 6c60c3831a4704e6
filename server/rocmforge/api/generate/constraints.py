"""Constraints of a request on the form of its answer, as one grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from rocmforge.api.generate.schema import GenerationRequest, StructuredOutputs
from rocmforge.errors import InvalidParameter
from rocmforge.fleet.model import ServedModel
from rocmforge.text.output.grammar import (
    ANY_OBJECT,
    Schema,
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    named_tokens,
    regex_grammar,
)

MAX_CHOICES = 1024


def output_grammar(model: ServedModel, request: GenerationRequest) -> str:
    """Returns the grammar that the whole answer must match; "" if there is none.

    Raises:
        InvalidParameter: it does not compile, or there are several.
    """
    grammars = list(_grammars(request))
    if len(grammars) > 1:
        names = " and ".join(f"'{name}'" for name, _, _ in grammars)
        raise InvalidParameter(f"{names} exclude each other.", param=grammars[1][0])
    for name, param, grammar in grammars:
        unknown = {token for token in named_tokens(grammar) if token >= model.tokenizer.vocab_size}
        if param.endswith("grammar") and unknown:
            raise InvalidParameter(
                f"'{param}' names the token {min(unknown)}, but the vocabulary has only "
                f"{model.tokenizer.vocab_size}.",
                param=param,
            )
        for other in ("ignore_eos", "min_tokens"):
            if getattr(request, other):
                raise InvalidParameter(
                    f"'{other}' cannot be combined with '{name}': an answer ends where its "
                    "grammar does.",
                    param=other,
                )
        check_grammar(model, grammar, param)
        return grammar
    return ""


def check_grammar(model: ServedModel, grammar: str, param: str) -> None:
    """Raises InvalidParameter for a grammar that does not compile, or not at a reasonable cost."""
    problem = model.grammars.problem(grammar)
    if problem:
        raise InvalidParameter(f"'{param}' cannot be enforced: {problem}", param=param)


def is_constrained(request: GenerationRequest) -> bool:
    """Returns whether there may be a grammar to compile, which can take a while."""
    return any(
        getattr(request, name, None) is not None
        for name in (
            *("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
            *("structured_outputs", "tools"),
        )
    )


def _grammars(request: GenerationRequest) -> Iterator[tuple[str, str, str]]:
    """Fields that ask for a form: the field, the parameter within it, the grammar."""
    form = request.response_format
    if form is not None and form.type == "json_object":
        yield "response_format", "response_format", json_schema_grammar(ANY_OBJECT)
    elif form is not None and form.type == "json_schema":
        param = "response_format.json_schema.schema"
        if form.json_schema is None or form.json_schema.schema is None:
            raise InvalidParameter(f"Missing required parameter: '{param}'.", param=param)
        yield "response_format", param, json_schema_grammar(form.json_schema.schema)
    outputs = request.structured_outputs or StructuredOutputs()
    for name, make in _MAKERS.items():
        for param, wanted in (
            (f"guided_{name}", getattr(request, f"guided_{name}")),
            (f"structured_outputs.{name}", getattr(outputs, name)),
        ):
            if wanted is not None:
                yield param, param, make(wanted, param)
    if outputs.json_object:
        param = "structured_outputs.json_object"
        yield param, param, json_schema_grammar(ANY_OBJECT)


def _json_grammar(schema: Schema | str, param: str) -> str:
    """Makes the grammar of a schema, which may also be given as JSON text."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any] | bool)
        except msgspec.MsgspecError as error:
            raise InvalidParameter(
                f"'{param}' is not a JSON schema: {error}.", param=param
            ) from None
    return json_schema_grammar(schema)


def _regex(regex: str, param: str) -> str:
    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise InvalidParameter(
            f"'{param}' ends with a backslash that escapes nothing.", param=param
        )
    return regex_grammar(regex)


def _choices(choices: list[str], param: str) -> str:
    if not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidParameter(f"'{param}' must have 1 to {MAX_CHOICES} entries.", param=param)
    return choice_grammar(choices)


# What vLLM calls the kinds of forms, and what makes a grammar of a value and its parameter.
_MAKERS: Final[Mapping[str, Callable[[Any, str], str]]] = {
    "json": _json_grammar,
    "regex": _regex,
    "choice": _choices,
    "grammar": lambda lark, param: lark_grammar(lark),
}
