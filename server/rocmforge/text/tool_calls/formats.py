"""The formats of tool calls, and which one a chat template speaks of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rocmforge.text.output.grammar import Schema
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls.base import CallFormat, literal
from rocmforge.text.tool_calls.harmony import HarmonyFormat
from rocmforge.text.tool_calls.json_calls import JsonFormat
from rocmforge.text.tool_calls.keyword import KeywordFormat
from rocmforge.text.tool_calls.tagged import TaggedFormat

FORMATS: Mapping[str, CallFormat] = {
    "harmony": HarmonyFormat(),
    "hermes": JsonFormat(begin="<tool_call>", end="</tool_call>", separator="\n"),
    "mistral": JsonFormat(begin="[TOOL_CALLS]", is_list=True, separator=", "),
    "mistral-v11": JsonFormat(begin="[TOOL_CALLS]", id_begin="[CALL_ID]", name_end="[ARGS]"),
    "llama3": JsonFormat(begin="", arguments="parameters", separator="; "),
    "functionary": JsonFormat(begin="<function=", name_end=">", end="</function>"),
    "phi4": JsonFormat(begin="functools", is_list=True, separator=", "),
    "phi4-mini": JsonFormat(
        begin="<|tool_call|>", is_list=True, separator=", ", end="<|/tool_call|>"
    ),
    "granite": JsonFormat(begin="<|tool_call|>", is_list=True, separator=", "),
    "nemotron-v2": JsonFormat(begin="<TOOLCALL>", is_list=True, separator=", ", end="</TOOLCALL>"),
    "qwen3-coder": TaggedFormat(
        begin="<tool_call>",
        name_begin="\n<function=",
        name_end=">\n",
        key_begin="<parameter=",
        key_end=">\n",
        value_end="\n</parameter>\n",
        tail="</function>\n",
        end="</tool_call>",
    ),
    "seed-oss": TaggedFormat(
        begin="<seed:tool_call>",
        name_begin="\n<function=",
        name_end=">\n",
        key_begin="<parameter=",
        key_end=">",
        value_end="</parameter>\n",
        tail="</function>\n",
        end="</seed:tool_call>",
    ),
    "glm4": TaggedFormat(
        begin="<tool_call>",
        name_begin="",
        name_end="\n",
        key_begin="<arg_key>",
        key_end="</arg_key>\n<arg_value>",
        value_end="</arg_value>\n",
        tail="",
        end="</tool_call>",
    ),
    "minimax": TaggedFormat(
        begin="<minimax:tool_call>",
        name_begin='\n<invoke name="',
        name_end='">\n',
        key_begin='<parameter name="',
        key_end='">',
        value_end="</parameter>\n",
        tail="</invoke>\n",
        end="</minimax:tool_call>",
        is_list=True,
    ),
    "pythonic": KeywordFormat(
        begin="[", end="]", is_list=True, name_begin="", open="(", assign="=", close=")"
    ),
    "lfm2": KeywordFormat(
        begin="<|tool_call_start|>",
        end="<|tool_call_end|>",
        is_list=False,
        name_begin="",
        open="(",
        assign="=",
        close=")",
        list_begin="[",
        list_end="]",
    ),
    "gemma4": KeywordFormat(
        begin="<|tool_call>",
        end="<tool_call|>",
        is_list=False,
        name_begin="call:",
        open="{",
        assign=":",
        close="}",
        quote='<|"|>',
    ),
}

# What a chat template contains if its model writes that format; the first that matches.
_SIGNS = (
    ("harmony", "<|channel|>"),
    ("seed-oss", "<seed:tool_call>"),
    ("minimax", "<minimax:tool_call>"),
    ("qwen3-coder", "<parameter="),
    ("glm4", "<arg_key>"),
    ("functionary", "<function="),
    ("gemma4", "<|tool_call>call:"),
    ("lfm2", "<|tool_call_start|>"),
    ("lfm2", "List of tools: "),  # templates that leave calls to the client
    ("mistral-v11", "[ARGS]"),
    ("phi4", "functools["),
    ("phi4-mini", "<|/tool_call|>"),
    ("granite", "<|tool_call|>"),
    ("nemotron-v2", "<TOOLCALL>"),
    ("hermes", "<tool_call>"),
    ("mistral", "[TOOL_CALLS]"),
    ("pythonic", "[func_name1("),
    ("llama3", '"parameters"'),
)


def format_for(template: str) -> CallFormat:
    """Returns the format that a chat template speaks of; Hermes for one that knows no tools."""
    return FORMATS[next((name for name, sign in _SIGNS if sign in template), "hermes")]


def tools_as_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tells a model whose template knows no tools about them."""
    return (
        "You may call these functions:\n"
        + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        + '\nTo call one, answer with <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.'
    )


def tool_grammar(
    form: CallFormat,
    tokenizer: Tokenizer,
    schemas: Mapping[str, Schema],
    *,
    parallel: bool,
    otherwise: str = "",
    is_free: bool = False,
) -> str:
    """Answers that are one call, or several, of functions with these parameters.

    There must be functions, or a grammar for answers without a call.

    Args:
        form: How calls are written.
        tokenizer: Knows the markers that are control tokens.
        schemas: Parameters by function name, each known to compile.
        parallel: Whether there may be several calls.
        otherwise: A grammar for answers without a call; "" = there must be one.
        is_free: Whether there may be any text, with calls in it or not. Only what begins like a
            call has to be one then. "" is returned if text may begin like one.

    Raises:
        CannotEnforce: a schema has what this format cannot express.
    """
    calls = form.rules(tokenizer, schemas, parallel=parallel)
    rules = [*calls.rules]
    if is_free and not calls.before:
        if not calls.opening:
            return ""
        repeat = "*" if parallel else "?"
        start = f"(other opening {calls.opened}){repeat} other TEXT"
        token_id = tokenizer.control_token(calls.opening)
        rules.append(f"other: {_other_tokens(tokenizer, token_id)}")
        # A lazy rule ends as soon as it can, here with the first mark.
        rules.append(
            f"opening[lazy]: TEXT {literal(calls.opening)}"
            if token_id is None
            else f"opening: TEXT <[{token_id}]>"
        )
    else:
        other = f"@{_OTHERWISE}" if otherwise else "TEXT" if is_free else ""
        others = f"{calls.before} {other}" if other else ""
        start = " | ".join(f"({each})" for each in (calls.start, others) if each)
    lark = "\n".join([f"start: {start}", "TEXT: /(?s:.*)/", *rules])
    others = json.loads(otherwise)["grammars"] if otherwise else []
    return json.dumps(
        {
            "grammars": [
                {"lark_grammar": lark},
                *({**other, "name": _OTHERWISE} for other in others),
            ]
        }
    )


_OTHERWISE = "otherwise"


def _other_tokens(tokenizer: Tokenizer, opening: int | None) -> str:
    """Control tokens among text, as they mark reasoning: all that neither open nor end anything."""
    ids = sorted(tokenizer.special_ids - {*tokenizer.eos_ids, opening})
    ranges: list[list[int]] = []
    for token_id in ids:
        if ranges and ranges[-1][1] == token_id - 1:
            ranges[-1][1] = token_id
        else:
            ranges.append([token_id, token_id])
    named = ",".join(f"{first}-{last}" for first, last in ranges)
    return f"(TEXT <[{named}]>)*" if named else '""'
