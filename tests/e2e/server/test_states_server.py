"""`rocmforge serve` with tiny models that have states, as clients see it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.data.models.text.tiny_encoders import VOCABULARY
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.tokenizer_files import pieces, write_tokenizer
from tests.support.processes.server import LiveServer

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
MODELS = ("lfm2", "qwen35")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("states")
    for name in MODELS:
        write_tokenizer(
            write_folder(by_name(name), folder / name), pieces(VOCABULARY), chat_template=TEMPLATE
        )
    models = [f"--model={name}={folder / name}" for name in MODELS]
    limits = ("--max-batched-tokens", "16", "--max-sequences", "4", "--kv-blocks", "12")
    command = ("-m", "rocmforge", "serve", *models, "--port", "{port}", "--backend", "reference")
    with LiveServer([*command, *limits], folder / "log") as server:
        yield server


@pytest.mark.parametrize("model", MODELS)
def test_chats_say_the_same_alone_and_eight_at_once(model: str, server: LiveServer) -> None:
    """There are slots for four, and blocks for fewer."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def chat(number: int) -> Any:
            return client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "a b c d e f g h i j"[: 3 + 2 * number] * 3}],
                temperature=0,
                max_tokens=24,
                extra_body={"ignore_eos": True},
            )

        alone = [chat(number) for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(chat, range(8)))
        again = [chat(7), chat(7)]
    for one, other in zip(alone, together, strict=True):
        assert one.choices[0].message.content == other.choices[0].message.content
        assert other.usage.completion_tokens == 24
        usage = other.usage
        assert usage.prompt_tokens_details.cached_tokens in range(0, usage.prompt_tokens, 16)
    assert again[0].choices[0].message.content == again[1].choices[0].message.content
    usage = again[1].usage
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16 > 0


def test_slots_are_counted_and_free_at_the_end(server: LiveServer) -> None:
    for model in MODELS:
        body = {"model": model, "prompt": "a b c d e f g h i j k l m n o p q r", "max_tokens": 2}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    text = server.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if "_state_" in line)
    for model in MODELS:
        labels = f'{{engine="0",model_name="{model}"}}'
        assert float(values[f"rocmforge_state_slots{labels}"]) == 4 + 64
        assert float(values[f"rocmforge_state_slots_used{labels}"]) == 0
        assert float(values[f"rocmforge_state_snapshots{labels}"]) > 0
        assert float(values[f"rocmforge_state_snapshots_taken_total{labels}"]) > 0
