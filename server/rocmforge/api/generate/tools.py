"""The tools of a request: which there are, and whether one must be called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec

from rocmforge.api.generate.constraints import check_grammar
from rocmforge.api.generate.prepared_request import ToolUse
from rocmforge.api.generate.schema import ChatRequest, NamedTool, Tool
from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.fleet.model import ServedModel
from rocmforge.text.output.grammar import ANY_OBJECT, Schema, json_schema_grammar
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls import (
    FORMATS,
    CallFormat,
    CannotEnforce,
    HarmonyFormat,
    begins_message,
    begun,
    format_for,
    tool_grammar,
)

MAX_TOOLS = 128
_ENTRY = 256  # characters that take as much memory as what a grammar takes beside its own

# They make an answer go on where a grammar would end it.
_OPEN_ENDED = ("ignore_eos", "min_tokens")


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
    whose: bytes,
) -> tuple[ToolUse | None, str]:
    """Returns how to read calls, if there may be some, and the grammar of answers ("" = none).

    Args:
        model: Knows how the model writes calls.
        request: Says whether it has to.
        tools: The functions.
        prompt: What the answer follows.
        answer_grammar: What an answer without a call has to match; "" = anything.
        whose: Who asks: `asker_key`.

    Raises:
        InvalidParameter: a function's parameters cannot be enforced.
        UnsupportedFeature: the vocabulary lacks what the format is written with.
    """
    form = FORMATS.get(model.tool_format) or format_for(
        model.templates.select(with_tools=bool(tools)).source
    )
    if isinstance(form, HarmonyFormat):
        form = replace(form, thinking_budget=request.thinking_budget)
    elif not tools:
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
    if form.splits_reasoning and not begins_message(use.begun):
        if is_forced:
            raise InvalidParameter(
                "'tool_choice' asks for a call, which needs a prompt that ends where an answer "
                "begins. Leave 'continue_final_message' and 'add_generation_prompt' out.",
                param="tool_choice",
            )
        return use, answer_grammar  # of what is left of the message
    if not is_forced and not answer_grammar:
        return replace(use, has_free_text=True), _free_grammar(model, request, use, whose)
    for name in _OPEN_ENDED:
        if tools and getattr(request, name):
            raise InvalidParameter(f"'{name}' cannot be combined with a forced call.", param=name)
    if isinstance(choice, NamedTool):
        schemas = {choice.function.name: schemas[choice.function.name]}
        is_parallel = False
    for number, tool in enumerate(tools):
        if tool["function"]["name"] in schemas:
            _check_parameters(model, use, tool, f"tools[{number}].function.parameters")
    grammar = tool_grammar(
        form,
        model.tokenizer,
        schemas,
        parallel=is_parallel,
        otherwise="" if is_forced else answer_grammar,
    )
    check_grammar(model, grammar, "tools")
    return use, grammar


def _free_grammar(model: ServedModel, request: ChatRequest, use: ToolUse, whose: bytes) -> str:
    """Returns the grammar of answers in which calls fit their functions; "" if there is none.

    An agent sends the same tools with each of its turns, whose grammar takes milliseconds to write.

    Raises:
        InvalidParameter: a strict function's schema cannot be enforced.
    """
    limits_thoughts = use.form.splits_reasoning and request.thinking_budget is not None
    if any(getattr(request, name) for name in _OPEN_ENDED):
        if limits_thoughts:
            raise InvalidParameter(
                "'thinking_budget' cannot be combined with 'ignore_eos' or 'min_tokens' here: "
                "a grammar enforces it, which ends the answer too.",
                param="thinking_budget",
            )
        return ""
    if not use.schemas and not limits_thoughts:
        return ""
    tools = msgspec.json.encode(request.tools)
    of = msgspec.msgpack.encode((whose, repr(use.form), use.max_calls, tools))
    key = blake2b(of, digest_size=16).digest()
    grammar = model.tool_grammars.find(key)
    if grammar is None:
        grammar = _written_grammar(model, request, use)
        model.tool_grammars.keep(key, grammar, _ENTRY + len(grammar))
    return grammar


def _written_grammar(model: ServedModel, request: ChatRequest, use: ToolUse) -> str:
    """Writes what `_free_grammar` returns, and raises what that raises.

    Arguments whose schema cannot be enforced are an object, and the client's to check.
    """
    schemas, is_strict = dict(use.schemas), False
    for number, tool in enumerate(request.tools or ()):
        is_strict = is_strict or bool(tool.function.strict)
        param = f"tools[{number}].function.parameters"
        try:
            _check_parameters(model, use, msgspec.to_builtins(tool), param)
        except InvalidParameter:
            if tool.function.strict:
                raise
            schemas[tool.function.name] = ANY_OBJECT
    for tried in (schemas, dict.fromkeys(schemas, ANY_OBJECT)):
        grammar = tool_grammar(
            use.form, model.tokenizer, tried, parallel=use.max_calls is None, is_free=True
        )
        try:
            if grammar:
                check_grammar(model, grammar, "tools")
        except InvalidParameter:  # together they are too much
            if is_strict:
                raise
        else:
            return grammar
    return ""


def _check_parameters(model: ServedModel, use: ToolUse, tool: dict[str, Any], param: str) -> None:
    """Raises InvalidParameter for a function whose parameters cannot be enforced."""
    name = tool["function"]["name"]
    schema = use.schemas[name]
    check_grammar(model, json_schema_grammar(schema), param)
    try:
        tool_grammar(use.form, model.tokenizer, {name: schema}, parallel=False)
    except CannotEnforce as error:
        raise InvalidParameter(f"'{param}' cannot be enforced: {error}.", param=param) from None


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
