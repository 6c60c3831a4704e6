"""Mistakes in requests for chat and text completions."""

from __future__ import annotations

from typing import Any

from tests.api.bad_requests.row import (
    CHAT,
    COMPLETIONS,
    CONTEXT,
    LEFT_OUT,
    BadRequest,
    unsupported,
    wrong,
)


def said(**message: Any) -> dict[str, Any]:
    return {"messages": [message]}


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def schema(kind: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": kind}}}


def chain(length: int) -> dict[str, Any]:
    """Each object in the next: compiling this would overflow the stack of a process."""
    links = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(length)
    }
    return {"$defs": {**links, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


FORCED: dict[str, Any] = {"tool_choice": "required"}
IN_SCHEMA = "response_format.json_schema.schema"
TOO_LONG = {"status": 400, "code": "context_length_exceeded"}

MODEL_AND_MESSAGES = [
    wrong(CHAT, {"model": LEFT_OUT}, "model", "Missing required parameter"),
    wrong(CHAT, {"model": 7}, "model", "Expected `str`, got `int`"),
    wrong(CHAT, {"model": "gpt-4"}, "model", "Available: tiny", status=404, code="model_not_found"),
    wrong(CHAT, {"model": "../x"}, "model", "'../x'", status=404, code="model_not_found"),
    wrong(CHAT, {"model": "x" * 9999}, "model", "xxx...'", status=404, code="model_not_found"),
    wrong(CHAT, {"messages": LEFT_OUT}, "messages", "Missing required parameter"),
    wrong(CHAT, {"messages": None}, "messages", "Expected `array`, got `null`"),
    wrong(CHAT, {"messages": "hello"}, "messages", "Expected `array`, got `str`"),
    wrong(CHAT, {"messages": []}, "messages", "must not be empty"),
    wrong(CHAT, {"messages": ["hello"]}, "messages[0]", "Expected `object`, got `str`"),
    wrong(CHAT, said(content="x"), "messages[0].role", "Missing"),
    wrong(CHAT, said(role="wizard"), "messages[0].role", "'system', 'tool', 'user'"),
    wrong(CHAT, said(role="user"), "messages[0].content", "must not be null"),
    wrong(CHAT, said(role="user", content=1), "messages[0].content", "Expected `str | array"),
    wrong(
        CHAT, said(role="user", content=[{"text": "x"}]), "messages[0].content[0].type", "Missing"
    ),
    wrong(
        CHAT,
        said(role="user", content=[{"type": "text"}]),
        "messages[0].content[0].text",
        "is missing",
    ),
    *(
        wrong(
            CHAT,
            said(role="user", content=[{"type": "text", "text": "look"}, {"type": kind}]),
            "messages[0].content[1]",
            f"'{kind}' is not supported; only 'text' and 'image_url' are",
            code="unsupported_parameter",
        )
        for kind in ("input_audio", "file")
    ),
    wrong(
        CHAT,
        said(role="user", content=[{"type": "image_url"}]),
        "messages[0].content[0].image_url",
        "is missing",
    ),
    wrong(
        CHAT,
        said(role="user", content=[{"type": "image_url", "image_url": 5}]),
        "messages[0].content[0].image_url",
        "Expected `str | object | null`",
    ),
    wrong(
        CHAT,
        said(
            role="user",
            content=[{"type": "image_url", "image_url": {"url": "", "detail": "most"}}],
        ),
        "messages[0].content[0].image_url.detail",
        "'high'",
    ),
    *(
        wrong(
            CHAT,
            said(role="user", content=[{"type": "image_url", "image_url": image}]),
            "messages[0].content[0].image_url",
            "The model tiny takes no images",
            code="unsupported_parameter",
        )
        for image in ({"url": "data:"}, "data:")
    ),
    wrong(
        CHAT,
        said(role="assistant", tool_calls=[{"id": "1", "function": {"name": "f"}}]),
        "messages[0].tool_calls[0].function.arguments",
        "Missing",
    ),
    wrong(
        CHAT,
        said(
            role="assistant", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": {}}}]
        ),
        "messages[0].tool_calls[0].function.arguments",
        "Expected `str`, got `object`",
    ),
    wrong(
        CHAT, said(role="user", content="x" * 40_000), "messages", f"{CONTEXT} tokens", **TOO_LONG
    ),
]

SAMPLING = [
    wrong(CHAT, {"temperature": -0.1}, "temperature", ">= 0.0"),
    wrong(CHAT, {"temperature": 2.1}, "temperature", "<= 2.0"),
    wrong(CHAT, {"temperature": "hot"}, "temperature", "Expected `float | null`, got `str`"),
    wrong(CHAT, {"temperature": True}, "temperature", "got `bool`"),
    wrong(CHAT, {"top_p": 1.1}, "top_p", "<= 1.0"),
    wrong(CHAT, {"top_k": -2}, "top_k", ">= -1"),
    wrong(CHAT, {"top_k": 1.5}, "top_k", "got `float`"),
    wrong(CHAT, {"top_k": 10**30}, "top_k", "<= 2147483647"),
    wrong(CHAT, {"min_p": 2}, "min_p", "<= 1.0"),
    wrong(CHAT, {"repetition_penalty": 0}, "repetition_penalty", ">= 1e-06"),
    wrong(CHAT, {"repetition_penalty": 1e-39}, "repetition_penalty", ">= 1e-06"),
    wrong(COMPLETIONS, {"repetition_penalty": 1e-300}, "repetition_penalty", ">= 1e-06"),
    wrong(CHAT, {"cache_salt": ""}, "cache_salt", "length >= 1"),
    wrong(COMPLETIONS, {"cache_salt": "x" * 257}, "cache_salt", "length <= 256"),
    wrong(CHAT, {"presence_penalty": 3}, "presence_penalty", "<= 2.0"),
    wrong(CHAT, {"frequency_penalty": -3}, "frequency_penalty", ">= -2.0"),
    wrong(CHAT, {"n": 0}, "n", ">= 1"),
    wrong(CHAT, {"n": 129}, "n", "<= 128"),
    wrong(CHAT, {"seed": 1.5}, "seed", "Expected `int | null`"),
    wrong(CHAT, {"stop": [1]}, "stop[0]", "Expected `str`"),
    wrong(CHAT, {"stop": ["a", ""]}, "stop", "1 to 512 characters"),
    wrong(CHAT, {"stop": ["x"] * 17}, "stop", "more than 16 entries"),
    wrong(CHAT, {"stop": "x" * 513}, "stop", "1 to 512 characters"),
    wrong(CHAT, {"max_tokens": 0}, "max_tokens", ">= 1"),
    wrong(CHAT, {"max_tokens": "many"}, "max_tokens", "got `str`"),
    wrong(CHAT, {"max_tokens": CONTEXT}, "max_tokens", f"{CONTEXT} for the completion", **TOO_LONG),
    wrong(CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", ">= 1"),
    wrong(CHAT, {"max_completion_tokens": 10**30}, "max_completion_tokens", "fewer", **TOO_LONG),
    wrong(CHAT, {"min_tokens": 5, "max_tokens": 4}, "min_tokens", "at most 4"),
    wrong(CHAT, {"logprobs": 5}, "logprobs", "Expected `bool | null`"),
    wrong(CHAT, {"top_logprobs": 2}, "top_logprobs", "needs 'logprobs'"),
    wrong(CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
    *(
        wrong(CHAT, {"logit_bias": {key: 1}}, "logit_bias", "key in 'logit_bias': Expected digits")
        for key in ("word", "", "1.0", " 5", "05")
    ),
    wrong(CHAT, {"logit_bias": {"5": 101}}, "logit_bias[...]", "<= 100.0"),
    wrong(CHAT, {"logit_bias": {"1000": 1}}, "logit_bias", "vocabulary of 1000 tokens"),
    wrong(CHAT, {"logit_bias": {str(10**25): 1}}, "logit_bias", "not in the vocabulary"),
    wrong(CHAT, {"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias", "more than 1024"),
    wrong(CHAT, {"stop_token_ids": [1000]}, "stop_token_ids", "vocabulary of 1000 tokens"),
    wrong(CHAT, {"stop_token_ids": [1] * 1025}, "stop_token_ids", "more than 1024"),
    wrong(CHAT, {"prompt_lookup_num_tokens": 33}, "prompt_lookup_num_tokens", "<= 32"),
    wrong(CHAT, {"logits_processors": {"nope": {}}}, "logits_processors.nope", "There are: dry"),
    unsupported(CHAT, {"typical_p": 0.5}, "typical_p", "has no logits processor"),
    wrong(CHAT, {"ignore_eos": "no"}, "ignore_eos", "got `str`"),
    wrong(CHAT, {"timeout": 0}, "timeout", "> 0.0"),
    wrong(CHAT, {"reasoning_effort": "lots"}, "reasoning_effort", "'medium', 'minimal', 'none'"),
    wrong(CHAT, {"thinking_budget": -1}, "thinking_budget", ">= 0"),
    wrong(CHAT, {"thinking_budget": 2**31}, "thinking_budget", "<= 2147483647"),
]

FORM = [
    wrong(CHAT, {"stream": "yes"}, "stream", "Expected `bool | null`"),
    wrong(CHAT, {"stream_options": {}}, "stream_options", "only allowed when 'stream' is true"),
    wrong(
        CHAT,
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "got `int`",
    ),
    wrong(CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "cannot be streamed"),
    wrong(CHAT, {"response_format": "json"}, "response_format", "Expected `object | null`"),
    wrong(
        CHAT,
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "'xml'. Supported values are: 'json_object', 'json_schema', 'text'",
    ),
    wrong(CHAT, {"response_format": {"type": "json_schema"}}, IN_SCHEMA, "Missing"),
    wrong(CHAT, schema("x"), IN_SCHEMA, "Expected `bool | object | null`"),
    wrong(CHAT, schema({"not": {"type": "string"}}), IN_SCHEMA, '"not"'),
    wrong(CHAT, schema({"properties": {"a": {"uniqueItems": True}}}), IN_SCHEMA, '"uniqueItems"'),
    wrong(CHAT, schema({"type": "objekt"}), IN_SCHEMA, "objekt"),
    wrong(CHAT, schema({"type": "string", "pattern": "("}), IN_SCHEMA, "unclosed group"),
    wrong(
        CHAT,
        schema({"type": "integer", "minimum": 5, "maximum": 1}),
        IN_SCHEMA,
        "minimum (5) is greater",
    ),
    wrong(CHAT, schema({"$ref": "http://evil.example/x"}), IN_SCHEMA, "evil.example"),
    wrong(CHAT, {"guided_json": "{"}, "guided_json", "not a JSON schema"),
    wrong(CHAT, {"guided_json": {"properties": 3}}, "guided_json", "properties"),
    wrong(CHAT, {"guided_json": chain(1000)}, "guided_json", "too long a chain"),
    wrong(CHAT, {"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    wrong(CHAT, {"guided_regex": "(?=a)"}, "guided_regex", "look-around"),
    wrong(CHAT, {"guided_regex": "a\\"}, "guided_regex", "backslash that escapes nothing"),
    wrong(CHAT, {"guided_regex": "a{1000}{1000}{1000}"}, "guided_regex", "too many"),
    wrong(CHAT, {"guided_choice": []}, "guided_choice", "1 to 1024 entries"),
    wrong(CHAT, {"guided_choice": "red"}, "guided_choice", "Expected `array | null`"),
    wrong(CHAT, {"guided_grammar": ""}, "guided_grammar", "no start rule"),
    wrong(CHAT, {"guided_grammar": "start: foo"}, "guided_grammar", "foo"),
    wrong(CHAT, {"guided_grammar": "start: start"}, "guided_grammar", "no text that matches"),
    wrong(CHAT, {"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "group"),
    wrong(CHAT, {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "exclude"),
    wrong(CHAT, {"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "'guided_regex'"),
    wrong(CHAT, {"guided_regex": "a", "min_tokens": 1}, "min_tokens", "'guided_regex'"),
]

TEMPLATE_AND_TOOLS = [
    wrong(CHAT, {"chat_template_kwargs": [1]}, "chat_template_kwargs", "Expected `object | null`"),
    *(
        wrong(
            CHAT,
            {"chat_template_kwargs": {name: 1}},
            f"chat_template_kwargs.{name}",
            f"cannot set '{name}'",
        )
        for name in ("messages", "tools", "add_generation_prompt")
    ),
    wrong(CHAT, {"continue_final_message": True}, "continue_final_message", "the assistant's"),
    wrong(
        CHAT,
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "exclude each other",
    ),
    wrong(CHAT, {"tools": 3}, "tools", "Expected `array | null`"),
    wrong(CHAT, {"tools": [{"type": "function"}]}, "tools[0].function", "Missing"),
    wrong(CHAT, {"tools": [{"type": "code", "function": {}}]}, "tools[0].type", "'function'"),
    wrong(CHAT, {"tools": [function("")]}, "tools[0].function.name", "length >= 1"),
    wrong(CHAT, {"tools": [function("f" * 257)]}, "tools[0].function.name", "length <= 256"),
    wrong(CHAT, {"tools": [function(), function()]}, "tools", "same function name twice"),
    wrong(CHAT, {"tools": [function(f"f{i}") for i in range(129)]}, "tools", "more than 128"),
    wrong(
        CHAT,
        {"tools": [function(parameters=[])]},
        "tools[0].function.parameters",
        "Expected `object | null`",
    ),
    wrong(
        CHAT,
        {"tools": [function(parameters={"type": "string"})]},
        "tools[0].function.parameters",
        "of type 'object', not 'string'",
    ),
    wrong(
        CHAT,
        {"tools": [function(parameters={"not": {}})], **FORCED},
        "tools[0].function.parameters",
        '"not"',
    ),
    wrong(
        CHAT,
        {"tools": [function(parameters={"$ref": "#/$defs/none"})], **FORCED},
        "tools[0].function.parameters",
        "'/$defs/none' does not exist",
    ),
    wrong(CHAT, FORCED, "tool_choice", "there are no 'tools'"),
    wrong(
        CHAT,
        {"tools": [function()], "tool_choice": "often"},
        "tool_choice",
        "'often'. Supported values are: 'auto', 'none', 'required'",
    ),
    wrong(
        CHAT,
        {"tools": [function()], "tool_choice": {"type": "function"}},
        "tool_choice.function",
        "Missing",
    ),
    wrong(CHAT, {"tools": [function()], "tool_choice": function("g")}, "tool_choice", "'g'"),
    wrong(CHAT, {"tools": [function()], **FORCED, "ignore_eos": True}, "ignore_eos", "forced call"),
    wrong(CHAT, {"parallel_tool_calls": "no"}, "parallel_tool_calls", "Expected `bool | null`"),
]

LABELS = [
    wrong(CHAT, {"user": 5}, "user", "Expected `str | null`"),
    wrong(CHAT, {"store": "x"}, "store", "Expected `bool | null`"),
    wrong(CHAT, {"metadata": {"a": 1}}, "metadata[...]", "Expected `str`"),
    wrong(CHAT, {"metadata": {"x" * 65: ""}}, "metadata", "key in 'metadata': Expected `str` of"),
    wrong(CHAT, {"service_tier": "best"}, "service_tier", "'auto', 'default', 'flex'"),
    wrong(CHAT, {"prompt_cache_key": {}}, "prompt_cache_key", "Expected `str | null`"),
]

KNOWN_AND_NOT_DONE = [
    unsupported(CHAT, {"functions": [{"name": "f"}]}, "functions"),
    unsupported(CHAT, {"function_call": {"name": "f"}}, "function_call"),
    unsupported(CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    unsupported(CHAT, {"audio": {"voice": "x"}}, "audio"),
    unsupported(CHAT, {"prediction": {"type": "content", "content": "x"}}, "prediction"),
    unsupported(CHAT, {"web_search_options": {}}, "web_search_options"),
    unsupported(CHAT, {"use_beam_search": True}, "use_beam_search"),
    unsupported(CHAT, {"best_of": 2}, "best_of", "only if equal to 'n'"),
    unsupported(CHAT, {"chat_template": "{{ x }}"}, "chat_template"),
    unsupported(CHAT, {"grammar": "root ::= 'a'"}, "grammar"),
    unsupported(CHAT, {"mirostat": 2}, "mirostat"),
    unsupported(COMPLETIONS, {"suffix": "the end"}, "suffix", "this one has none"),
]

TEXT = [
    wrong(COMPLETIONS, {"model": "no"}, "model", "'no'", status=404, code="model_not_found"),
    wrong(COMPLETIONS, {"prompt": LEFT_OUT}, "prompt", "Missing"),
    wrong(COMPLETIONS, {"prompt": None}, "prompt", "Expected `str | array`"),
    wrong(COMPLETIONS, {"prompt": {"text": "a"}}, "prompt", "got `object`"),
    wrong(COMPLETIONS, {"prompt": ""}, "prompt", "must not be empty"),
    wrong(COMPLETIONS, {"prompt": []}, "prompt", "list of strings"),
    wrong(COMPLETIONS, {"prompt": [[]]}, "prompt", "must not be empty"),
    wrong(COMPLETIONS, {"prompt": ["a", ""]}, "prompt", "must not be empty"),
    wrong(COMPLETIONS, {"prompt": ["a", 1]}, "prompt", "list of lists of token ids"),
    wrong(COMPLETIONS, {"prompt": ["a", [1]]}, "prompt", "list of lists of token ids"),
    wrong(COMPLETIONS, {"prompt": [1.5]}, "prompt[0]", "got `float`"),
    wrong(COMPLETIONS, {"prompt": [True]}, "prompt[0]", "got `bool`"),
    wrong(COMPLETIONS, {"prompt": [1000]}, "prompt", "Token id 1000"),
    wrong(COMPLETIONS, {"prompt": [-1]}, "prompt", "Token id -1"),
    wrong(COMPLETIONS, {"prompt": [[1], [10**25]]}, "prompt", "vocabulary of 1000 tokens"),
    wrong(COMPLETIONS, {"prompt": ["a"] * 9, "n": 128}, "n", "takes 1024 at once"),
    wrong(COMPLETIONS, {"prompt": ["a"] * 1025}, "prompt", "takes 1024 at once"),
    wrong(COMPLETIONS, {"prompt": [1] * (CONTEXT + 5)}, "prompt", str(CONTEXT + 5), **TOO_LONG),
    wrong(
        COMPLETIONS,
        {"prompt": [1] * 9, "max_tokens": CONTEXT - 8},
        "max_tokens",
        f"9 for the prompt and {CONTEXT - 8}",
        **TOO_LONG,
    ),
    wrong(COMPLETIONS, {"max_tokens": 0}, "max_tokens", "needs 'echo'"),
    wrong(COMPLETIONS, {"max_tokens": -1}, "max_tokens", ">= 0"),
    wrong(COMPLETIONS, {"logprobs": True}, "logprobs", "got `bool`"),
    wrong(COMPLETIONS, {"logprobs": 21}, "logprobs", "<= 20"),
    wrong(COMPLETIONS, {"echo": "yes"}, "echo", "got `str`"),
    wrong(COMPLETIONS, {"best_of": 1, "n": 2}, "best_of", "fewer than the 2 choices"),
    wrong(COMPLETIONS, {"best_of": 2, "stream": True}, "best_of", "cannot be streamed"),
    wrong(COMPLETIONS, {"guided_json": {"not": {}}}, "guided_json", '"not"'),
    BadRequest(
        path=COMPLETIONS,
        content=b'{"model": "tiny", "prompt": "a", "max_tokens": 1, "max_tokens": -1}',
        param="max_tokens",
        says=">= 0",  # of a name that comes twice, the last one counts
    ),
]

ROWS = [
    *MODEL_AND_MESSAGES,
    *SAMPLING,
    *FORM,
    *TEMPLATE_AND_TOOLS,
    *LABELS,
    *KNOWN_AND_NOT_DONE,
    *TEXT,
]
