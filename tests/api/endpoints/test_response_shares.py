"""Stored responses of several keys in one store: none can push out what others have there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rocmforge.api.http.keys import Keyring
from rocmforge.api.http.settings import ApiSettings
from rocmforge.errors import QueueFull
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model, say
from tests.api.keys.test_keys import a_key, bearer

PATH = "/v1/responses"
MAX_BYTES = 200_000
CAPACITY = 40
ALICE, BOB = "alice", "bob"


@dataclass(frozen=True)
class Callers:
    """What they do over HTTP."""

    http: Client

    def post(self, who: str, size: int = 10, *, runs: bool = False) -> Any:
        tool = {"type": "function", "name": "f", "description": "x" * size, "parameters": {}}
        body = {"model": "tiny", "input": "hello", "background": runs}
        body |= {"tools": [tool], "tool_choice": "none"}  # kept, but no part of the prompt
        return self.http.post(PATH, json=body, headers=bearer(who))

    def create(self, who: str, size: int = 10, *, runs: bool = False) -> str:
        answer = self.post(who, size, runs=runs)
        assert answer.status_code == 200, answer.text
        made: str = answer.json()["id"]
        return made

    def status(self, who: str, response_id: str) -> str | None:
        """What a response says of itself; None if it is gone."""
        answer = self.http.get(f"{PATH}/{response_id}", headers=bearer(who))
        return answer.json()["status"] if answer.status_code == 200 else None

    def kept(self, who: str, response_ids: list[str]) -> list[str]:
        return [each for each in response_ids if self.status(who, each)]


@pytest.fixture
def callers(engine: FakeEngine) -> Iterator[Callers]:
    keys = Keyring([a_key(ALICE), a_key(BOB)])
    settings = ApiSettings(max_stored_response_bytes=MAX_BYTES, max_stored_responses=CAPACITY)
    with Client(build_app(make_model(engine), settings, keys)) as http:
        yield Callers(http)


def let_run(engine: FakeEngine) -> None:
    engine.script = lambda request: []  # waits for ever


def test_large_responses_push_out_their_own_key_s_only(
    callers: Callers, engine: FakeEngine
) -> None:
    mine = [callers.create(BOB) for _ in range(5)]
    others = [callers.create(ALICE, 12_000) for _ in range(24)]
    assert callers.kept(BOB, mine) == mine
    kept = callers.kept(ALICE, others)
    assert kept == others[-len(kept) :]
    assert 10 < len(kept) < 20


def test_many_responses_push_out_their_own_key_s_only(callers: Callers) -> None:
    mine = [callers.create(BOB) for _ in range(5)]
    others = [callers.create(ALICE) for _ in range(2 * CAPACITY)]
    assert callers.kept(BOB, mine) == mine
    assert callers.kept(ALICE, others) == others[-(CAPACITY - len(mine)) :]


def test_one_that_is_larger_than_the_store_pushes_nobody_out(callers: Callers) -> None:
    mine = [callers.create(who) for who in (ALICE, BOB)]
    huge = callers.create(ALICE, MAX_BYTES + 1)
    assert callers.status(ALICE, huge) is None
    assert callers.status(ALICE, mine[0]) == callers.status(BOB, mine[1]) == "completed"


def test_a_key_that_has_more_gives_way_to_one_that_has_less(callers: Callers) -> None:
    others = [callers.create(ALICE, 12_000) for _ in range(24)]
    before = callers.kept(ALICE, others)
    mine = [callers.create(BOB, 12_000) for _ in range(4)]
    assert callers.kept(BOB, mine) == mine
    after = callers.kept(ALICE, others)
    assert after == before[len(before) - len(after) :]
    assert len(after) == len(before) - 4


def test_what_runs_stays(callers: Callers, engine: FakeEngine) -> None:
    let_run(engine)
    mine, others = callers.create(BOB, runs=True), callers.create(ALICE, 12_000, runs=True)
    engine.script = say([256])
    for _ in range(24):
        callers.create(ALICE, 12_000)
        callers.create(BOB, 12_000)
    assert callers.status(BOB, mine) == callers.status(ALICE, others) == "in_progress"
    assert len(engine.live) == 2


@pytest.mark.parametrize("size", [10, 12_000])
def test_responses_that_run_leave_a_quarter_to_other_keys(
    size: int, callers: Callers, engine: FakeEngine
) -> None:
    let_run(engine)
    answers = [callers.post(ALICE, size, runs=True) for _ in range(CAPACITY)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} == {429}
    assert all(float(answer.headers["retry-after"]) > 0 for answer in refused)
    assert len(engine.live) == len(answers) - len(refused)
    mine = [callers.create(BOB, size, runs=True) for _ in range(2)]
    assert [callers.status(BOB, each) for each in mine] == ["in_progress"] * 2


def test_one_that_would_run_but_is_too_large_is_a_400(callers: Callers, engine: FakeEngine) -> None:
    answer = callers.post(ALICE, MAX_BYTES + 1, runs=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "background"
    assert "200000" in answer.json()["error"]["message"]
    assert engine.submitted == []


def test_one_that_the_engine_does_not_take_is_not_kept(
    callers: Callers, engine: FakeEngine
) -> None:
    engine.refuses = QueueFull("full", retry_after_s=1.0)
    for _ in range(2 * CAPACITY):
        assert callers.post(ALICE, runs=True).status_code == 429
    engine.refuses = None
    let_run(engine)
    assert callers.status(ALICE, callers.create(ALICE, runs=True)) == "in_progress"
