"""Mistakes in what agents speak: /v1/responses and /v1/messages."""

from __future__ import annotations

from typing import Any

from tests.api.bad_requests.row import (
    CONTEXT,
    COUNT_TOKENS,
    LEFT_OUT,
    MESSAGES,
    RESPONSES,
    BadRequest,
    unsupported,
    wrong,
)

TOO_LONG: dict[str, Any] = {"status": 400, "code": "context_length_exceeded"}
NOT_FOUND: dict[str, Any] = {"status": 404, "code": "response_not_found"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "group", "tools": [TOOL]}
NOT: dict[str, Any] = {"parameters": {"not": {}}}
CLAUDES_TOOL = {"name": "f", "input_schema": {"type": "object"}}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


def block(role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [fields]}]}


def text_form(**form: Any) -> dict[str, Any]:
    return {"text": {"format": form}}


RESPONSES_ROWS = [
    wrong(RESPONSES, {"model": "gpt"}, "model", "'gpt'", status=404, code="model_not_found"),
    wrong(RESPONSES, {"input": LEFT_OUT}, "input", "Missing"),
    wrong(RESPONSES, {"input": 3}, "input", "Expected `str | array`"),
    wrong(RESPONSES, {"input": []}, "input", "must not be empty"),
    wrong(RESPONSES, {"input": "x" * 40_000}, "input", "Shorten the prompt", **TOO_LONG),
    wrong(RESPONSES, item(role="wizard", content="x"), "input[0].role", "'assistant'"),
    wrong(RESPONSES, item(content="x"), "input[0].role", "Missing"),
    wrong(RESPONSES, item(role="user"), "input[0].content", "Missing"),
    unsupported(
        RESPONSES,
        item(role="user", content=[{"type": "input_audio"}]),
        "input[0].content[0]",
        "'input_audio' is not supported; only text and images are",
    ),
    unsupported(
        RESPONSES,
        item(role="user", content=[{"type": "input_image", "image_url": "data:"}]),
        "input[0].content[0].image_url",
        "The model tiny takes no images",
    ),
    unsupported(
        RESPONSES,
        item(role="user", content=[{"type": "input_image", "file_id": "file_1"}]),
        "input[0].content[0].file_id",
        "Files are not stored here",
    ),
    wrong(
        RESPONSES,
        item(role="user", content=[{"type": "input_image"}]),
        "input[0].content[0].image_url",
        "Missing",
    ),
    wrong(RESPONSES, item(type="function_call", name="f"), "input[0].call_id", "Missing"),
    wrong(RESPONSES, item(type="function_call_output", call_id="c"), "input[0].output", "Missing"),
    unsupported(RESPONSES, item(type="item_reference"), "input[0].type", "'item_reference'"),
    wrong(RESPONSES, {"instructions": 5}, "instructions", "Expected `str | null`"),
    wrong(RESPONSES, {"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
    wrong(RESPONSES, {"max_output_tokens": CONTEXT}, "max_output_tokens", "fewer", **TOO_LONG),
    wrong(RESPONSES, {"temperature": 3}, "temperature", "<= 2.0"),
    wrong(RESPONSES, {"top_logprobs": 21}, "top_logprobs", "<= 20"),
    wrong(RESPONSES, {"include": ["thoughts"]}, "include[0]", "'message.output_text.logprobs'"),
    wrong(RESPONSES, {"metadata": {"a": 1}}, "metadata[...]", "Expected `str`"),
    wrong(RESPONSES, {"metadata": {str(i): "x" for i in range(17)}}, "metadata", "<= 16"),
    wrong(RESPONSES, {"reasoning": {"effort": "huge"}}, "reasoning.effort", "'minimal', 'none'"),
    wrong(RESPONSES, {"previous_response_id": "no"}, "previous_response_id", "'no' not found"),
    wrong(RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
    wrong(RESPONSES, {"tools": [{"type": "function"}]}, "tools[0].name", "Missing"),
    wrong(RESPONSES, {"tools": [NAMESPACE | {"tools": []}]}, "tools[0].tools", ">= 1"),
    wrong(
        RESPONSES,
        {"tools": [NAMESPACE | {"tools": [{"type": "custom", "name": "f"}]}]},
        "tools[0].tools[0].type",
        "'custom'",
    ),
    wrong(
        RESPONSES,
        {"tools": [TOOL, NAMESPACE, TOOL | {"name": "g"}, TOOL | {"name": "group__f"}]},
        "tools",
        "twice",
    ),
    wrong(
        RESPONSES,
        {
            "tools": [TOOL, NAMESPACE | {"tools": [TOOL, TOOL | {"name": "g"} | NOT]}],
            "tool_choice": "required",
        },
        "tools[1].tools[1].parameters",
        '"not"',
    ),
    wrong(
        RESPONSES,
        {"tools": [TOOL | {"parameters": {"not": {}}}], "tool_choice": "required"},
        "tools[0].parameters",
        '"not"',
    ),
    wrong(RESPONSES, {"tool_choice": "required"}, "tool_choice", "no 'tools'"),
    wrong(
        RESPONSES,
        {"tools": [TOOL], "tool_choice": {"type": "web_search"}},
        "tool_choice.type",
        "'web_search'. Supported values are: 'function', 'allowed_tools'",
    ),
    wrong(
        RESPONSES, {"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "names 'f'"
    ),
    wrong(
        RESPONSES,
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        "tool_choice",
        "must name some of 'tools'",
    ),
    wrong(RESPONSES, text_form(type="json_schema"), "text.format.schema", "Missing"),
    wrong(
        RESPONSES, text_form(type="json_schema", schema={"not": {}}), "text.format.schema", "not"
    ),
    wrong(RESPONSES, text_form(type="grammar"), "text.format.type", "'json_schema'"),
    unsupported(RESPONSES, {"truncation": "auto"}, "truncation"),
    unsupported(RESPONSES, {"conversation": "conv_1"}, "conversation"),
    unsupported(RESPONSES, {"prompt": {"id": "x"}}, "prompt"),
    wrong(RESPONSES, {"background": True, "store": False}, "background", "needs 'store'"),
    *(
        BadRequest(
            path=f"{RESPONSES}/{path}",
            method=method,
            param="response_id",
            says="'nope' not found. It may never have been stored",
            **NOT_FOUND,
        )
        for method, path in (
            ("GET", "nope"),
            ("GET", "nope?stream=true&starting_after=3"),
            ("GET", "nope/input_items"),
            ("DELETE", "nope"),
            ("POST", "nope/cancel"),
        )
    ),
    *(
        BadRequest(path=f"{RESPONSES}/{path}", method="GET", param=param, says=says)
        for path, param, says in (
            ("nope?stream=perhaps", "stream", "Expected `bool`"),
            ("nope?starting_after=-1", "starting_after", ">= 0"),
            ("nope/input_items?limit=101", "limit", "<= 100"),
            ("nope/input_items?order=up", "order", "'asc', 'desc'"),
        )
    ),
]

MESSAGES_ROWS = [
    wrong(MESSAGES, {"model": "claude"}, "model", "'claude'", status=404),
    wrong(MESSAGES, {"max_tokens": LEFT_OUT}, "max_tokens", "Missing"),
    wrong(MESSAGES, {"max_tokens": 0}, "max_tokens", ">= 1"),
    wrong(MESSAGES, {"messages": []}, "messages", "length >= 1"),
    wrong(MESSAGES, {"messages": "x"}, "messages", "Expected `array`"),
    wrong(MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'user'"),
    wrong(MESSAGES, {"messages": [{"role": "user"}]}, "messages[0].content", "Missing"),
    *(
        wrong(MESSAGES, block(type=kind), "messages[0].content[0]", f"'{kind}' is not supported")
        for kind in ("document", "tool_use")
    ),
    wrong(MESSAGES, block(type="image"), "messages[0].content[0].source", "Missing"),
    wrong(
        MESSAGES,
        block(type="image", source={"type": "url", "url": "https://example.com/a.png"}),
        "messages[0].content[0].source",
        "The model tiny takes no images",
    ),
    wrong(
        MESSAGES,
        block(type="image", source={"type": "base64", "data": "AA=="}),
        "messages[0].content[0].source.media_type",
        "Missing",
    ),
    wrong(
        MESSAGES,
        block(type="image", source={"type": "file", "file_id": "f"}),
        "messages[0].content[0].source.type",
        "'base64' and 'url' are",
    ),
    wrong(MESSAGES, block("assistant", type="tool_result"), "messages[0].content[0]", "here"),
    wrong(MESSAGES, block(type="text"), "messages[0].content[0].text", "Missing"),
    wrong(MESSAGES, block(type="tool_result"), "messages[0].content[0].tool_use_id", "Missing"),
    wrong(
        MESSAGES,
        block(type="tool_result", tool_use_id="x", content=[{"type": "image"}]),
        "messages[0].content[0].content[0].source",
        "Missing",
    ),
    wrong(MESSAGES, block("assistant", type="tool_use"), "messages[0].content[0].input", "Missing"),
    wrong(
        MESSAGES,
        {"messages": [{"role": "user", "content": "x" * 40_000}]},
        "",
        f"prompt is too long: 40015 tokens > {CONTEXT} maximum",
    ),
    wrong(MESSAGES, {"system": 5}, "system", "Expected `str | array | null`"),
    wrong(MESSAGES, {"system": [{"type": "image"}]}, "system[0]", "'image' is not supported"),
    wrong(MESSAGES, {"temperature": 1.5}, "temperature", "<= 1.0"),
    wrong(MESSAGES, {"top_k": -1}, "top_k", ">= 0"),
    wrong(MESSAGES, {"stop_sequences": [""]}, "stop_sequences", "1 to 512 characters"),
    wrong(MESSAGES, {"stop_sequences": ["x"] * 17}, "stop_sequences", "more than 16"),
    wrong(MESSAGES, {"thinking": True}, "thinking", "Expected `object | null`"),
    wrong(MESSAGES, {"thinking": {"type": "maybe"}}, "thinking.type", "'adaptive'"),
    wrong(
        MESSAGES,
        {"thinking": {"type": "enabled", "budget_tokens": 0}},
        "thinking.budget_tokens",
        ">= 1",
    ),
    wrong(MESSAGES, {"tools": [{"name": "x"}]}, "tools[0].input_schema", "Missing"),
    wrong(
        MESSAGES,
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0].type",
        "'web_search_20250305' are not supported; only your own are",
    ),
    wrong(
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": {"type": "array"}}]},
        "tools[0].input_schema",
        "of type 'object', not 'array'",
    ),
    wrong(
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": {"not": {}}}], "tool_choice": {"type": "any"}},
        "tools[0].input_schema",
        '"not"',
    ),
    wrong(MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice", "no 'tools'"),
    wrong(
        MESSAGES,
        {"tools": [CLAUDES_TOOL], "tool_choice": {"type": "tool"}},
        "tool_choice.name",
        "Missing",
    ),
    wrong(
        MESSAGES,
        {"tools": [CLAUDES_TOOL], "tool_choice": {"type": "tool", "name": "g"}},
        "tool_choice",
        "names 'g'",
    ),
    wrong(MESSAGES, {"mcp_servers": [{"url": "x"}]}, "mcp_servers", "not supported"),
    wrong(MESSAGES, {"container": "c"}, "container", "not supported"),
    wrong(
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
        "output_config.format.schema",
        '"not"',
    ),
    wrong(COUNT_TOKENS, {"model": "claude"}, "model", "'claude'", status=404),
    wrong(COUNT_TOKENS, {"messages": []}, "messages", "length >= 1"),
    wrong(COUNT_TOKENS, {"tools": [{"name": "x"}]}, "tools[0].input_schema", "Missing"),
    wrong(COUNT_TOKENS, block(type="image"), "messages[0].content[0].source", "Missing"),
]

ROWS = [*RESPONSES_ROWS, *MESSAGES_ROWS]
