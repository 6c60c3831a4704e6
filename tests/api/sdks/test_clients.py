"""Programs that people point at the server, each in the version that it is tested with.

The scripts in `clients` and `node` bring their own packages; uv and npm install them into the
user's cache. Each prints what it saw.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.live import assert_settles
from tests.api.sdks.test_sdk_node import node_modules
from tests.support.fakes.fake_model import HIDDEN_SIZE, prompt_logprobs
from tests.support.processes.server import ROOT, LiveServer

CLIENTS = Path(__file__).parent / "clients"
ITEMS = ROOT / "tests/data/text/endings.json"
TOOL_TURN = ["tool_call_item", "tool_call_output_item", "message_output_item"]

pytestmark = pytest.mark.timeout(600)  # the first run installs


def seen(script: str, *arguments: str, **environment: str) -> Any:
    """What a client's script printed."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    done = subprocess.run(
        [uv, "run", "--quiet", "--no-project", "--script", CLIENTS / script, *arguments],
        capture_output=True,
        env=os.environ | environment,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_openai_agents_sdk(live: LiveServer) -> None:
    found = seen("openai_agents.py", f"{live.url}/v1", "tiny")
    assert set(found) == {"responses", "responses_streamed", "chat", "chat_streamed"}
    for name, run in found.items():
        assert run["items"] == TOOL_TURN, name
        assert (run["cities"], run["requests"]) == (1, 2), name
        assert run["output_tokens"] > 0, name
        assert bool(run["events"]) == name.endswith("streamed")
    assert_settles(live)


def test_langchain(live: LiveServer) -> None:
    found = seen("langchain_chat.py", f"{live.url}/v1", "tiny")
    chat = found["chat"]
    assert chat["text"] == chat["streamed"] != ""
    assert chat["usage"] == chat["streamed_usage"]
    assert (chat["usage"]["output_tokens"], chat["reason"]) == (9, "length")
    assert found["batch"] == [True, True, True]
    assert found["calls"]
    assert all(call == ["weather", ["city"]] for call in found["calls"])
    for method in ("json_schema", "function_calling"):
        assert set(found[method]) == {"name", "size"}
    assert found["responses"]["text"] == found["responses"]["streamed"] != ""
    assert found["legacy"]
    assert found["embeddings"] == [HIDDEN_SIZE, HIDDEN_SIZE]


def test_litellm(live: LiveServer) -> None:
    found = seen("litellm_client.py", live.url, "tiny", LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert found["openai"]["text"] == found["hosted_vllm"]["text"] == found["anthropic"]["text"]
    for provider in ("openai", "hosted_vllm", "anthropic"):
        answer = found[provider]
        assert answer["text"] == answer["streamed"] != ""
        assert (answer["reason"], answer["tokens"]) == ("length", 8)
        assert answer["call_reason"] == "tool_calls"
        assert answer["calls"]
        assert all(name == "weather" and "city" in keys for name, keys in answer["calls"])
    assert (found["text"], found["error"]) == ("length", 404)


def test_instructor(live: LiveServer) -> None:
    found = seen("instructor_client.py", f"{live.url}/v1", "tiny")
    assert set(found) == {"tool_call", "tools_strict", "json_schema_mode", "partial"}
    for answer in found.values():
        assert 1 <= answer["size"] <= 9
        assert len(answer["name"]) <= 8
    assert found["partial"] == found["json_schema_mode"]


def test_vercel_ai_sdk(live: LiveServer) -> None:
    modules = node_modules("ai@6.0.326", "@ai-sdk/openai-compatible@2.0.87")
    done = subprocess.run(
        ["node", Path(__file__).parent / "node/ai_sdk.cjs", f"{live.url}/v1"],
        env={**os.environ, "NODE_PATH": str(modules)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["text"]["plain"] == found["text"]["streamed"] != ""
    assert found["text"]["reasons"] == ["length", "length"]
    assert found["text"]["tokens"] == [8, 8]
    assert found["calls"]["plain"] == found["calls"]["streamed"] != []
    assert all(call == ["weather", ["city"]] for call in found["calls"]["plain"])
    assert found["calls"]["reasons"] == ["tool-calls", "tool-calls"]
    assert found["object"] == ["city"]
    assert found["embeddings"] == [HIDDEN_SIZE, HIDDEN_SIZE]


def test_lm_eval_finds_the_likelihoods_that_the_backend_gave(live: LiveServer) -> None:
    found = seen("lm_eval_likelihood.py", live.url, "tiny", str(ITEMS))

    def tokens(text: str) -> list[int]:
        answer = httpx.post(f"{live.url}/tokenize", json={"prompt": text}, timeout=60).json()
        ids: list[int] = answer["tokens"]
        return ids

    items = json.loads(ITEMS.read_text())
    assert len(items) == len(found["likelihoods"]) == 50
    for item, likelihoods in zip(items[::10], found["likelihoods"][::10], strict=True):
        begin = tokens(item["begin"])
        for end, likelihood in zip(item["ends"], likelihoods, strict=True):
            expected = prompt_logprobs(tokens(item["begin"] + end))[len(begin) - 1 :]
            assert likelihood == pytest.approx(sum(expected))


def test_guidellm_gets_as_many_tokens_as_it_asked_for(live: LiveServer, tmp_path: Path) -> None:
    lengths = [1 + 7 * number % 40 for number in range(64)]
    file = tmp_path / "lengths.json"
    file.write_text(json.dumps(lengths))
    found = seen("guidellm_load.py", live.url, "16", str(file))
    for endpoint in ("text", "chat"):
        run = found[endpoint]
        assert run["made"] == {"successful": 64, "errored": 0, "incomplete": 0, "total": 64}
        answers = [run["answers"][str(number)] for number in range(64)]
        assert [output_tokens for _, output_tokens in answers] == lengths
        assert all(prompt_tokens > 0 for prompt_tokens, _ in answers)
    assert_settles(live)


@pytest.mark.model
def test_lm_eval_measures_what_a_real_model_knows(smollm2_path: Path, tmp_path: Path) -> None:
    command = ["-m", "rocmforge", "serve", str(smollm2_path), "--port", "{port}"]
    command += ["--backend", "reference", "--max-context", "64", "--served-model-name", "smol"]
    with LiveServer(command, tmp_path / "log") as server:
        found = seen("lm_eval_likelihood.py", server.url, "smol", str(ITEMS))
    assert found["accuracy"] > 0.9
