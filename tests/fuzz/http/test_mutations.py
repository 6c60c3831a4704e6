"""Mutated request bodies: whatever comes, no 5xx, nothing left running, memory bounded.

How many is said by $ROCMFORGE_TEST_MUTATIONS (default: 2000, for CI).
"""

from __future__ import annotations

import json
import os
import random
import resource
from collections import Counter

import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from tests.api.fake_engine import FakeEngine, build_app, make_model, scored

COUNT = int(os.environ.get("ROCMFORGE_TEST_MUTATIONS", "2000"))
BODIES_OF_A_SEED = 500
GROWTH_KIB = 200 * 1024

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": "hi", "tool_calls": []},
    ],
    "max_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "stop": ["x"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1.5},
    "seed": 7,
    "stream": False,
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
}
SEEDS: dict[str, list[object]] = {
    "/v1/chat/completions": [CHAT],
    "/v1/completions": [{"model": "tiny", "prompt": ["a", "b"], "echo": True, "logprobs": 1}],
    "/v1/responses": [{"model": "tiny", "input": "hello", "max_output_tokens": 3}],
    "/v1/messages": [
        {"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}
    ],
    "/tokenize": [{"model": "tiny", "prompt": "hello"}],
    "/detokenize": [{"model": "tiny", "tokens": [1, 2, 3]}],
}
# What often breaks parsers, to be put anywhere.
ODD = (
    *(b"null", b"-1", b"1e999", b"1e-999", b"NaN", b"9" * 30, b"{}", b"[]", b'""', b"true"),
    *(b"\x00", b"\xff\xfe", b"\\ud800", b'"\\u0000"', b"\\", b'"', b"{", b"]", b",", b":"),
    *(b"[[[[[[[[", b'"<|im_end|>"', b'"{{7*7}}"', b'"../../x"', b'"type"', b'"stream": true'),
)


def mutate(body: bytes, dice: random.Random) -> bytes:
    """A few changes: bytes flipped, cut out, doubled, replaced by something odd."""
    data = bytearray(body)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 6))):
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + dice.choice((1, 1, 2, 8, 40)))
        match dice.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end]
            case 3:
                data[at:end] = dice.choice(ODD)
            case _:
                data[at:at] = dice.choice(ODD)
    return bytes(data)


@pytest.mark.parametrize("seed", range(-(-COUNT // BODIES_OF_A_SEED)))
def test_no_body_is_a_server_error(seed: int) -> None:
    dice = random.Random(seed)
    engine = FakeEngine()
    engine.script = scored(engine.script)
    paths = list(SEEDS)
    answers: Counter[int] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with TestClient(build_app(make_model(engine), ApiSettings(max_body_bytes=100_000))) as client:
        for _ in range(BODIES_OF_A_SEED):
            path = dice.choice(paths)
            body = mutate(json.dumps(dice.choice(SEEDS[path])).encode(), dice)
            headers = {"content-type": "application/json"}
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code < 500, (path, body, answer.text)
            answers[answer.status_code] += 1
            if answer.status_code != 200:
                assert answer.json()["error"]["message"]
            assert engine.live == set(), (path, body)
            engine.submitted.clear()
    assert answers[200], "nothing got through: the mutations are too wild"
    assert answers[400], "nothing was refused: the mutations are too tame"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB
