"""The requests that pages show, and those of the clients in docs/clients.md, are answered."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.support.processes.pages import PAGES
from tests.support.processes.server import LiveServer
from tests.support.processes.shown import Shown, fences, sent_by_curl, shown_commands

pytestmark = pytest.mark.slow

ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|localhost):8000")
MODELS = re.compile(r'"(?:smollm2|coder|embed)"|(?<=/v1/models/)coder')
# `test_models.py` unloads: here, other tests need the model.
CURLS = [
    each
    for each in shown_commands()
    if each.program == "curl" and not any(word.endswith("/unload") for word in each.words)
]
SDKS = ("from openai ", "from anthropic ")  # LangChain runs in `tests/api/sdks/test_clients.py`
SCRIPTS = [
    block
    for page in PAGES
    for block in fences(page, "python")
    if block.startswith(SDKS) and "base_url" in block
]


def named(text: str, server: LiveServer) -> str:
    """The text with this server's address and model."""
    text = ADDRESS.sub(server.url, text)
    return MODELS.sub(lambda found: '"tiny"' if found[0][0] == '"' else "tiny", text)


@pytest.mark.parametrize("shown", CURLS, ids=lambda each: each.page)
def test_requests_with_curl_are_answered(live: LiveServer, shown: Shown) -> None:
    request = sent_by_curl([named(word, live) for word in shown.words[1:]])
    with httpx.Client(timeout=60) as client:
        response = client.send(request)
    assert response.status_code == 200, response.text
    assert "x-ignored-fields" not in response.headers


def test_scripts_for_the_official_sdks_run(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(script: str) -> str:
        exec(named(script, live), {})
        return capsys.readouterr().out.strip()

    assert len(SCRIPTS) >= 2
    for script in SCRIPTS:
        assert any(printed(script) for _ in range(8)), "tokens are drawn, and may be none or blank"


TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TEXT = [{"type": "input_text", "text": "hello"}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SHELL = {"name": "shell", "description": "Runs a command.", "parameters": TOOL}
OPENAIS_TOOLS = {"tools": [{"type": "function", "function": SHELL}], "tool_choice": "auto"}
CALLED = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "done"},
]
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
TITLE = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 20}},
    "required": ["title"],
    "additionalProperties": False,
}
# What the programs sent in November 2026, in the versions that docs/clients.md names, but shorter.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Codex": (
        "/v1/responses",
        {
            "instructions": "You are a coding agent.",
            "input": [
                {"type": "message", "id": "msg_1", "role": "developer", "content": TEXT},
                {"type": "message", "role": "user", "content": TEXT},
                {
                    "type": "function_call",
                    "id": "fc_1",
                    "name": "close_agent",
                    "namespace": "multi_agent_v1",
                    "arguments": "{}",
                    "call_id": "call_1",
                },
                {"type": "function_call_output", "call_id": "call_1", "output": "done"},
            ],
            "tools": [
                {"type": "function", "name": "exec_command", "strict": False, "parameters": TOOL},
                {
                    "type": "namespace",
                    "name": "multi_agent_v1",
                    "description": "Sub-agents.",
                    "tools": [
                        {
                            "type": "function",
                            "name": "close_agent",
                            "strict": False,
                            "parameters": TOOL,
                        }
                    ],
                },
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "a-conversation",
            "client_metadata": {"session": "a-session"},
            "stream": True,
        },
    ),
    "Claude Code": (
        "/v1/messages?beta=true",
        {
            "max_tokens": 32000,
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1"},
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
                {"role": "system", "content": "Available agents: none"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "content": "done",
                            "is_error": False,
                            "cache_control": {"type": "ephemeral"},
                        }
                    ],
                },
            ],
            "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": TOOL}],
            "metadata": {"user_id": "somebody"},
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        },
    ),
    "Claude Code asking for a title": (
        "/v1/messages?beta=true",
        {
            "max_tokens": 32000,
            "system": [{"type": "text", "text": "Write a title."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
            "tools": [],
            "metadata": {"user_id": "somebody"},
            "output_config": {
                "effort": "high",
                "format": {"type": "json_schema", "schema": TITLE},
            },
            "stream": True,
        },
    ),
    "Continue, opencode, Cline": (
        "/v1/chat/completions",
        {"messages": [*HELLO, *CALLED], "max_tokens": 64, **OPENAIS_TOOLS, **USAGE},
    ),
    "aider": (
        "/v1/chat/completions",
        {"messages": [*HELLO, *HELLO], "temperature": 0, "stream": True},
    ),
    "Open WebUI": (
        "/v1/chat/completions",
        {"messages": HELLO[1:], "tools": OPENAIS_TOOLS["tools"], "max_tokens": 64, "stream": True},
    ),
}


@pytest.mark.parametrize("client", REQUESTS)
def test_requests_like_those_of_clients_are_answered(live: LiveServer, client: str) -> None:
    path, body = REQUESTS[client]
    headers = {"Authorization": "Bearer unused", "anthropic-version": "2023-06-01"}
    response = httpx.post(
        live.url + path, json={"model": "tiny", **body}, headers=headers, timeout=60
    )
    assert response.status_code == 200, response.text
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    assert events
    assert not any("error" in json.loads(event) for event in events), events[-1]


@pytest.mark.parametrize("kind", ["web_search", "image_generation", "custom"])
def test_tools_that_the_page_tells_codex_to_leave_out_are_refused(
    live: LiveServer, kind: str
) -> None:
    body = {"model": "tiny", "input": "hello", "tools": [{"type": kind, "name": "a"}]}
    response = httpx.post(f"{live.url}/v1/responses", json=body, timeout=60)
    assert response.status_code == 400
    assert kind in response.json()["error"]["message"]
