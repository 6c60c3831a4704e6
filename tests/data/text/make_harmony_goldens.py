"""Makes `harmony.json` with OpenAI's own package: what answers mean, and what prompts look like.

    npm pack js-tiktoken@1.0.21 && tar xzf js-tiktoken-1.0.21.tgz
    pip install openai-harmony==0.0.8
    python -m tests.data.text.make_harmony_goldens package/dist/ranks/o200k_base.js

The package downloads its vocabulary, or takes it from the folder that TIKTOKEN_ENCODINGS_BASE
names. js-tiktoken has the same one in other words; openai-harmony checks its hash.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
DATE = "2026-07-26"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Forecast of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]

USER = {"role": "user", "content": "How is the weather?"}


def call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(name: str, arguments: str, call_id: str, **more: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [call(name, arguments, call_id)],
        **more,
    }


CONVERSATIONS: dict[str, dict[str, Any]] = {
    "a question": {"messages": [USER]},
    "little effort": {"messages": [USER], "effort": "low"},
    "instructions": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "reasoning of an answered turn is dropped": {
        "messages": [
            USER,
            {"role": "assistant", "content": "Fine.", "reasoning_content": "Look out."},
            {"role": "user", "content": "And tomorrow?"},
        ]
    },
    "reasoning stays while calls run": {
        "tools": TOOLS,
        "messages": [
            USER,
            calling("get_weather", '{"city": "Oslo"}', "1", reasoning_content="I must look."),
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            calling("now", "{}", "2", reasoning_content="And when?"),
            {"role": "tool", "tool_call_id": "2", "content": "noon"},
        ],
    },
    "reasoning of calls goes after the answer": {
        "tools": TOOLS,
        "messages": [
            USER,
            calling("get_weather", '{"city": "Oslo"}', "1", reasoning_content="I must look."),
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
            {"role": "assistant", "content": "Sunny.", "reasoning_content": "So."},
            {"role": "user", "content": "Thanks."},
        ],
    },
}

START = "<|start|>assistant"
THINK = "<|channel|>analysis<|message|>Hm.<|end|>"
ANSWERS = {
    "final": "<|channel|>final<|message|>Hello!<|return|>",
    "analysis, final": f"{THINK}{START}<|channel|>final<|message|>Hello!<|return|>",
    "recipient behind the channel": (
        f"{THINK}{START}<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        '{"a": 1}<|call|>'
    ),
    "recipient before the channel": (
        f'{THINK}{START} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}<|call|>'
    ),
    "constraint behind both": (
        f"{THINK}{START} to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
        '{"a": 1}<|call|>'
    ),
    "call among the thoughts": (
        '<|channel|>analysis to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    ),
    "no type of content": "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
    "preamble, call": (
        f"{THINK}{START}<|channel|>commentary<|message|>I look.<|end|>{START}<|channel|>commentary "
        "to=functions.f <|constrain|>json<|message|>{}<|call|>"
    ),
    "two thoughts": f"{THINK}{START}{THINK}{START}<|channel|>final<|message|>A<|return|>",
    "cut within the arguments": (
        f'{THINK}{START} to=functions.f<|channel|>commentary json<|message|>{{"a'
    ),
    "cut within a thought": "<|channel|>analysis<|message|>Hm",
    "not JSON": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{'a': 1,<|call|>",
    "several lines, other scripts": (
        "<|channel|>final<|message|>Grüße,\n\n日本語 👩‍👩‍👧 <|return|>"
    ),
}


def answers(harmony: Any, encoding: Any) -> list[dict[str, Any]]:
    """What OpenAI's parser finds in each answer."""
    found = []
    for name, text in ANSWERS.items():
        parser = harmony.StreamableParser(encoding, role=harmony.Role.ASSISTANT)
        for token in encoding.encode(text, allowed_special="all"):
            parser.process(token)
        messages = [
            {"channel": m.channel, "recipient": m.recipient, "text": m.content[0].text}
            for m in parser.messages
        ]
        if (
            parser.current_content
            and parser.current_content != (messages or [{"text": ""}])[-1]["text"]
        ):
            messages.append(
                {
                    "channel": parser.current_channel,
                    "recipient": parser.current_recipient,
                    "text": parser.current_content,
                }
            )
        found.append({"name": name, "text": text, "messages": messages})
    return found


