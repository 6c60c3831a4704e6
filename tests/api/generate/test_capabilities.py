"""What a model cannot do is known from its file: nobody waits for it to be loaded to hear that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from rocmforge.api.app import build_app
from rocmforge.api.http.settings import ApiSettings
from rocmforge.errors import OutOfMemory
from rocmforge.fleet.entry import FleetEntry, ModelPolicy, ModelState
from rocmforge.fleet.fleet import Fleet, FleetSettings
from rocmforge.models.pooling import PoolingType
from rocmforge.text.template.template import ChatTemplates
from tests.api.fake_engine import MAX_CONTEXT, RUNNER, FakeEngine, make_model
from tests.data.models.text.tiny_encoders import by_name, write_encoder
from tests.support.processes.server import LiveServer

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"messages": MESSAGES}
GENERATE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {**CHAT, "max_tokens": 5},
}
EMBED = ("/v1/embeddings", {"input": "hello"})
RERANK = ("/v1/rerank", {"query": "hello", "documents": ["world"]})
FILES = {"embed": "xlm-roberta", "rank": "ranker"}
DECODER: dict[str, Any] = {"hidden_size": 8}
EMBEDDER: dict[str, Any] = {"causal": False, "pooling": PoolingType.MEAN, "hidden_size": 8}
RANKER: dict[str, Any] = {"causal": False, "pooling": PoolingType.RANK, "hidden_size": 1}


@dataclass(eq=False)
class LazyEngine(FakeEngine):
    """Does not fit, if somebody should try."""

    async def wait_ready(self) -> None:
        """Fails."""
        raise OutOfMemory("it was loaded")


class Pair:
    """The same model twice: `up` is loaded and `lazy` is not. Loading it would unload something."""

    def __init__(self, *, hidden_size: int, **changes: Any) -> None:
        runner = replace(RUNNER, hidden_size=hidden_size, logits_processors=("dry",))
        models = []
        for name in ("up", "lazy"):
            policy = ModelPolicy(at_start=name == "up")
            entry = FleetEntry(name, lambda totals: LazyEngine(runner=None), policy)
            model = make_model(
                name=name,
                aliases=(),
                entry=entry,
                declared_context=MAX_CONTEXT,
                declared_hidden_size=hidden_size,
                **changes,
            )
            models.append(model)
        self.up, self.lazy = (model.entry for model in models)
        self.up.engine, self.up.is_new = FakeEngine(runner=runner), False
        self.fleet = Fleet(models, FleetSettings(max_loaded=1))
        self.client: TestClient[Litestar] = TestClient(build_app(self.fleet, ApiSettings()))

    def errors(self, path: str, body: dict[str, Any]) -> tuple[Any, Any]:
        """What both answer, with one name for both."""
        found = []
        for name in ("up", "lazy"):
            response = self.client.post(path, json={"model": name, **body})
            text = response.text.replace(f"'{name}'", "'it'")
            found.append((response.status_code, response.headers["content-type"], text))
        return found[0], found[1]


@contextmanager
def pair(**changes: Any) -> Iterator[Pair]:
    found = Pair(**changes)
    with found.client:
        yield found


def assert_refused_alike(models: Pair, path: str, body: dict[str, Any]) -> str:
    """Both refuse the request, in the same words, and nothing is loaded or unloaded for it."""
    loaded, lazy = models.errors(path, body)
    assert loaded == lazy
    status, content_type, text = lazy
    assert status == 400, text
    assert content_type.startswith("application/json")  # also if a stream was asked for
    assert models.lazy.state is ModelState.UNLOADED
    assert models.up.state is ModelState.READY
    assert (models.lazy.num_waiting, models.lazy.users, models.up.users) == (0, 0, 0)
    return str(text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model", "use"), [(EMBEDDER, "/v1/embeddings"), (RANKER, "/v1/rerank")])
@pytest.mark.parametrize("path", GENERATE)
def test_an_encoder_generates_nothing(
    path: str, model: dict[str, Any], use: str, stream: bool
) -> None:
    with pair(**model) as models:
        text = assert_refused_alike(models, path, {**GENERATE[path], "stream": stream})
    assert f"Use {use}" in text


@pytest.mark.parametrize(
    ("model", "request_", "reason"),
    [
        (DECODER, RERANK, "declares no pooling"),
        (RANKER, EMBED, "gives no embeddings"),
        ({**RANKER, "hidden_size": 3}, RERANK, "3 classes"),
        ({**DECODER, "pooling": PoolingType.RANK}, RERANK, "no classification head, or no prompt"),
    ],
)
def test_what_a_model_was_not_trained_for(
    model: dict[str, Any], request_: tuple[str, dict[str, Any]], reason: str
) -> None:
    with pair(**model) as models:
        assert reason in assert_refused_alike(models, *request_)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_model_without_a_template_cannot_chat(path: str) -> None:
    with pair(**DECODER, templates=ChatTemplates({})) as models:
        assert "no chat template" in assert_refused_alike(models, path, GENERATE[path])


def test_a_model_without_a_template_is_not_said_to_chat() -> None:
    with pair(**DECODER, templates=ChatTemplates({})) as models:
        (card, _) = models.client.get("/v1/models").json()["data"]
        assert card["capabilities"] == ["completions", "embeddings"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"suffix": "end"}),
        ("/v1/completions", {"num_assistant_tokens": 4}),
        ("/v1/completions", {"prompt": [10**6]}),
        ("/v1/completions", {"max_tokens": MAX_CONTEXT + 1}),
        ("/v1/completions", {"logits_processors": {"dry": {"multiplier": "x"}}}),
        ("/v1/completions", {"logits_processors": {"other": {}}}),
        ("/v1/completions", {"guided_regex": "("}),
        ("/v1/chat/completions", {"tool_choice": "required"}),
        ("/v1/responses", {"max_output_tokens": MAX_CONTEXT + 1, "stream": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a" * 3 * MAX_CONTEXT}]}),
        ("/v1/embeddings", {"input": [[1] * (MAX_CONTEXT + 1)]}),
        ("/v1/embeddings", {"input": "a", "dimensions": 9}),
    ],
)
def test_other_mistakes_do_not_load_a_model_either(path: str, fields: dict[str, Any]) -> None:
    with pair(**DECODER) as models:
        assert_refused_alike(models, path, {**GENERATE.get(path, {}), **fields})


@pytest.mark.parametrize("path", [*GENERATE, "/v1/embeddings"])
def test_an_adapter_that_a_model_has_not_is_not_looked_for_in_it(path: str) -> None:
    body = {**GENERATE.get(path, {"input": "hello"}), "model": "lazy:sql"}
    with pair(**DECODER) as models:
        assert models.client.post(path, json=body).status_code == 404
        assert models.lazy.state is ModelState.UNLOADED


@pytest.mark.parametrize(
    ("model", "request_"),
    [
        *((DECODER, request) for request in GENERATE.items()),
        (DECODER, EMBED),
        (EMBEDDER, EMBED),
        (EMBEDDER, RERANK),
        (RANKER, RERANK),
        ({**DECODER, "pooling": PoolingType.LAST}, RERANK),
    ],
)
def test_what_a_model_can_do_loads_it(
    model: dict[str, Any], request_: tuple[str, dict[str, Any]]
) -> None:
    path, body = request_
    with pair(**model) as models:
        response = models.client.post(path, json={"model": "lazy", **body})
        assert response.status_code == 503
        assert "it was loaded" in response.text


CONFIG = """
backend = "reference"
max_loaded_models = 1

