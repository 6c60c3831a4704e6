"""Named keys: their file, scopes, and what each may use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from litestar.testing import TestClient

from rocmforge.api.http.keys import ApiKey, Caller, Keyring, Scope, read_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.errors import ConfigurationError, InvalidParameter, RateLimited
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
PROMPT = {"model": "tiny", "prompt": "hello there"}


def a_key(name: str, **limits: object) -> ApiKey:
    return ApiKey(name=name, digest=hashlib.sha256(name.encode()).digest(), **limits)  # type: ignore[arg-type]


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "keys.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# --- the file ---


def test_a_key_stands_in_the_clear_or_as_its_digest(write: Callable[[str], Path]) -> None:
    digest = hashlib.sha256(b"second-key").hexdigest()
    text = f"""
    [[key]]
    name = "alice"
    key = "first-key"
    max_sequences = 4
    [[key]]
    name = "prometheus"
    sha256 = "{digest}"
    scope = "metrics"
    """
    keys = Keyring(read_keys(write(text)))
    alice, prometheus = keys.find(b"first-key"), keys.find(b"second-key")
    assert alice is not None
    assert (alice.key.name, alice.key.scope, alice.key.max_sequences) == ("alice", Scope.USER, 4)
    assert prometheus is not None
    assert prometheus.key.scope is Scope.METRICS
    assert keys.find(b"third-key") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no \\[\\[key\\]\\]"),
        ("[[key]", "not valid TOML"),
        ('key = "12345678"', "Each key is a table \\[\\[key\\]\\] with `name`"),
        ('[[key]]\nname = "a"', "either `key` or `sha256`"),
        ('[[key]]\nname = "a"\nkey = "12345678"\nsha256 = "12"', "either `key` or `sha256`"),
        ('[[key]]\nname = "a"\nsha256 = "12"', "64 hexadecimal digits"),
        (f'[[key]]\nname = "a"\nsha256 = "{hashlib.sha256().hexdigest()}"', "an empty key"),
        ('[[key]]\nname = "a b"\nkey = "12345678"', "\\$.key\\[0\\].name"),
        ('[[key]]\nname = "a"\nkey = "short"', "\\$.key\\[0\\].key"),
        ('[[key]]\nname = "a"\nkey = "12345678"\nscope = "root"', "scope"),
        ('[[key]]\nname = "a"\nkey = "12345678"\nlimit = 1', "limit"),
        (2 * '[[key]]\nname = "a"\nkey = "12345678"\n', "same name"),
        ('[[key]]\nname="a"\nkey="12345678"\n[[key]]\nname="b"\nkey="12345678"', "same key"),
    ],
)
def test_a_wrong_file_is_refused_without_quoting_keys(
    write: Callable[[str], Path], text: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_keys(write(text))
    assert "12345678" not in raised.value.message


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        read_keys(tmp_path / "nowhere.toml")


def test_replaced_keys_keep_the_use_that_was_counted() -> None:
    keys = Keyring([a_key("alice", max_sequences=1), a_key("bob")])
    alice = keys.find(b"alice")
    assert alice is not None
    alice.admit(1, 0)
    keys.replace([a_key("alice", max_sequences=2)])
    assert keys.find(b"alice") is alice
    assert keys.find(b"bob") is None
    alice.admit(1, 0)
    with pytest.raises(RateLimited):
        alice.admit(1, 0)


# --- limits ---


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sequences_at_once_are_bounded_and_freed() -> None:
    caller = Caller(a_key("alice", max_sequences=3))
    caller.admit(2, 10)
    with pytest.raises(RateLimited, match="runs 2"):
        caller.admit(2, 10)
    caller.release(2, 5)
    caller.admit(2, 10)


def test_a_request_that_alone_is_too_wide_is_told_so_for_good() -> None:
    with pytest.raises(InvalidParameter, match="4 sequences"):
        Caller(a_key("alice", max_sequences=3)).admit(4, 1)


def test_tokens_are_given_back_by_time_and_retry_after_is_exact() -> None:
    clock = Clock()
    caller = Caller(a_key("alice", tokens_per_minute=60), clock)
    caller.admit(1, 50)
    caller.release(1, 40)  # overdrawn by 30
    with pytest.raises(RateLimited) as raised:
        caller.admit(1, 1)
    assert raised.value.retry_after_s == pytest.approx(31)
    clock.now = 30.9
    caller.admit(1, 1)


def test_saved_tokens_never_exceed_one_minute() -> None:
    clock = Clock()
    caller = Caller(a_key("alice", tokens_per_minute=60), clock)
    clock.now = 10_000.0
    caller.admit(1, 61)
    with pytest.raises(RateLimited):
        caller.admit(1, 0)


def test_what_an_unlimited_key_has_used_does_not_count_against_its_first_limit() -> None:
    clock = Clock()
    caller = Caller(a_key("alice"), clock)
    caller.admit(1, 30_000)
    caller.release(1, 2_000)
    caller.limit(a_key("alice", tokens_per_minute=1000))
    caller.admit(1, 1000)
    with pytest.raises(RateLimited) as raised:
        caller.admit(1, 1)
    assert raised.value.retry_after_s == pytest.approx(0.06)


def test_what_a_limited_key_has_used_counts_against_its_next_limit() -> None:
    clock = Clock()
    caller = Caller(a_key("alice", tokens_per_minute=100), clock)
    caller.admit(1, 700)
    caller.limit(a_key("alice", tokens_per_minute=200))
    with pytest.raises(RateLimited, match="200 tokens a minute"):
        caller.admit(1, 1)


# --- over HTTP ---


@pytest.fixture
def keyed(engine: FakeEngine) -> Iterator[Client]:
    keys = Keyring(
        [
            a_key("user", max_sequences=2, tokens_per_minute=1000),
            a_key("poor", tokens_per_minute=1),
            a_key("metrics", scope=Scope.METRICS),
            a_key("admin", scope=Scope.ADMIN),
        ]
    )
    with TestClient(build_app(make_model(engine), ApiSettings(), keys)) as client:
        yield client


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        ("user", "/v1/models", 200),
        ("user", "/metrics", 403),
        ("metrics", "/metrics", 200),
        ("metrics", "/v1/models", 403),
        ("metrics", "/version", 403),
        ("admin", "/v1/models", 200),
        ("admin", "/metrics", 200),
    ],
)
def test_a_scope_opens_its_own_routes_only(keyed: Client, key: str, path: str, status: int) -> None:
    assert keyed.get(path, headers=bearer(key)).status_code == status


def test_a_key_without_tokens_left_gets_429_and_when_to_return(keyed: Client) -> None:
    first = keyed.post("/v1/chat/completions", json=BODY, headers=bearer("poor"))
    assert first.status_code == 200
    used = first.json()["usage"]["total_tokens"]
    second = keyed.post("/v1/chat/completions", json=BODY, headers=bearer("poor"))
    assert second.status_code == 429
    assert second.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(second.headers["retry-after"]) == pytest.approx(used * 60, abs=2)


def test_too_many_choices_for_a_key_are_a_400(keyed: Client) -> None:
    response = keyed.post("/v1/chat/completions", json={**BODY, "n": 3}, headers=bearer("user"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"


def test_places_are_freed_when_answers_and_streams_end(keyed: Client) -> None:
    for stream in (False, True, False):
        body = {**BODY, "n": 2, "stream": stream}
        response = keyed.post("/v1/chat/completions", json=body, headers=bearer("user"))
        assert response.status_code == 200


def test_places_are_freed_when_the_engine_refuses(keyed: Client, engine: FakeEngine) -> None:
    engine.refuses = RateLimited("busy", retry_after_s=1)
    for _ in range(3):
        response = keyed.post("/v1/chat/completions", json={**BODY, "n": 2}, headers=bearer("user"))
        assert response.json()["error"]["message"] == "busy"
    engine.refuses = None
    response = keyed.post("/v1/chat/completions", json={**BODY, "n": 2}, headers=bearer("user"))
    assert response.status_code == 200


def test_every_answer_has_the_security_headers(keyed: Client) -> None:
    for response in (
        keyed.get("/health"),
        keyed.get("/v1/models"),
        keyed.get("/no-such-path", headers=bearer("user")),
        keyed.post("/v1/chat/completions", json={**BODY, "stream": True}, headers=bearer("user")),
    ):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"].startswith("no-")
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "strict-transport-security" not in response.headers


def test_with_tls_browsers_are_told_to_stay_with_it(engine: FakeEngine) -> None:
    with TestClient(build_app(make_model(engine), ApiSettings(has_tls=True))) as client:
        assert "max-age" in client.get("/health").headers["strict-transport-security"]


def test_a_stored_response_is_there_for_its_own_key_only(keyed: Client) -> None:
    body = {"model": "tiny", "input": "hello"}
    made = keyed.post("/v1/responses", json=body, headers=bearer("user")).json()
    path = f"/v1/responses/{made['id']}"
    assert keyed.get(path, headers=bearer("admin")).status_code == 404
    assert keyed.delete(path, headers=bearer("admin")).status_code == 404
    follow_up = {**body, "previous_response_id": made["id"]}
    assert keyed.post("/v1/responses", json=follow_up, headers=bearer("admin")).status_code == 400
    assert keyed.get(path, headers=bearer("user")).json() == made


def test_what_each_key_used_is_counted(keyed: Client) -> None:
    usage = keyed.post("/v1/completions", json=PROMPT, headers=bearer("user")).json()["usage"]
    metrics = keyed.get("/metrics", headers=bearer("metrics")).text
    for kind in ("prompt", "completion"):
        labels = f'engine="0",key="user",kind="{kind}",model_name="tiny"'
        assert f"rocmforge_key_tokens_total{{{labels}}} {usage[f'{kind}_tokens']}.0" in metrics
