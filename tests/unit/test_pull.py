"""A model that could not be served here is refused before it is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocmforge.commands.plan import plan_model
from rocmforge.commands.pull import refuse_unless_it_fits
from rocmforge.errors import BadGguf, DownloadFailed, UnsupportedArchitecture
from rocmforge.gguf.synthetic import write_synthetic_model
from rocmforge.library import hub as hubs
from rocmforge.library.hub import Hub, find_in_hub
from rocmforge.library.hub_names import HubName
from rocmforge.settings import Settings
from tests.support.gguf_writer import write_gguf
from tests.support.hub import FakeHub

GIB = 1 << 30
MODEL = HubName("org/m", "Q8_0")
SETTINGS = Settings(backend="hip", max_sequences=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    write_synthetic_model(folder / "synthetic.gguf")
    write_gguf(folder / "strange.gguf", {"general.architecture": "strange"}, {})
    model = (folder / "synthetic.gguf").read_bytes()
    return {
        "m-Q8_0.gguf": model,
        "m-Q2_K.gguf": model[: len(model) // 10],
        "strange-F16.gguf": (folder / "strange.gguf").read_bytes(),
    }


@pytest.fixture
def fake(files: dict[str, bytes]) -> FakeHub:
    repositories = {"org/m": {**files}, "org/strange": {}}
    repositories["org/strange"]["s-F16.gguf"] = repositories["org/m"].pop("strange-F16.gguf")
    return FakeHub(repositories)


@pytest.fixture
def hub(fake: FakeHub, tmp_path: Path) -> Iterator[Hub]:
    with fake.serve() as address:
        yield Hub(address, tmp_path)


def check(hub: Hub, memory: int, name: HubName = MODEL) -> None:
    refuse_unless_it_fits(hub, find_in_hub(hub, name), SETTINGS, memory)


def test_a_model_that_fits_is_planned_from_its_beginning(
    hub: Hub, fake: FakeHub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning = len(files["m-Q8_0.gguf"]) // 2
    monkeypatch.setattr(hubs, "HEADER_BYTES", beginning)
    check(hub, 24 * GIB)
    assert beginning < fake.sent_bytes < beginning + 2000  # with the list of files


def test_one_that_does_not_fit_is_refused_with_the_quantisation_that_does(
    hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(files["m-Q8_0.gguf"])
    estimate = plan_model(path, SETTINGS, 24 * GIB).estimate

    def memory_for(weights: int) -> int:
        return int((estimate.activations + weights) / SETTINGS.memory_utilization)

    with pytest.raises(DownloadFailed, match=r"org/m:Q8_0 was not fetched: .*for another machine"):
        check(hub, memory_for(estimate.weights // 20))
    with pytest.raises(DownloadFailed, match=r"its weights take .*org/m:Q2_K would fit"):
        check(hub, memory_for(estimate.weights // 2))
    with pytest.raises(DownloadFailed, match=r"512 tokens does not fit.*--max-context 64 or less"):
        check(hub, memory_for(estimate.weights + 2 * estimate.kv_block))
    check(hub, memory_for(estimate.weights + estimate.kv_sequence + 1000))


def test_an_architecture_that_nobody_serves_is_refused(hub: Hub) -> None:
    with pytest.raises(UnsupportedArchitecture, match="strange"):
        check(hub, 24 * GIB, HubName("org/strange"))


def test_a_broken_file_is_refused(hub: Hub) -> None:
    with pytest.raises(BadGguf):
        check(hub, 24 * GIB, HubName("org/m", "Q2_K"))
