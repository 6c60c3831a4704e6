"""A model that could not be served here is refused before it is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from rocmforge.commands.plan import plan_model
from rocmforge.commands.pull import choose
from rocmforge.errors import BadGguf, DownloadFailed, NotInHub, UnsupportedArchitecture
from rocmforge.gguf.synthetic import write_synthetic_model
from rocmforge.library import hub as hubs
from rocmforge.library.catalogue import read_catalogue
from rocmforge.library.hub import Hub
from rocmforge.settings import Settings
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf
from tests.support.models.hip import fitting
from tests.support.processes.hub import FakeHub

GIB = 1 << 30
MODEL = "org/m:Q8_0"
SHORT = "qwen3-4b"
ENTRY = read_catalogue()[SHORT]
SETTINGS = Settings(backend="hip", max_sequences=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    write_synthetic_model(folder / "synthetic.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rocmforge.gguf.synthetic._LAYERS", 1)
        write_synthetic_model(folder / "small.gguf")
    write_gguf(folder / "strange.gguf", {"general.architecture": "strange"}, {})
    model = (folder / "synthetic.gguf").read_bytes()
    return {
        "m-Q8_0.gguf": model,
        "m-Q2_K.gguf": model[: len(model) // 10],
        "strange-F16.gguf": (folder / "strange.gguf").read_bytes(),
        "small.gguf": (folder / "small.gguf").read_bytes(),
    }


@pytest.fixture
def fake(files: dict[str, bytes]) -> FakeHub:
    repositories = {"org/m": {**files}, "org/strange": {}}
    del repositories["org/m"]["small.gguf"]
    repositories["org/strange"]["s-F16.gguf"] = repositories["org/m"].pop("strange-F16.gguf")
    repositories[ENTRY.repository] = {
        "Q-Q8_0.gguf": files["m-Q8_0.gguf"],
        "Q-Q4_K_M.gguf": files["small.gguf"],
        "Q-BF16.gguf": files["m-Q8_0.gguf"],
    }
    return FakeHub(repositories)


@pytest.fixture
def hub(fake: FakeHub, tmp_path: Path) -> Iterator[Hub]:
    with fake.serve() as address:
        yield Hub(address, tmp_path)


def check(hub: Hub, memory: int, name: str = MODEL) -> None:
    choose(hub, name, SETTINGS, memory)


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
        return ceil((estimate.activations + weights) / SETTINGS.memory_utilization)

    with pytest.raises(DownloadFailed, match=r"org/m:Q8_0 was not fetched: .*for another machine"):
        check(hub, memory_for(estimate.weights // 20))
    with pytest.raises(DownloadFailed, match=r"its weights take .*org/m:Q2_K would fit"):
        check(hub, memory_for(estimate.weights // 2))
    with pytest.raises(DownloadFailed, match=r"512 tokens does not fit.*--max-context 64 or less"):
        check(hub, memory_for(estimate.weights + 2 * estimate.kv_block))
    check(hub, memory_for(estimate.weights + estimate.kv_sequence + 1000))


def test_an_architecture_that_nobody_serves_is_refused(hub: Hub) -> None:
    with pytest.raises(UnsupportedArchitecture, match="strange"):
        check(hub, 24 * GIB, "org/strange")


def test_a_broken_file_is_refused(hub: Hub) -> None:
    with pytest.raises(BadGguf):
        check(hub, 24 * GIB, "org/m:Q2_K")


def memory_for(content: bytes, tmp_path: Path) -> int:
    """The free bytes that suffice for one sequence."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    estimate = plan_model(path, SETTINGS, 24 * GIB).estimate
    needed = estimate.activations + estimate.weights + estimate.kv_sequence
    return int(needed / SETTINGS.memory_utilization) + 1000


