"""Folders that try to lead somewhere else, and those of the hub's cache, which may."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import BadFolder, ModelFileNotFound
from rocmforge.huggingface.files.folder import MAX_CONFIG_BYTES, Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.files.shards import map_shards
from tests.support.files.safetensors_writer import write_index, write_safetensors

ONE = np.ones(4, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of its own, with something beside it."""
    (tmp_path / "secret.safetensors").write_bytes(b"")
    write_safetensors(tmp_path / "secret.safetensors", {"a": ONE})
    path = tmp_path / "model"
    path.mkdir()
    return path


def tensors(path: Path) -> dict[str, tuple[str, int]]:
    """The file and size of each tensor of the folder."""
    return {
        info.name: (shard.path.name, info.nbytes)
        for shard in map_shards(Folder(path))
        for info in shard.tensors
    }


def test_shards_are_found_by_the_index(folder: Path) -> None:
    write_safetensors(folder / "one.safetensors", {"a": ONE, "b": ONE})
    write_safetensors(folder / "two.safetensors", {"c": ONE})
    write_index(folder, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    assert tensors(folder) == {
        "a": ("one.safetensors", 16),
        "b": ("one.safetensors", 16),
        "c": ("two.safetensors", 16),
    }


def test_bytes_of_a_tensor_are_those_of_the_file(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"a": np.zeros(3, np.float32), "b": ONE})
    (shard,) = map_shards(Folder(folder))
    *_, (info, data) = shard.data()
    assert info.name == "b"
    np.testing.assert_array_equal(data.view(np.float32), ONE)
    assert not data.flags.writeable


@pytest.mark.parametrize("kind", ["absolute", "climbing", "climbing back", "backslash", "empty"])
def test_a_path_in_the_index_that_leads_out_is_refused(folder: Path, kind: str) -> None:
    secret = folder.parent / "secret.safetensors"
    name = {
        "absolute": str(secret),
        "climbing": "../secret.safetensors",
        "climbing back": "../model/model.safetensors",
        "backslash": "..\\secret.safetensors",
        "empty": "",
    }[kind]
    write_index(folder, {"a": name})
    with pytest.raises(BadFolder, match="which is not a path within the folder"):
        map_shards(Folder(folder))


