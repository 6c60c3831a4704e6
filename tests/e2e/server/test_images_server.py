"""`rocmforge serve` with a tiny SmolVLM, from the file of an image to an answer.

How many damaged files are sent to it is said by $ROCMFORGE_TEST_IMAGES_SENT (default: 40, for CI);
`pytest -s` shows what came of them, and the memory of its processes meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tokenizers import AddedToken

from tests.api.live import metric
from tests.data.models.towers.tiny_towers import SMOLVLM
from tests.data.models.towers.tower_files import write_tower_folder
from tests.fuzz.pixels.test_images import files, memory_kib, seeds
from tests.support.files.pictures import BLUE, RED, data_address, encoded, picture
from tests.support.files.tokenizer_files import byte_level, write_tokenizer
from tests.support.models.vision import TEMPLATE
from tests.support.processes.children import ENGINE, children
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.slow

MARKS = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)),
)
ROWS_OF_A_TILE = 16
SENT = int(os.environ.get("ROCMFORGE_TEST_IMAGES_SENT", "40"))
SENT_AT_ONCE = 1000
READER = "rocmforge.pixels.worker"
GROWTH_KIB = 160 * 1024
"""Of a process. What was read, and its rows, is kept within bounds that are larger."""
REDS = data_address(encoded(picture(90, 90, color=RED)))
BLUES = data_address(encoded(picture(90, 90, color=BLUE)))


def write_smolvlm(folder: Path) -> Path:
    """Writes a tiny model with a tower, a tokenizer and a chat template that shows images."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in MARKS]
    )
    text = SMOLVLM.config["text_config"]
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 2048}
    config = {
        **SMOLVLM.config,
        "image_token_id": tokenizer.token_to_id("<image>"),
        "text_config": {**text, **sizes},
    }
    write_tower_folder(replace(SMOLVLM, config=config), folder)
    write_tokenizer(folder, tokenizer, chat_template=TEMPLATE, eos_token="<|im_end|>")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("images")
    model = write_smolvlm(folder / "smolvlm")
    command = ("-m", "rocmforge", "serve", str(model), "--served-model-name", "smolvlm")
    limits = ("--port", "{port}", "--backend", "reference", "--max-sequences", "8", "--resume")
    with LiveServer([*command, *limits], folder / "log") as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def seen(*parts: str) -> list[Any]:
    """A message of texts, and of images by their addresses."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": part, "detail": "low"}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def ask(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    """An answer of 12 tokens, with their log-probabilities."""
    return client.chat.completions.create(
        model="smolvlm",
        messages=messages,
        temperature=0,
        logprobs=True,
        extra_body={"ignore_eos": True},
        **{"max_tokens": 12, **fields},
    )


def said(answer: Any) -> list[tuple[str, float]]:
    return [(token.token, token.logprob) for token in answer.choices[0].logprobs.content]


def test_an_answer_depends_on_what_an_image_shows(client: OpenAI) -> None:
    red, blue = (ask(client, seen("What is it? ", image)) for image in (REDS, BLUES))
    assert said(red) != said(blue)
    assert said(red) == said(ask(client, seen("What is it? ", REDS)))
    without = ask(client, seen("What is it? "))
    marks = 3  # <fake_token_around_image> <global-img> ... <fake_token_around_image>
    taken = red.usage.prompt_tokens - without.usage.prompt_tokens
    assert taken == blue.usage.prompt_tokens - without.usage.prompt_tokens
    assert taken == ROWS_OF_A_TILE + marks


def test_the_order_of_images_matters(client: OpenAI) -> None:
    first, second = seen("Which? ", REDS, BLUES), seen("Which? ", BLUES, REDS)
    assert said(ask(client, first)) != said(ask(client, second))


def test_a_large_image_is_cut_into_tiles(client: OpenAI) -> None:
    wide = data_address(encoded(picture(192, 64)))
    high = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": wide}}]}]
    tiles = ask(client, high).usage.prompt_tokens - ask(client, seen(wide)).usage.prompt_tokens
    marks = 2 * 3 + 2  # two tokens before each of three tiles, and two ends of lines
    assert tiles == 3 * ROWS_OF_A_TILE + marks


def test_an_image_that_is_seen_again_costs_no_tower(server: LiveServer, client: OpenAI) -> None:
    image = data_address(encoded(picture(50, 50, color=(9, 99, 199))))
    first = ask(client, seen("First: ", image))
    computed = metric(server, "rocmforge_image_tiles_total")
    turns = [
        *seen("First: ", image),
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And then?"},
    ]
    ask(client, turns)
    ask(client, seen("Another text: ", image))
    assert metric(server, "rocmforge_image_tiles_total") == computed


def test_eight_conversations_with_images_at_once_are_answered_as_alone(client: OpenAI) -> None:
    images = [data_address(encoded(picture(40, 40, color=(30 * n, 200, 9)))) for n in range(8)]
    asked = [seen(f"Number {number}: ", image) for number, image in enumerate(images)]
    alone = [said(ask(client, messages)) for messages in asked]
    with ThreadPoolExecutor(8) as pool:
        together = [*pool.map(lambda messages: said(ask(client, messages)), asked)]
    assert [[token for token, _ in one] for one in together] == [
        [token for token, _ in one] for one in alone
    ]


def test_a_stream_says_the_same(client: OpenAI) -> None:
    messages = seen("Stream: ", REDS)
    stream = ask(client, messages, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == ask(client, messages).choices[0].message.content


def test_a_stream_goes_on_when_the_engine_is_killed(server: LiveServer, client: OpenAI) -> None:
    """In another process, whose tower looks at the images once more."""
    messages, length = seen("Go on: ", REDS, "and ", BLUES), {"max_tokens": 400}

    def computed_again() -> float:
        whole = ask(client, messages, **length).choices[0].message.content
        tiles = metric(server, "rocmforge_image_tiles_total")
        text = ""
        for chunk in ask(client, messages, stream=True, **length):
            more = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            if more and not text:
                (pid,) = children(server.process.pid, ENGINE)
                os.kill(pid, signal.SIGKILL)
            text += more
        assert text == whole
        return metric(server, "rocmforge_image_tiles_total") - tiles

    # If this process is kept waiting, all has been said before the engine is killed.
    assert (computed_again() or computed_again()) == 2


def test_a_damaged_image_disturbs_nobody(server: LiveServer, client: OpenAI) -> None:
    damaged = data_address(encoded()[:70])
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(ask, client, seen("Good: ", REDS)) for _ in range(3)]
        body = {"model": "smolvlm", "messages": seen("Bad: ", damaged)}
        bad = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60, verify=False)
        answers = {tuple(said(each.result())) for each in good}
    assert bad.status_code == 400
    assert "is a damaged PNG file" in bad.json()["error"]["message"]
    assert len(answers) == 1


def memory_of(server: LiveServer) -> dict[int, int]:
    """KiB that the server, its engine and its readers of images have, by process."""
    pid = server.process.pid
    pids = [pid, *children(pid, ENGINE), *children(pid, READER)]
    return {each: memory_kib(each, "VmRSS:") for each in pids}


@pytest.mark.timeout(3600)
def test_damaged_and_hostile_files_are_answered_and_disturb_nobody(
    server: LiveServer, client: OpenAI
) -> None:
    calm = said(ask(client, seen("Calm: ", REDS)))

    def status_of(data: bytes) -> int:
        address = f"data:image/png;base64,{b64encode(data).decode('ascii')}"
        body = {"model": "smolvlm", "messages": seen("What? ", address), "max_tokens": 1}
        url = f"{server.url}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=120, verify=False).status_code

    found: Counter[int] = Counter()
    hostile = [*files(SENT)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(status_of, seeds()))
        before = memory_of(server)
        for start in range(0, len(hostile), SENT_AT_ONCE):
            found.update(pool.map(status_of, hostile[start : start + SENT_AT_ONCE]))
            print(dict(found), {pid: size // 1024 for pid, size in memory_of(server).items()})
            assert said(ask(client, seen("Calm: ", REDS))) == calm
    found[status_of(bytes(75 << 20))] += 1  # 100 MB of an address
    assert found.keys() == {200, 400, 413}, found
    after = memory_of(server)
    assert after.keys() == before.keys(), "a process was replaced"
    assert all(after[pid] - before[pid] < GROWTH_KIB for pid in before), (before, after)


def test_run_takes_the_path_of_an_image(server: LiveServer, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded(picture(33, 44)))
    before = metric(server, "rocmforge_images_total")
    arguments = ["run", "--url", server.url, "What is it?", "--file", str(file), "--max-tokens=4"]
    done = subprocess.run(
        [sys.executable, "-m", "rocmforge", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert metric(server, "rocmforge_images_total") > before


def test_the_model_says_that_it_takes_images(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert "images" in model.capabilities  # type: ignore[attr-defined]
