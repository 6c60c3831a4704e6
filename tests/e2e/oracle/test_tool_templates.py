"""Calls in the history, as real chat templates write them, are what our parsers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocmforge.text.template.template import ChatTemplate
from rocmforge.text.tool_calls import FORMATS, CallArguments, CallBegin, format_for

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "days": {"type": "integer", "description": "How many"},
    },
    "required": ["city"],
}
ARGUMENTS = {"city": 'São "Paulo"', "days": 3}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Forecast", "parameters": PARAMETERS},
    }
]
TEMPLATES = {
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed-oss",
    "GLM-4.6": "glm4",
    "GLM-4.7-Flash": "glm4",
    "LFM2.5-8B-A1B": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M2": "minimax",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-v11",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm4",
    "StepFun3.5-Flash": "qwen3-coder",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm4",
    "meetkai-functionary-medium-v3.1": "functionary",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral-v11",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "poolside-Laguna-S-2.1": "glm4",
    "poolside-Laguna-XS-2.1": "glm4",
    "poolside-Laguna-XS.2": "glm4",
    "unsloth-mistral-Devstral-Small-2507": "mistral-v11",
}


@pytest.mark.parametrize(("name", "form"), TEMPLATES.items())
def test_a_call_in_the_history_reads_back(llama_cpp_source: Path, name: str, form: str) -> None:
    source = (llama_cpp_source / "models/templates" / f"{name}.jinja").read_text()
    assert format_for(source) is FORMATS[form]
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    function = {"name": "weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
    call = {"id": "abc123def", "type": "function", "function": function}
    asked: list[dict[str, Any]] = [{"role": "user", "content": "And?"}]
    called = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    told = [
        *called,
        {"role": "tool", "tool_call_id": "abc123def", "name": "weather", "content": "sunny"},
    ]
    before = template.render(asked, tools=TOOLS).text
    after = template.render(told, tools=TOOLS).text
    # Where they part: within the mark of the call, if another mark can stand in its place.
    pairs = enumerate(zip(before, after, strict=False))
    start = next((i for i, (a, b) in pairs if a != b), len(before))
    mark = before.rfind("<", max(0, start - 8), start)
    answer = after[mark if mark >= 0 and ">" not in before[mark:start] else start :]
    parser = FORMATS[form].parser({"weather": PARAMETERS}, None)
    said = parser.push(answer) + parser.finish()
    assert [item.name for item in said if isinstance(item, CallBegin)] == ["weather"]
    arguments = "".join(item.text for item in said if isinstance(item, CallArguments))
    assert json.loads(arguments) == ARGUMENTS
    assert "sunny" in after
