# /// script
# requires-python = ">=3.11"
# dependencies = ["instructor==1.17.0"]
# ///
"""Drives instructor on a live server in each of its modes and prints JSON.

uv run instructor_client.py http://127.0.0.1:8000/v1 MODEL
"""

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

url, model = sys.argv[1:]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=8)
    size: int = Field(ge=1, le=9)


found = {}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
    client = instructor.from_openai(OpenAI(base_url=url, api_key="none", max_retries=0), mode=mode)
    answer = client.chat.completions.create(
        model=model,
        response_model=City,
        max_retries=0,
        seed=1,
        messages=[{"role": "user", "content": "hello"}],
    )
    found[mode.value] = answer.model_dump()
client = instructor.from_openai(
    OpenAI(base_url=url, api_key="none", max_retries=0), mode=instructor.Mode.JSON_SCHEMA
)
partial = client.chat.completions.create_partial(
    model=model,
    response_model=City,
    max_retries=0,
    seed=1,
    messages=[{"role": "user", "content": "hello"}],
)
found["partial"] = list(partial)[-1].model_dump()
print(json.dumps(found))