def test_a_link_out_of_the_folder_is_refused_with_where_it_leads(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to("../secret.safetensors")
    with pytest.raises(BadFolder, match=r"is a link to /.*secret\.safetensors, which lies outside"):
        map_shards(Folder(folder))


def test_a_linked_folder_within_is_refused_when_it_leads_out(folder: Path) -> None:
    (folder / "shards").symlink_to(folder.parent)
    write_index(folder, {"a": "shards/secret.safetensors"})
    with pytest.raises(BadFolder, match="which lies outside"):
        map_shards(Folder(folder))


def test_a_link_within_the_folder_and_a_link_to_the_folder_itself_work(folder: Path) -> None:
    write_safetensors(folder / "real.safetensors", {"a": ONE})
    (folder / "model.safetensors").symlink_to("real.safetensors")
    linked = folder.parent / "linked"
    linked.symlink_to(folder)
    assert tensors(linked) == {"a": ("real.safetensors", 16)}


@pytest.mark.parametrize("shared", [False, True])
def test_a_snapshot_of_the_hubs_cache_may_link_to_its_blobs(tmp_path: Path, shared: bool) -> None:
    model = tmp_path / "hub" / "models--org--name"
    snapshot, blobs = model / "snapshots" / "0a1b", model / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    write_safetensors(blobs / "c0ffee", {"a": ONE})
    if shared:  # by all models of the cache
        store = tmp_path / "hub" / "blobs" / "c0"
        store.mkdir(parents=True)
        (blobs / "c0ffee").rename(store / "c0ffee")
        (blobs / "c0ffee").symlink_to("../../blobs/c0/c0ffee")
    (snapshot / "model.safetensors").symlink_to("../../blobs/c0ffee")
    assert tensors(snapshot) == {"a": ("c0ffee", 16)}


def test_a_snapshot_may_not_link_to_another_models_files(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0a1b"
    other = tmp_path / "models--org--other" / "blobs"
    for path in (snapshot, other):
        path.mkdir(parents=True)
    write_safetensors(other / "c0ffee", {"a": ONE})
    (snapshot / "model.safetensors").symlink_to(other / "c0ffee")
    with pytest.raises(BadFolder, match="which lies outside"):
        map_shards(Folder(snapshot))


def test_links_in_a_circle_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(BadFolder, match="cannot be read"):
        map_shards(Folder(folder))


def test_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(BadFolder, match="no regular file"):
        map_shards(Folder(folder))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_refused_with_the_way_out(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\x80\x04.")
    with pytest.raises(BadFolder, match=r"pickled \(pytorch_model.*save_pretrained"):
        map_shards(Folder(folder))


def test_pickled_weights_beside_safetensors_do_not_matter(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    write_safetensors(folder / "model.safetensors", {"a": ONE})
    assert list(tensors(folder)) == ["a"]


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    with pytest.raises(ModelFileNotFound, match=r"neither model\.safetensors nor"):
        map_shards(Folder(folder))


def test_a_missing_shard_is_named(folder: Path) -> None:
    write_index(folder, {"a": "gone.safetensors"})
    with pytest.raises(ModelFileNotFound, match=r"no file gone\.safetensors"):
        map_shards(Folder(folder))


def test_a_tensor_that_is_not_where_the_index_says_is_named(folder: Path) -> None:
    write_safetensors(folder / "one.safetensors", {"a": ONE})
    write_index(folder, {"a": "one.safetensors", "b": "one.safetensors"})
    with pytest.raises(BadFolder, match=r"tensor 'b' is in one\.safetensors: it is not"):
        map_shards(Folder(folder))


def test_a_tensor_in_two_shards_is_named(folder: Path) -> None:
    for name in ("one.safetensors", "two.safetensors"):
        write_safetensors(folder / name, {"a": ONE, name[:3]: ONE})
    write_index(folder, {"a": "one.safetensors", "two": "two.safetensors"})
    with pytest.raises(BadFolder, match=r"'a' is in one\.safetensors and in two"):
        map_shards(Folder(folder))


def test_an_index_of_endless_files_is_refused(folder: Path) -> None:
    write_index(folder, {str(n): f"{n}.safetensors" for n in range(3000)})
    with pytest.raises(BadFolder, match="names 3000 files; there may be 2048"):
        map_shards(Folder(folder))


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 3}, {"a": None}])
def test_an_index_of_another_form_is_refused(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadFolder, match="weight_map"):
        map_shards(Folder(folder))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff", b'{"a": ' * 100_000, b'{"model_type": "\xff"}']
)
def test_a_config_that_is_no_json_object_is_refused(folder: Path, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
    with pytest.raises(BadFolder, match=r"config\.json is not a JSON object"):
        Folder(folder).config()


def test_a_config_of_values_within_values_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": ' + "[" * 100 + "]" * 100 + "}")
    with pytest.raises(BadFolder, match="values within values, 100 levels deep"):
        Folder(folder).config()


def test_a_config_of_endless_length_is_refused(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(BadFolder, match="larger than the 16 MiB"):
        Folder(folder).config()


def test_a_folder_without_a_config_is_no_models(folder: Path) -> None:
    with pytest.raises(ModelFileNotFound, match="not a model's folder"):
        Folder(folder).config()


@pytest.mark.parametrize(
    ("getter", "value", "reason"),
    [
        ("get_int", "8", "of type str, not an integer"),
        ("get_int", 8.5, "of type float, not an integer"),
        ("get_int", True, "of type bool, not an integer"),
        ("get_positive", 0, "0 is not between"),
        ("get_positive", 2**31, "is not between"),
        ("get_float", "1", "of type str, not a number"),
        ("get_float", False, "of type bool, not a number"),
        ("get_float", 10**400, "no finite number"),
        ("get_bool", 1, "of type int, not a bool"),
        ("get_str", 1, "of type int, not a string"),
        ("get_list", {}, "of type dict, not a list"),
        ("get_strings", ["a", 1], "not all of it are strings"),
        ("get_numbers", [1, "a"], "not all of it are numbers"),
        ("get_object", [], "of type list, not an object"),
        ("get_int", None, "it is missing"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(
    folder: Path, getter: str, value: Any, reason: str
) -> None:
    inner = JsonObject(folder / "config.json", {"rope": {"factor": value}}).get_object("rope")
    assert inner is not None
    with pytest.raises(BadFolder, match=r"config\.json: the key 'rope\.factor': ") as caught:
        getattr(inner, getter)("factor")
    assert reason in str(caught.value)