def prompts(harmony: Any, encoding: Any) -> list[dict[str, Any]]:
    """How OpenAI's renderer writes each conversation."""
    made = []
    for name, case in CONVERSATIONS.items():
        conversation = harmony.Conversation.from_messages(_messages(harmony, case))
        tokens = encoding.render_conversation_for_completion(conversation, harmony.Role.ASSISTANT)
        made.append({"name": name, **case, "prompt": encoding.decode_utf8(tokens)})
    return made


def _messages(harmony: Any, case: dict[str, Any]) -> list[Any]:
    effort = harmony.ReasoningEffort(case.get("effort", "medium").capitalize())
    system = harmony.SystemContent.new().with_reasoning_effort(effort)
    system = system.with_conversation_start_date(DATE)
    developer = harmony.DeveloperContent.new()
    messages = case["messages"]
    if messages[0]["role"] == "system":
        developer = developer.with_instructions(messages[0]["content"])
        messages = messages[1:]
    if "tools" in case:
        developer = developer.with_function_tools(
            [
                harmony.ToolDescription.new(
                    tool["function"]["name"],
                    tool["function"]["description"],
                    tool["function"].get("parameters"),
                )
                for tool in case["tools"]
            ]
        )
    made = [harmony.Message.from_role_and_content(harmony.Role.SYSTEM, system)]
    if case["messages"][0]["role"] == "system" or "tools" in case:
        made.append(harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, developer))
    called = ""
    for message in messages:
        made += _converted(harmony, message, called)
        if message.get("tool_calls"):
            called = message["tool_calls"][0]["function"]["name"]
    return made


def _converted(harmony: Any, message: dict[str, Any], called: str) -> list[Any]:
    make = harmony.Message.from_role_and_content
    match message["role"]:
        case "user":
            return [make(harmony.Role.USER, message["content"])]
        case "tool":
            author = harmony.Author.new(harmony.Role.TOOL, f"functions.{called}")
            # As gpt-oss' own template has it: a result is JSON.
            result = harmony.Message.from_author_and_content(author, json.dumps(message["content"]))
            return [result.with_channel("commentary").with_recipient("assistant")]
    made = []
    if "reasoning_content" in message:
        thought = make(harmony.Role.ASSISTANT, message["reasoning_content"])
        made.append(thought.with_channel("analysis"))
    for tool_call in message.get("tool_calls", []):
        function = tool_call["function"]
        said = make(harmony.Role.ASSISTANT, function["arguments"]).with_channel("commentary")
        said = said.with_recipient(f"functions.{function['name']}").with_content_type("json")
        made.append(said)
    if message["content"]:
        made.append(make(harmony.Role.ASSISTANT, message["content"]).with_channel("final"))
    return made


def vocabulary(source: str) -> bytes:
    """js-tiktoken's ranks, as tiktoken's own file has them."""
    ranks = json.loads(source[source.index("{") : source.rindex("}") + 1])["bpe_ranks"]
    lines = []
    for line in ranks.split("\n"):
        _, first, *tokens = re.split(" ", line)
        lines += [f"{token} {int(first) + i}\n" for i, token in enumerate(tokens)]
    return "".join(lines).encode()


def main() -> None:
    with TemporaryDirectory() as folder:
        ranks = Path(sys.argv[1]).read_text()
        (Path(folder) / "o200k_base.tiktoken").write_bytes(vocabulary(ranks))
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
        harmony = import_module("openai_harmony")
        encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
        goldens = {
            "date": DATE,
            "answers": answers(harmony, encoding),
            "prompts": prompts(harmony, encoding),
        }
    text = json.dumps(goldens, indent=1, ensure_ascii=False) + "\n"
    (HERE / "harmony.json").write_text(text)


if __name__ == "__main__":
    main()
