"""Requests that use logits processors: what reaches the engine, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import ProcessorUse
from rocmforge.logits.builtin import BUILTIN
from rocmforge.logits.processor import Parameter, logits_processor
from tests.api import tiny
from tests.api.conftest import Client
from tests.api.fake_engine import RUNNER, FakeEngine, build_app, make_model, tiny_text


@logits_processor(
    "capped",
    parameters=(Parameter("cap", 30.0, least=0.0, most=100.0), Parameter("only", ())),
)
def capped(logit: Any, cap: Any) -> Any:
    return np.minimum(logit, cap)


PROCESSORS = {each.name: each for each in (*BUILTIN, capped)}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(runner=replace(RUNNER, logits_processors=tuple(PROCESSORS)))


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[Client]:
    model = make_model(engine, processors=PROCESSORS)
    with TestClient(build_app(model, ApiSettings())) as client:
        yield client


def post(client: Client, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **fields}
    return client.post("/v1/chat/completions", json=body)


def used(client: Client, engine: FakeEngine, **fields: Any) -> tuple[ProcessorUse, ...]:
    response = post(client, **fields)
    assert response.status_code == 200, response.text
    return engine.submitted[-1].sampling.processors


def tokens_of(use: ProcessorUse) -> set[int]:
    bits = np.unpackbits(np.frombuffer(use.token_set, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_a_request_without_processors_has_none(client: Client, engine: FakeEngine) -> None:
    neutral = {"typical_p": 1, "xtc_probability": 0, "dry_multiplier": 0, "logits_processors": {}}
    assert used(client, engine) == used(client, engine, **neutral) == ()


def test_the_fields_of_other_servers_select_the_built_in_ones_in_their_order(
    client: Client, engine: FakeEngine
) -> None:
    dry, typical, xtc = used(
        client, engine, xtc_probability=0.5, typical_p=0.9, dry_multiplier=0.8, dry_base=2
    )
    assert (typical.name, typical.numbers, typical.window) == ("typical_p", (0.9,), 0)
    assert (xtc.name, xtc.numbers) == ("xtc", (0.5, 0.1))
    assert (dry.name, dry.numbers, dry.window) == ("dry", (0.8, 2.0, 2.0, 64.0), 64)


def test_sequence_breakers_are_the_tokens_that_contain_them(
    client: Client, engine: FakeEngine
) -> None:
    tokenizer, _ = tiny_text()
    pieces = tokenizer.piece_tables(skip_special=False).data
    (use,) = used(client, engine, dry_multiplier=1, dry_sequence_breakers=["orl", "llo"])
    assert (
        tokens_of(use) == {i for i, p in enumerate(pieces) if b"orl" in p or b"llo" in p} != set()
    )
    (use,) = used(client, engine, dry_multiplier=1)
    assert tokens_of(use) == {i for i, p in enumerate(pieces) if set(p) & set(b'\n:"*')}
    (use,) = used(client, engine, dry_multiplier=1, dry_sequence_breakers=["zhello"])
    assert tokens_of(use) == {tokenizer.encode("zhello", parse_special=False)[-1]}


def test_processors_by_name_come_in_the_order_of_the_request(
    client: Client, engine: FakeEngine
) -> None:
    settings = {"capped": {"cap": 5, "only": [3, 999]}, "xtc": {"probability": 1}}
    first, second = used(client, engine, logits_processors=settings)
    assert (first.name, first.numbers, tokens_of(first)) == ("capped", (5.0,), {3, 999})
    assert (second.name, second.numbers) == ("xtc", (1.0, 0.1))


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"typical_p": 1.5}, "typical_p", "at most 1"),
        ({"typical_p": -0.1}, "typical_p", "at least 0"),
        ({"typical_p": "high"}, "typical_p", "float"),
        ({"xtc_probability": 2}, "xtc_probability", "at most 1"),
        ({"xtc_probability": 0.5, "xtc_threshold": -1}, "xtc_threshold", "at least 0"),
        ({"dry_multiplier": -1}, "dry_multiplier", "at least 0"),
        ({"dry_multiplier": 1, "dry_base": 0.5}, "dry_base", "at least 1"),
        ({"dry_multiplier": 1, "dry_penalty_last_n": -2}, "dry_penalty_last_n", "at least -1"),
        ({"dry_multiplier": 1e39}, "dry_multiplier", "at most 3.4028235e+38"),
        ({"dry_multiplier": 1, "dry_base": 1e308}, "dry_base", "at most 3.4028235e+38"),
        ({"dry_multiplier": 1, "dry_allowed_length": 2**25}, "dry_allowed_length", "16777216"),
        ({"dry_multiplier": 1, "dry_allowed_length": 10**400}, "dry_allowed_length", "000..., but"),
        ({"dry_multiplier": 1, "dry_penalty_last_n": 2**70}, "dry_penalty_last_n", "16777216"),
        ({"logits_processors": {"dry": {"base": 10**400}}}, "logits_processors.dry.base", "3.4"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": [""]}, "dry_sequence_breakers", "1 to"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": [1]}, "dry_sequence_breakers[0]", "str"),
        ({"logits_processors": {"nope": {}}}, "logits_processors.nope", "capped, dry"),
        ({"logits_processors": {"xtc": 3}}, "logits_processors[...]", "object"),
        ({"logits_processors": {"xtc": {"p": 1}}}, "logits_processors.xtc.p", "threshold"),
        ({"logits_processors": {"capped": {"cap": 101}}}, "logits_processors.capped.cap", "100"),
        ({"logits_processors": {"capped": {"cap": "1"}}}, "logits_processors.capped.cap", "number"),
        ({"logits_processors": {"capped": {"cap": True}}}, "logits_processors.capped.cap", "True"),
        (
            {"logits_processors": {"capped": {"only": [tiny.VOCAB_SIZE]}}},
            "logits_processors.capped.only",
            "vocabulary",
        ),
        (
            {"logits_processors": {"capped": {"only": [1.5]}}},
            "logits_processors.capped.only",
            "ids",
        ),
        (
            {"logits_processors": {"dry": {"allowed_length": 1.5}}},
            "logits_processors.dry.allowed_length",
            "integer",
        ),
        ({"typical_p": 0.5, "logits_processors": {"typical_p": {}}}, None, "both ask"),
    ],
)
def test_a_bad_processor_is_a_400_that_names_it(
    fields: dict[str, Any], param: str | None, says: str, client: Client, engine: FakeEngine
) -> None:
    response = post(client, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert says in error["message"]
    assert param is None or error["param"] == param
    assert engine.submitted == []


def test_a_backend_without_a_processor_refuses_it(client: Client, engine: FakeEngine) -> None:
    engine.runner = RUNNER
    response = post(client, typical_p=0.5)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "typical_p"
    assert "no logits processor" in response.json()["error"]["message"]
