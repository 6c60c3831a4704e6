"""The tools of a request: which there are, and whether one must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rocmforge.api.generate.constraints import check_grammar
from rocmforge.api.generate.prepared_request import ToolUse
from rocmforge.api.generate.schema import ChatRequest, NamedTool, Tool
from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.fleet.model import ServedModel
from rocmforge.text.output.grammar import Schema, json_schema_grammar
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls import (
    FORMATS,
    CallFormat,
    CannotEnforce,
    begun,
    format_for,
    tool_grammar,
)

MAX_TOOLS = 128


def offered_tools(request: ChatRequest) -> list[dict[str, Any]]:
    """Returns the tools for chat templates; none if none may be called.

    Raises:
        InvalidParameter: they contradict each other, or `tool_choice`.
    """
    tools = request.tools or []
    names = [tool.function.name for tool in tools]
    if len(tools) > MAX_TOOLS:
        raise InvalidParameter(
            f"'tools' must not have more than {MAX_TOOLS} entries.", param="tools"
        )
    if len(set(names)) != len(names):
        raise InvalidParameter("'tools' has the same function name twice.", param="tools")
    for number, tool in enumerate(tools):
        _check_takes_object(tool, f"tools[{number}].function.parameters")
    choice = request.tool_choice
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise InvalidParameter(
            f"'tool_choice' names {choice.function.name!r}, which is not in 'tools'.",
            param="tool_choice",
        )
    if choice == "required" and not tools:
        raise InvalidParameter(
            "'tool_choice' asks for a call, but there are no 'tools'.", param="tool_choice"
        )
    if choice == "none":
        return []
    converted: list[dict[str, Any]] = msgspec.to_builtins(tools)
    return converted


def tool_use(
    model: ServedModel,
    request: ChatRequest,
    tools: list[dict[str, Any]],
    prompt: Sequence[int],
    answer_grammar: str,
) -> tuple[ToolUse | None, str]:
    """Returns how to read calls, if there may be some, and the grammar of answers ("" = none).

    Args:
        model: Knows how the model writes calls.
        request: Says whether it has to.
        tools: The functions.
        prompt: What the answer follows.
        answer_grammar: What an answer without a call has to match; "" = anything.

    Raises:
        InvalidParameter: a function's parameters cannot be enforced.
        UnsupportedFeature: the vocabulary lacks what the format is written with.
    """
    form = FORMATS.get(model.tool_format) or format_for(
        model.templates.select(with_tools=bool(tools)).source
    )
    if not tools and not form.splits_reasoning:
        return None, answer_grammar
    is_parallel = request.parallel_tool_calls is not False
    schemas = {tool["function"]["name"]: _parameters(tool) for tool in tools}
    use = ToolUse(
        form=form,
        schemas=schemas,
        max_calls=None if is_parallel else 1,
        begun=_begun(model.tokenizer, form, prompt),
    )
    choice = request.tool_choice
    is_forced = bool(tools) and choice is not None and choice != "auto"
    if not is_forced and not answer_grammar:
        return use, ""
    for name in ("ignore_eos", "min_tokens"):
        if tools and getattr(request, name):
            raise InvalidParameter(f"'{name}' cannot be combined with a forced call.", param=name)
    if isinstance(choice, NamedTool):
        schemas = {choice.function.name: schemas[choice.function.name]}
        is_parallel = False
    params = {
        tool["function"]["name"]: f"tools[{number}].function.parameters"
        for number, tool in enumerate(tools)
    }
    for name, schema in schemas.items():
        check_grammar(model, json_schema_grammar(schema), params[name])
    try:
        grammar = tool_grammar(
            form,
            model.tokenizer,
            schemas,
            parallel=is_parallel,
            otherwise="" if is_forced else answer_grammar,
        )
    except CannotEnforce as error:
        param = params[error.function]
        raise InvalidParameter(f"'{param}' cannot be enforced: {error}.", param=param) from None
    check_grammar(model, grammar, "tools")
    return use, grammar


def _begun(tokenizer: Tokenizer, form: CallFormat, prompt: Sequence[int]) -> str:
    if not form.splits_reasoning:
        return ""
    for spelling in form.markers:
        if tokenizer.control_token(spelling) is None:
            raise UnsupportedFeature(
                f"The chat template writes in a format whose control token {spelling} the model's "
                "vocabulary lacks. Start the server with another --chat-template.",
                param="messages",
            )
    return begun(tokenizer, prompt)


def _check_takes_object(tool: Tool, param: str) -> None:
    kind = (tool.function.parameters or {}).get("type", "object")
    if kind != "object":
        raise InvalidParameter(
            f"'{param}' must be a JSON schema of type 'object', not {kind!r}: arguments are named.",
            param=param,
        )


def _parameters(tool: dict[str, Any]) -> Schema:
    return {"type": "object", **tool["function"].get("parameters", {})}
