# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-openai==1.7.3"]
# ///
"""Drives LangChain's OpenAI classes on a live server and prints JSON.

uv run langchain_chat.py http://127.0.0.1:8000/v1 MODEL
"""

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

url, model = sys.argv[1:]
common = {"base_url": url, "api_key": "none", "model": model, "max_retries": 0}


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=8)
    size: int = Field(ge=1, le=9)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return "rain"


found = {}
chat = ChatOpenAI(**common, temperature=0, max_tokens=9)
plain = chat.invoke("hello")
chunks = list(chat.stream("hello", stream_usage=True))
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
found["chat"] = {
    "text": plain.text,
    "streamed": whole.text,
    "usage": plain.usage_metadata,
    "streamed_usage": whole.usage_metadata,
    "reason": plain.response_metadata["finish_reason"],
}
batch = ChatOpenAI(**common, temperature=0, max_tokens=4).batch(["a", "b", "c"])
found["batch"] = [len(message.text) > 0 for message in batch]
forced = ChatOpenAI(**common, seed=1).bind_tools([weather], tool_choice="weather")
call = forced.invoke("hello")
found["calls"] = [[c["name"], sorted(c["args"])] for c in call.tool_calls]
structured = ChatOpenAI(**common, seed=1)
for method in ("json_schema", "function_calling"):
    answer = structured.with_structured_output(City, method=method).invoke("hello")
    found[method] = answer.model_dump()
responses = ChatOpenAI(**common, use_responses_api=True, temperature=0, max_tokens=9)
found["responses"] = {
    "text": responses.invoke("hello").text,
    "streamed": "".join(chunk.text for chunk in responses.stream("hello")),
}
found["legacy"] = OpenAI(**common, temperature=0, max_tokens=9).invoke("hello")
embeddings = OpenAIEmbeddings(**common, tiktoken_enabled=False, check_embedding_ctx_length=False)
found["embeddings"] = [len(row) for row in embeddings.embed_documents(["hello", "hello world"])]
print(json.dumps(found))
