"""Prompts of gpt-oss' own template are what OpenAI's package writes, and lose nothing."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rocmforge.text.template.template import ChatTemplate, RenderedPrompt

GOLDENS = json.loads((Path(__file__).parents[2] / "data/text/harmony.json").read_text())
USER = {"role": "user", "content": "hello"}
NEXT = "<|start|>assistant"


@pytest.fixture(scope="module")
def template(llama_cpp_source: Path) -> ChatTemplate:
    source = (llama_cpp_source / "models/templates/openai-gpt-oss-120b.jinja").read_text()
    return ChatTemplate(source, {}, now=lambda: datetime.fromisoformat(GOLDENS["date"]))


def call(name: str, call_id: str) -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {"id": call_id, "type": "function", "function": function}


def result(call_id: str, content: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def turns(prompt: RenderedPrompt) -> str:
    """What follows the system message."""
    return prompt.text.split("<|end|>", 1)[1]


@pytest.mark.parametrize("case", GOLDENS["prompts"], ids=lambda case: case["name"])
def test_a_prompt_is_as_openai_writes_it(template: ChatTemplate, case: dict[str, Any]) -> None:
    variables = {"reasoning_effort": case["effort"]} if "effort" in case else {}
    prompt = template.render(case["messages"], tools=case.get("tools"), variables=variables)
    # The template leaves an empty line where the instructions or the tools end.
    written = prompt.text.replace("\n\n<|end|>", "<|end|>").replace("}\n<|end|>", "}<|end|>")
    assert written == case["prompt"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [("none", "low"), ("minimal", "low"), ("low", "low"), ("xhigh", "high"), ("max", "high")],
)
def test_efforts_become_those_that_the_model_knows(
    template: ChatTemplate, asked: str, told: str
) -> None:
    prompt = template.render([USER], variables={"reasoning_effort": asked})
    assert f"\nReasoning: {told}\n" in prompt.text


def test_each_of_several_calls_is_followed_by_its_result(template: ChatTemplate) -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [call("f", "1"), call("g", "2")]}
    prompt = template.render([USER, called, result("2", "two"), result("1", "one")])
    assert turns(prompt).removeprefix("<|start|>user<|message|>hello<|end|>") == (
        f"{NEXT} to=functions.f<|channel|>commentary json<|message|>{{}}<|call|>"
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"one"<|end|>'
        f"{NEXT} to=functions.g<|channel|>commentary json<|message|>{{}}<|call|>"
        '<|start|>functions.g to=assistant<|channel|>commentary<|message|>"two"<|end|>'
        f"{NEXT}"
    )


def test_a_result_of_an_unknown_call_belongs_to_the_last_one(template: ChatTemplate) -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [call("f", "1")]}
    text = template.render([USER, called, result("9", "one")]).text
    assert 'functions.f to=assistant<|channel|>commentary<|message|>"one"' in text


def test_what_was_said_before_a_call_is_kept_with_the_thoughts(template: ChatTemplate) -> None:
    said = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."}
    called: dict[str, Any] = {**said, "tool_calls": [call("f", "1")]}
    messages = [USER, called, result("1", "one")]
    text = template.render(messages).text
    assert f"{NEXT}<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>{NEXT} to=functions.f" in text


def test_all_instructions_are_one(template: ChatTemplate) -> None:
    system = {"role": "system", "content": "Be brief."}
    text = template.render([system, USER, {**system, "content": "Be kind."}]).text
    assert "# Instructions\n\nBe brief.\n\nBe kind.\n\n" in text


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_marks_in_the_history_are_text_and_no_reason_to_refuse_it(
    template: ChatTemplate, field: str
) -> None:
    spelled = "It begins with <|channel|>analysis<|message|> so."
    said = {"role": "assistant", "content": "", field: spelled, "tool_calls": [call("f", "1")]}
    prompt = template.render([USER, said, result("1", "one")])
    place = prompt.text.index(spelled)
    assert not any(prompt.trust[place : place + len(spelled)])


def test_an_answer_may_be_continued(template: ChatTemplate) -> None:
    said = {"role": "assistant", "content": "Hello, "}
    prompt = template.render([USER, said], add_generation_prompt=False, continue_final_message=True)
    assert prompt.text.endswith(f"{NEXT}<|channel|>final<|message|>Hello, ")
