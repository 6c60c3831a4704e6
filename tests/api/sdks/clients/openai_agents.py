# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents==0.24.0"]
# ///
"""Runs an agent with one tool on a live server, plain and streamed; prints JSON.

uv run openai_agents.py http://127.0.0.1:8000/v1 MODEL
"""

import asyncio
import json
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

url, model = sys.argv[1:]
set_tracing_disabled(True)
cities: list[str] = []


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    cities.append(city)
    return "rain"


async def run(kind: type, streamed: bool) -> dict[str, object]:
    cities.clear()
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        agent = Agent(
            name="forecaster",
            instructions="Call the tool once.",
            model=kind(model=model, openai_client=client),
            model_settings=ModelSettings(
                tool_choice="required", parallel_tool_calls=False, include_usage=True
            ),
            tools=[weather],
        )
        events = []
        if streamed:
            result = Runner.run_streamed(agent, "What is the weather?", max_turns=4)
            events = [event.type async for event in result.stream_events()]
        else:
            result = await Runner.run(agent, "What is the weather?", max_turns=4)
    usage = result.context_wrapper.usage
    return {
        "items": [item.type for item in result.new_items],
        "cities": len(cities),
        "requests": usage.requests,
        "output_tokens": usage.output_tokens,
        "has_output": bool(result.final_output),
        "events": sorted(set(events)),
    }


async def main() -> None:
    found = {}
    for name, kind in (("responses", OpenAIResponsesModel), ("chat", OpenAIChatCompletionsModel)):
        for streamed in (False, True):
            found[f"{name}{'_streamed' if streamed else ''}"] = await run(kind, streamed)
    print(json.dumps(found))


asyncio.run(main())
