# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm==1.106.2", "mcp==2.3.0"]
# ///
"""Drives LiteLLM on a live server and prints JSON.

uv run litellm_client.py http://127.0.0.1:8000 MODEL
"""

import json
import sys

import litellm

url, model = sys.argv[1:]
litellm.suppress_debug_info = True
messages = [{"role": "user", "content": "hello"}]
openai = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
hosted = {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1"}
anthropic = {"model": f"anthropic/{model}", "api_base": url, "api_key": "none"}
tool = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

found = {}
for name, where in (("openai", openai), ("hosted_vllm", hosted), ("anthropic", anthropic)):
    options = {**where, "messages": messages, "max_tokens": 8, "temperature": 0, "num_retries": 0}
    plain = litellm.completion(**options)
    chunks = list(litellm.completion(**options, stream=True))
    called = litellm.completion(
        **{**options, "max_tokens": 4000}, tools=[tool], tool_choice="required"
    )
    (choice,) = called.choices
    found[name] = {
        "text": plain.choices[0].message.content,
        "reason": plain.choices[0].finish_reason,
        "tokens": plain.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "call_reason": choice.finish_reason,
        "calls": [
            [call.function.name, sorted(json.loads(call.function.arguments))]
            for call in choice.message.tool_calls
        ],
    }
text = litellm.text_completion(
    model=f"text-completion-openai/{model}",
    api_base=f"{url}/v1",
    api_key="none",
    prompt="hello",
    max_tokens=4,
    temperature=0,
)
found["text"] = text.choices[0].finish_reason
try:
    litellm.completion(**{**openai, "model": "openai/other"}, messages=messages)
except litellm.NotFoundError as error:
    found["error"] = error.status_code
print(json.dumps(found))