[models.embed]
path = "{embed}"

[models.rank]
path = "{rank}"
load = "request"
"""


def test_what_files_say_is_what_loaded_models_say(tmp_path: Path) -> None:
    """With real files and engines: the same questions before a model is loaded and after."""
    config = tmp_path / "models.toml"
    paths = {name: write_encoder(by_name(of), tmp_path) for name, of in FILES.items()}
    config.write_text(CONFIG.format(**paths), encoding="utf-8")
    questions = [
        *GENERATE.items(),
        EMBED,
        ("/v1/rerank", {"query": "a", "documents": ["the " * 200]}),
    ]

    def answers(http: httpx.Client) -> list[Any]:
        return [http.post(path, json={"model": "rank", **body}).json() for path, body in questions]

    command = ["-m", "rocmforge", "serve", "--config", str(config), "--port", "{port}"]
    with (
        LiveServer(command, tmp_path / "log") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        before = answers(http)
        states = [card["state"] for card in http.get("/v1/models").json()["data"]]
        assert states == ["ready", "unloaded"]
        good = {"model": "rank", "query": "cat", "documents": ["dog"]}
        assert http.post("/v1/rerank", json=good).status_code == 200
        states = [card["state"] for card in http.get("/v1/models").json()["data"]]
        assert states == ["unloaded", "ready"]
        assert answers(http) == before
    assert all("error" in answer for answer in before)
