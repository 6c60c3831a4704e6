"""Tools of a Responses request as the flat list of functions that a chat has.

A function of a namespace is called NAMESPACE__FUNCTION there, as chat templates know no groups. In
items, both parts have fields of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocmforge.api.generate import schema
from rocmforge.api.responses.schema import (
    AllowedTools,
    ForcedTool,
    Function,
    FunctionTool,
    NamespaceTool,
    ResponsesRequest,
    Tool,
)
from rocmforge.errors import InvalidParameter


def chat_name(namespace: str | None, name: str) -> str:
    """Returns the name by which the model calls a function."""
    return name if namespace is None else f"{namespace}__{name}"


def offered_tools(request: ResponsesRequest) -> tuple[list[schema.Tool] | None, Any]:
    """Returns the functions that may be called, and the choice among them in chat's terms.

    Raises:
        InvalidParameter: the choice names others.
    """
    tools = [tool for _, tool in _functions(request.tools or ())]
    match request.tool_choice:
        case ForcedTool(name=name):
            return tools or None, schema.NamedTool(function=schema.FunctionName(name=name))
        case AllowedTools(mode=mode, tools=allowed):
            names = {tool.name for tool in allowed}
            unknown = names - {tool.function.name for tool in tools}
            if unknown or not names:
                raise InvalidParameter(
                    f"'tool_choice.tools' must name some of 'tools'; not among them: "
                    f"{sorted(unknown)}.",
                    param="tool_choice",
                )
            return [tool for tool in tools if tool.function.name in names], mode
        case choice:
            return tools or None, choice


def namespaces(tools: Sequence[Tool]) -> Mapping[str, tuple[str, str]]:
    """Returns namespace and name of each function in one, by what the model calls it."""
    return {
        chat_name(tool.name, function.name): (tool.name, function.name)
        for tool in tools
        if isinstance(tool, NamespaceTool)
        for function in tool.tools
    }


def tool_paths(tools: Sequence[Tool]) -> Mapping[str, str]:
    """Returns where each function stands in the request, by its place in the flat list."""
    places = [path for path, _ in _functions(tools)]
    return {f"tools[{number}]": path for number, path in enumerate(places)}


def _functions(tools: Sequence[Tool]) -> list[tuple[str, schema.Tool]]:
    """Returns each function with its place. A namespace's description is before its first's."""
    found = []
    for number, tool in enumerate(tools):
        path = f"tools[{number}]"
        match tool:
            case FunctionTool():
                found.append((path, _tool(tool, tool.name, tool.description)))
            case NamespaceTool():
                about = tool.description
                for inner, function in enumerate(tool.tools):
                    texts = [text for text in (about, function.description) if text]
                    name = chat_name(tool.name, function.name)
                    made = _tool(function, name, "\n\n".join(texts) or None)
                    found.append((f"{path}.tools[{inner}]", made))
                    about = None
    return found


def _tool(tool: Function, name: str, description: str | None) -> schema.Tool:
    return schema.Tool(
        function=schema.Function(
            name=name, description=description, parameters=tool.parameters, strict=tool.strict
        )
    )
