"""What a turn of a coding agent costs the server before the engine hears of it.

    python -m benchmarks.chat_turns MODEL.gguf --template Qwen3.5-4B.jinja

The conversation has calls, and what they returned, 3,000 characters each; its last two messages are
the only ones that the server has not seen. Times are processor time of one thread, which keeps
others from running Python meanwhile. Jinja alone renders as Transformers does: without a
budget, and without knowing which text is a client's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rocmforge.api.generate.convert import prepare_chat
from rocmforge.api.generate.schema import ChatRequest
from rocmforge.opening import open_checkpoint
from rocmforge.text.template.conversation import with_parsed_arguments
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api.fake_engine import RUNNER, FakeEngine, make_model

_RETURNED: Final = 3000  # characters
_CONTEXT: Final = 1 << 20

Values = dict[str, Any]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="whose tokenizer is used")
    parser.add_argument("--template", type=Path, help="a chat template; else the model's own")
    parser.add_argument("--calls", type=int, default=120)
    parser.add_argument("--tools", type=int, default=25)
    parser.add_argument("--repeat", type=int, default=12)
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.model)
    tokenizer, sources = Tokenizer(checkpoint.read_tokenizer()), checkpoint.chat_templates
    if options.template is not None:
        sources = {"default": options.template.read_text(encoding="utf-8")}
    templates = ChatTemplates.compile(sources, tokenizer)
    runner = replace(RUNNER, max_context=_CONTEXT, vocab_size=tokenizer.vocab_size)
    model = make_model(
        FakeEngine(runner=runner),
        tokenizer=tokenizer,
        templates=templates,
        declared_context=_CONTEXT,
    )
    tools = [tool(number) for number in range(options.tools)]
    messages = conversation(options.calls)
    before, now = (
        json.dumps({"model": "tiny", "messages": each, "tools": tools}).encode()
        for each in (messages[:-2], messages)
    )
    decoder = msgspec.json.Decoder(ChatRequest)
    prepare_chat(model, decoder.decode(before))
    template = templates.select(with_tools=True)
    times = {
        "all of it": lambda: prepare_chat(model, decoder.decode(now)),
        "template": lambda: template.render(messages, tools=tools),
        "template, Jinja alone": jinja_alone(template.source, messages, tools),
    }
    print(f"{len(messages)} messages, {len(tools)} tools, {len(now) / 1e3:.0f} KB")
    for name, work in times.items():
        print(f"{name:22} {median_ms(work, options.repeat):7.1f} ms")


def conversation(calls: int) -> list[Values]:
    """Returns a task, and calls with what they returned."""
    source = random.Random(0)
    words = ["".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(1000)]
    messages: list[Values] = [
        {"role": "system", "content": "You are an agent. " * 800},
        {"role": "user", "content": "Find out why the test fails."},
    ]
    for number in range(calls):
        arguments = json.dumps({"path": f"src/module_{number}.py", "text": "x" * 200})
        function = {"name": f"tool_{number % 25}", "arguments": arguments}
        messages += [
            {
                "role": "assistant",
                "content": f"I look at module {number}.",
                "reasoning_content": "Let me think about it. " * 20,
                "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
            },
            {
                "role": "tool",
                "tool_call_id": f"call_{number}",
                "content": " ".join(source.choices(words, k=_RETURNED // 6)),
            },
        ]
    return messages


def tool(number: int) -> Values:
    """Returns a function with five parameters."""
    parameter = {"type": "string", "description": "What it is. " * 6}
    names = ("path", "text", "first", "last", "mode")
    function = {
        "name": f"tool_{number}",
        "description": "Does a thing. " * 20,
        "parameters": {"type": "object", "properties": dict.fromkeys(names, parameter)},
    }
    return {"type": "function", "function": function}


def jinja_alone(source: str, messages: list[Values], tools: list[Values]) -> Callable[[], str]:
    """Returns what renders a conversation with nothing around Jinja's sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals.update(raise_exception=str, strftime_now=str)
    template = environment.from_string(source)
    parsed = [with_parsed_arguments(message) for message in messages]
    return lambda: template.render(messages=parsed, tools=tools, add_generation_prompt=True)


def median_ms(work: Callable[[], object], repeat: int) -> float:
    """Returns the processor time of a call."""
    times = []
    for _ in range(repeat):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return 1e3 * statistics.median(times)


if __name__ == "__main__":
    main()
