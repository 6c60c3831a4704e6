"""What a request says about tools: which there are, and whether one must be called."""

from __future__ import annotations

from typing import Any

import msgspec

from rocmforge.api.constraints import check_grammar, output_grammar
from rocmforge.api.plan import ToolUse
from rocmforge.api.schema import ChatRequest, NamedTool
from rocmforge.api.service import Service
from rocmforge.errors import InvalidParameter
from rocmforge.text.grammar import json_schema_grammar
from rocmforge.text.tool_calls import FORMATS, format_for, tool_grammar

MAX_TOOLS = 128


def offered_tools(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools as chat templates know them; none if none may be called.

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
    choice = request.tool_choice
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise InvalidParameter(
            f"'tool_choice' names {choice.function.name!r}, which is not in 'tools'.",
            param="tool_choice",
        )
    if choice == "required" and not tools:
        raise InvalidParameter(
            "'tool_choice' is 'required', but there are no 'tools'.", param="tool_choice"
        )
    if choice == "none":
        return []
    converted: list[dict[str, Any]] = msgspec.to_builtins(tools)
    return converted


def tool_use(
    service: Service, request: ChatRequest, tools: list[dict[str, Any]]
) -> tuple[ToolUse, str]:
    """How to read calls, and the grammar that forces one ("" if the model may choose).

    Raises:
        InvalidParameter: a function's parameters cannot be enforced, or the answer is to have
            another form as well.
    """
    if output_grammar(service, request):
        raise InvalidParameter(
            "'tools' cannot be combined with a form for the whole answer unless 'tool_choice' is "
            "'none'.",
            param="tools",
        )
    form = FORMATS.get(service.tool_format) or format_for(
        service.templates.select(with_tools=True).source
    )
    parallel = request.parallel_tool_calls is not False
    use = ToolUse(
        form=form,
        names=frozenset(tool["function"]["name"] for tool in tools),
        max_calls=None if parallel else 1,
    )
    choice = request.tool_choice
    if choice is None or choice == "auto":
        return use, ""
    for name in ("ignore_eos", "min_tokens"):
        if getattr(request, name):
            raise InvalidParameter(f"'{name}' cannot be combined with a forced call.", param=name)
    parameters = {}
    for number, tool in enumerate(tools):
        function = tool["function"]
        if isinstance(choice, NamedTool) and choice.function.name != function["name"]:
            continue
        schema = {"type": "object", **function.get("parameters", {})}
        param = f"tools[{number}].function.parameters"
        check_grammar(service, json_schema_grammar(schema), param)
        parameters[function["name"]] = schema
    several = parallel and not isinstance(choice, NamedTool)
    grammar = tool_grammar(form, service.tokenizer, parameters, parallel=several)
    if len(parameters) > 1:
        check_grammar(service, grammar, "tools")
    return use, grammar