def test_a_short_name_is_the_largest_recommended_file_that_fits(
    hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    assert list(ENTRY.gigabytes) == ["Q4_K_M", "Q8_0"], "smallest first; BF16 is not recommended"
    small = memory_for(files["small.gguf"], tmp_path)
    large = memory_for(files["m-Q8_0.gguf"], tmp_path)
    assert small < large
    assert choose(hub, SHORT, SETTINGS, large).main == "Q-Q8_0.gguf"
    assert choose(hub, SHORT.upper(), SETTINGS, large - 2000).main == "Q-Q4_K_M.gguf"
    assert choose(hub, SHORT, SETTINGS, small).main == "Q-Q4_K_M.gguf"
    with pytest.raises(DownloadFailed, match=f"{ENTRY.repository}:Q4_K_M was not fetched"):
        choose(hub, SHORT, SETTINGS, small - 2000)


def test_a_file_beside_which_little_context_fits_is_taken_only_if_all_are_so(
    hub: Hub, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = memory_for(files["small.gguf"], tmp_path)
    large = memory_for(files["m-Q8_0.gguf"], tmp_path)
    monkeypatch.setattr("rocmforge.engine_options.LEAST_CONTEXT", 64)  # of 512
    assert choose(hub, SHORT, SETTINGS, large).main == "Q-Q8_0.gguf"
    assert choose(hub, SHORT, SETTINGS, large - 2000).main == "Q-Q4_K_M.gguf"
    assert choose(hub, f"{SHORT}:Q8_0", SETTINGS, large - 2000).main == "Q-Q8_0.gguf"
    assert choose(hub, SHORT, SETTINGS, small - 2000).main == "Q-Q4_K_M.gguf"


def test_a_file_that_leaves_experts_on_the_host_is_taken_only_if_all_do(
    hub: Hub, fake: FakeHub, tmp_path: Path
) -> None:
    tiny = fitting(by_name("qwen3moe"))
    files = dict(fake.repositories[ENTRY.repository])
    for name, count in (("Q8_0", 64), ("Q4_K_M", 32)):
        keys = tiny.keys | {"expert_count": count}
        config = tiny.config | {"num_experts": count}
        path = write_model(replace(tiny, keys=keys, config=config), tmp_path)
        files[f"Q-{name}.gguf"] = path.read_bytes()
    fake.repositories = {**fake.repositories, ENTRY.repository: files}
    large, small = (memory_for(files[f"Q-{name}.gguf"], tmp_path) for name in ("Q8_0", "Q4_K_M"))
    assert small < large
    assert choose(hub, SHORT, SETTINGS, large).main == "Q-Q8_0.gguf"
    assert choose(hub, SHORT, SETTINGS, large - 100_000).main == "Q-Q4_K_M.gguf"
    assert choose(hub, f"{SHORT}:Q8_0", SETTINGS, large - 100_000).main == "Q-Q8_0.gguf"
    assert choose(hub, SHORT, SETTINGS, small - 100_000).main == "Q-Q4_K_M.gguf"


def test_a_quantisation_behind_a_short_name_is_taken(hub: Hub) -> None:
    assert choose(hub, f"{SHORT}:q4_k_m", SETTINGS, 24 * GIB).main == "Q-Q4_K_M.gguf"
    assert choose(hub, f"{SHORT}:BF16", SETTINGS, 24 * GIB).main == "Q-BF16.gguf"


def test_without_a_device_to_fit_on_a_short_name_is_the_smallest_file(hub: Hub) -> None:
    assert choose(hub, SHORT, Settings(backend="reference")).main == "Q-Q4_K_M.gguf"
    assert choose(hub, SHORT, SETTINGS, 24 * GIB, check_fits=False).main == "Q-Q4_K_M.gguf"


def test_a_catalogue_that_is_wrong_says_how_to_name_another_repository(
    hub: Hub, fake: FakeHub
) -> None:
    advice = f"stands for {ENTRY.repository} in the catalogue. You can name another repository: ORG"
    with pytest.raises(NotInHub, match=rf"{SHORT}:Q6_K {advice}.* has no Q6_K. Say one of: "):
        choose(hub, f"{SHORT}:Q6_K", SETTINGS, 24 * GIB)
    fake.repositories = {}
    with pytest.raises(NotInHub, match=f"{SHORT} {advice}.* has no model {ENTRY.repository}"):
        choose(hub, SHORT, SETTINGS, 24 * GIB)
    with pytest.raises(NotInHub) as named:
        choose(hub, "org/m", SETTINGS, 24 * GIB)
    assert "catalogue" not in named.value.message
