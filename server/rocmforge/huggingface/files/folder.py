"""The files of a folder: found without leaving it, read up to a limit.

A folder comes from a stranger. A name in it, such as a shard's in the index, could lead anywhere:
names must be relative and plain, and once symbolic links are followed the file must lie in the
folder. The one layout that lies elsewhere is the cache of Hugging Face's hub, whose snapshots are
links to blobs: `models--ORG--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH`, which may itself be
a link into the blobs that all models of the cache share.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import msgspec

from rocmforge.errors import BadFolder, ModelFileNotFound
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.library.hub_names import folder_name, hub_repository

CONFIG: Final = "config.json"
MAX_CONFIG_BYTES: Final = 16 << 20
"""Of a JSON file; those of large vocabularies in `tokenizer_config.json` take about 1 MiB."""
MAX_FILES: Final = 256
"""In a folder within it."""
_MAX_DEPTH: Final = 100
T = TypeVar("T")


class Folder:
    """A folder and the files in it.

    Attributes:
        path: As it was given, for messages.
    """

    def __init__(self, path: Path) -> None:
        """Finds the folder.

        Raises:
            ModelFileNotFound: There is none, or it cannot be read.
        """
        self.path = path
        try:
            self._root = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ModelFileNotFound(f"{path}: cannot be read: {error}.") from error
        self._allowed = (self._root, *_hub_blobs(self._root))

    @property
    def name(self) -> str:
        """The name of the model."""
        return folder_name(self.path)

    def state(self) -> tuple[int, int]:
        """Returns the bytes of all files, and when one was last changed, in ns since the epoch.

        Raises:
            ModelFileNotFound: The folder cannot be read.
        """
        try:
            states = [entry.stat() for entry in self._root.iterdir() if entry.is_file()]
        except OSError as error:
            raise ModelFileNotFound(f"{self.path}: cannot be read: {error.strerror}.") from error
        return sum(s.st_size for s in states), max((s.st_mtime_ns for s in states), default=0)

    def files_in(self, name: str, suffix: str) -> tuple[str, ...]:
        """Returns the names, within the folder, of files in a folder of it that end in `suffix`.

        Raises:
            BadFolder: There are more than MAX_FILES, or it cannot be read.
        """
        try:
            found = [path.name for path in islice((self._root / name).iterdir(), MAX_FILES + 1)]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self.bad(f"{name} cannot be read: {error.strerror}") from error
        if len(found) > MAX_FILES:
            raise self.bad(f"{name} has more than {MAX_FILES} files")
        return tuple(f"{name}/{each}" for each in sorted(found) if each.endswith(suffix))

    def find(self, name: str) -> Path | None:
        """Returns the real path of a file; None if there is none of that name.

        Raises:
            BadFolder: The name leads out of the folder, or it is no regular file.
        """
        parts = PurePosixPath(name)
        if not name or parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
            raise self.bad(f"it names the file {name!r}, which is not a path within the folder")
        try:
            real = (self._root / parts).resolve(strict=True)
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
            raise self.bad(f"{name} cannot be read: {error}") from error
        if not any(real.is_relative_to(root) for root in self._allowed):
            raise self.bad(
                f"{name} is a link to {real}, which lies outside the folder. Put the file itself "
                "there"
            )
        if not real.is_file():
            raise self.bad(f"{name} is no regular file")
        return real

    def require(self, name: str) -> Path:
        """Returns the real path of a file.

        Raises:
            ModelFileNotFound: There is none of that name.
            BadFolder: As `find`.
        """
        found = self.find(name)
        if found is None:
            raise ModelFileNotFound(f"{self.path}: there is no file {name}.")
        return found

    def read(self, name: str, limit: int) -> bytes | None:
        """Returns the content of a file of at most `limit` bytes; None if there is none.

        Raises:
            BadFolder: As `find`, or it is larger.
        """
        path = self.find(name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise ModelFileNotFound(f"{path}: cannot be read: {error.strerror}.") from error
        if len(data) > limit:
            raise self.bad(f"{name} is larger than the {limit >> 20} MiB that are read of it")
        return data

    def text(self, name: str, limit: int) -> str | None:
        """Returns the text of a file; None if there is none.

        Raises:
            BadFolder: As `read`, or it is no UTF-8 text.
        """
        data = self.read(name, limit)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as error:
            raise self.bad(f"{name} is no UTF-8 text: {error}") from error

    def json(self, name: str, limit: int = MAX_CONFIG_BYTES) -> JsonObject | None:
        """Returns the object in a JSON file; None if there is no such file.

        Raises:
            BadFolder: As `read`, or it is not a JSON object.
        """
        data = self.read(name, limit)
        if data is None:
            return None
        values = self._decoded(name, data, dict[str, object], "a JSON object")
        return JsonObject(self.path / name, values)

    def json_objects(self, name: str) -> tuple[JsonObject, ...] | None:
        """Returns the objects in a JSON file that holds a list of them; None without the file.

        Raises:
            BadFolder: As `read`, or it is not such a list.
        """
        data = self.read(name, MAX_CONFIG_BYTES)
        if data is None:
            return None
        found = self._decoded(name, data, list[dict[str, object]], "a list of JSON objects")
        return tuple(JsonObject(self.path / name, values) for values in found)

    def _decoded(self, name: str, data: bytes, kind: type[T], wanted: str) -> T:
        """Returns the values of a JSON file of `kind`; readers may call themselves for parts."""
        try:
            values = _decode(data, kind)
        except (ValueError, RecursionError) as error:
            raise self.bad(f"{name} is not {wanted}: {error}") from error
        level: list[object] = [values]
        for _ in range(_MAX_DEPTH):
            level = [inner for part in level for inner in _parts(part)]
            if not level:
                return values
        raise self.bad(f"{name} has values within values, {_MAX_DEPTH} levels deep or more")

    def config(self) -> JsonObject:
        """Returns `config.json`, which every model has.

        Raises:
            ModelFileNotFound: There is none.
            BadFolder: It is not a JSON object.
        """
        found = self.json(CONFIG)
        if found is None:
            raise ModelFileNotFound(
                f"{self.path}: there is no file {CONFIG}: not a model's folder."
            )
        return found

    def bad(self, reason: str) -> BadFolder:
        """Returns the error for something in this folder."""
        return BadFolder(str(self.path), reason)


def _decode(data: bytes, kind: type[T]) -> T:
    """Returns what is in JSON, where Python may have written an infinity, which JSON has not."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        if b"Infinity" not in data:
            raise
        return msgspec.convert(json.loads(data), type=kind)


def _parts(part: object) -> list[object]:
    """Returns the objects and lists in one."""
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [value for value in values if isinstance(value, dict | list)]


def _hub_blobs(root: Path) -> tuple[Path, ...]:
    """Returns where the files of a snapshot of the hub's cache may lie; empty for other folders."""
    found = hub_repository(root)
    return () if found is None else (found / "blobs", found.parent / "blobs")
