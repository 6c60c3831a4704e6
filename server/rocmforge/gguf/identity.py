"""The check that a model file still says what the server read in it when it started."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from rocmforge.errors import ModelFileNotFound, ModelLoadError
from rocmforge.gguf.reader import GgufFile, open_gguf


class FileIdentity(msgspec.Struct, frozen=True):
    """The facts that are remembered of a file.

    The server reads a model's tokenizer, template and limits once, an engine process its weights
    each time that it starts. A file may be replaced in between, by one with other weights only.
    """

    size: int  # bytes
    modified_ns: int
    digest: str  # of the keys that describe tokenizer and architecture

    @classmethod
    def of(cls, file: GgufFile) -> Self:
        """Returns the identity of an open file; of a split model, that of the first part."""
        stat = file.path.stat()
        return cls(stat.st_size, stat.st_mtime_ns, _digest(file))

    def check(self, path: Path) -> None:
        """Reads the file again only if it was touched.

        Raises:
            ModelFileNotFound: There is no such file any more.
            BadGguf: It is a broken one now.
            ModelLoadError: It is another model.
        """
        try:
            stat = path.stat()
        except OSError as error:
            raise ModelFileNotFound(f"{path}: cannot be read: {error.strerror}.") from error
        if (stat.st_size, stat.st_mtime_ns) == (self.size, self.modified_ns):
            return
        with open_gguf(path) as file:
            if _digest(file) != self.digest:
                raise ModelLoadError(
                    f"{path} has another tokenizer or architecture than when the server started. "
                    "Restart the server to serve it."
                )


def _digest(file: GgufFile) -> str:
    prefixes = ("tokenizer.", f"{file.get_str('general.architecture')}.")
    described = {key: value for key, value in file.metadata.items() if key.startswith(prefixes)}
    # In ASCII: strings of a file need not be valid UTF-8, which is refused elsewhere.
    encoded = json.dumps([*prefixes, described], default=_plain)
    return hashlib.sha256(encoded.encode()).hexdigest()


def _plain(value: Any) -> str:
    assert isinstance(value, np.ndarray | np.generic), "all else in metadata is plain"
    return value.tobytes().hex()
