"""Fetches models from a hub into its own cache, where every other program finds them too.

`huggingface_hub` knows the hub's interface, its cache, its token and its environment variables
(`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, ...). What it does not do is done here: a download
that was interrupted goes on where it stopped, also in another process, and the content of a file
is compared with its checksum.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from io import BufferedRandom, BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Protocol

from httpx2 import HTTPError
from huggingface_hub import HfApi, constants, get_token, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name

from rocmforge.errors import DownloadFailed, NotInHub
from rocmforge.library.hub_names import (
    HubName,
    choose_file,
    is_model_file,
    label_of,
    parts_of,
    quantisations,
)

_OF_FOLDER: Final = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
"""What a folder needs: weights that hold no code, and the texts beside them."""
HEADER_BYTES: Final = 1 << 25
"""How much of a file is read to plan it: those of today have vocabularies of up to 15 MB."""
_SPARE_BYTES: Final = 1 << 28
"""What shall be left on the disk."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub, and the folder in which its models are kept; as its own variables say, if not said."""

    endpoint: str = constants.ENDPOINT
    cache: Path = Path(constants.HF_HUB_CACHE)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    path: str  # within the repository
    num_bytes: int
    sha256: str | None  # small files have none


@dataclass(frozen=True, slots=True)
class HubModel:
    """Files of a repository that make a model."""

    name: HubName
    revision: str  # the commit
    files: tuple[HubFile, ...]
    main: str | None  # its GGUF file, or the first part of it; None = it is a folder
    others: tuple[tuple[str, int], ...]  # the other quantisations, and what each takes in bytes

    @property
    def num_bytes(self) -> int:
        """Returns what they take together."""
        return sum(file.num_bytes for file in self.files)


class Meter(Protocol):
    """Shows how far a download is."""

    def begin(self, file: HubFile, done: int) -> None:
        """Begins a file, of which so many bytes are here."""

    def advance(self, count: int) -> None:
        """Adds bytes that have come."""


def find_in_hub(hub: Hub, name: HubName) -> HubModel:
    """Asks the hub for the files of a model; fetches nothing.

    Raises:
        NotInHub: there is no such model.
        DownloadFailed: the hub cannot be asked.
    """
    with _explained(hub, name):
        info = HfApi(hub.endpoint).model_info(name.repository, files_metadata=True)
    found = {
        sibling.rfilename: HubFile(
            sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None
        )
        for sibling in info.siblings or ()
    }
    main = choose_file(found, name.quantisation)
    if main is not None:
        wanted = parts_of(main)
        missing = [part for part in wanted if part not in found]
        if missing:
            raise NotInHub(f"{name}: the repository lacks {missing[0]}.")
    elif any(map(is_model_file, found)):
        raise NotInHub(
            f"{name.repository} has no {name.quantisation or 'usual quantisation'}. Say one of: "
            + ", ".join(f"{name.repository}:{label}" for label in quantisations(found))
        )
    else:
        wanted = _of_folder(name, found)
    others = [
        (
            label_of(file),
            sum(found[p].num_bytes for p in parts_of(file) if p in found),
        )
        for file in found
        if is_model_file(file) and file != main
    ]
    files = tuple(found[path] for path in wanted)
    return HubModel(name, info.sha or "main", files, main, tuple(others))


def _of_folder(name: HubName, files: dict[str, HubFile]) -> tuple[str, ...]:
    wanted = tuple(path for path in files if any(fnmatch(path, kind) for kind in _OF_FOLDER))
    if "config.json" not in wanted or not any(path.endswith(".safetensors") for path in wanted):
        raise NotInHub(
            f"{name.repository} holds no model: neither .gguf files nor config.json with "
            ".safetensors."
        )
    if name.quantisation is not None:
        raise NotInHub(
            f"{name.repository} has no GGUF files, so there is no {name.quantisation}. Say "
            f"{name.repository} to get its safetensors."
        )
    return wanted


def fetch(hub: Hub, model: HubModel, meter: Meter) -> Path:
    """Fetches what is not in the cache yet.

    Returns:
        The path of the GGUF file, or of the folder, in the cache.

    Raises:
        DownloadFailed: it did not work. Trying again goes on where this one has stopped.
    """
    repository = model.name.repository
    blobs = hub.cache / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
    with _explained(hub, model.name):
        blobs.mkdir(parents=True, exist_ok=True)
        _check_space(model, blobs)
        paths = {}
        for file in model.files:
            if file.sha256 is not None:
                _fetch_blob(hub, model, file, blobs / file.sha256, meter)
            # Finds the blob there, or fetches a small file, and says in the cache what it is.
            paths[file.path] = hf_hub_download(
                repository, file.path, endpoint=hub.endpoint, cache_dir=hub.cache
            )
    if model.main is not None:
        return Path(paths[model.main])
    return Path(paths["config.json"]).parent


def _check_space(model: HubModel, blobs: Path) -> None:
    missing = sum(
        file.num_bytes - _here(blobs, file) for file in model.files if file.sha256 is not None
    )
    free = shutil.disk_usage(blobs).free
    if missing and missing + _SPARE_BYTES > free:
        raise DownloadFailed(
            f"{model.name} takes {missing / 1e9:.1f} GB more, but where models are kept "
            f"({blobs.parents[1]}) only {free / 1e9:.1f} GB are free. Make room, or set HF_HOME to "
            "a folder on another disk."
        )


def _here(blobs: Path, file: HubFile) -> int:
    blob = blobs / str(file.sha256)
    for path in (blob, _partial(blob), blob):  # which another process may have renamed meanwhile
        with suppress(FileNotFoundError):
            return path.stat().st_size
    return 0


def _partial(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.rocmforge-partial")


def _fetch_blob(hub: Hub, model: HubModel, file: HubFile, blob: Path, meter: Meter) -> None:
    """Fetches a large file, under the name that the hub's cache gives it."""
    partial = _partial(blob)
    if blob.is_file():
        return
    with _alone_with(partial) as target:  # another process may fetch the same
        if blob.is_file():
            partial.unlink(missing_ok=True)
            return
        done = min(target.seek(0, 2), file.num_bytes)
        meter.begin(file, done)
        if done < file.num_bytes:
            _download(hub, model, file, target, done, meter)
        target.seek(0)
        found = hashlib.file_digest(target, "sha256").hexdigest()
        if found != file.sha256:
            partial.unlink()
            raise DownloadFailed(
                f"{model.name}: {file.path} came with other content than the hub promises (SHA-256 "
                f"{found[:12]}..., not {str(file.sha256)[:12]}...). It was thrown away; try again."
            )
        partial.rename(blob)


@contextmanager
def _alone_with(path: Path) -> Iterator[BufferedRandom]:
    """Opens a file once no other process has it so; makes it anew if one threw it away."""
    while True:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                yield file
                return


@contextmanager
def preview(hub: Hub, model: HubModel) -> Iterator[Path]:
    """Makes files that begin like the model's and end in holes: what planning it needs.

    Yields:
        The path of the GGUF file, or of the folder. It is gone at the end of the block.

    Raises:
        DownloadFailed: the hub does not give the beginnings.
    """
    with TemporaryDirectory(prefix="rocmforge-") as folder, _explained(hub, model.name):
        for file in model.files:
            path = Path(folder, file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_beginning(hub, model, file))
            os.truncate(path, file.num_bytes)
        yield Path(folder, model.main or "")


def _beginning(hub: Hub, model: HubModel, file: HubFile) -> bytes:
    """Fetches what stands before the weights; of files that are none, the whole."""
    count = min(file.num_bytes, HEADER_BYTES)
    if file.path.endswith(".safetensors"):
        size = int.from_bytes(_read(hub, model, file, 8), "little")
        count = min(count, 8 + size)
    return _read(hub, model, file, count)


def _read(hub: Hub, model: HubModel, file: HubFile, count: int) -> bytes:
    content = BytesIO()
    if count:
        headers = {**_headers(), "Range": f"bytes=0-{count - 1}"}
        url, silent = _url(hub, model, file), _bar(lambda _: None)
        http_get(url, content, headers=headers, expected_size=count, tqdm_class=silent)
    return content.getvalue()


def _url(hub: Hub, model: HubModel, file: HubFile) -> str:
    return hf_hub_url(
        model.name.repository, file.path, revision=model.revision, endpoint=hub.endpoint
    )


def _headers() -> dict[str, str]:
    token = get_token()
    return {"authorization": f"Bearer {token}"} if token else {}


def _download(
    hub: Hub, model: HubModel, file: HubFile, target: BinaryIO, done: int, meter: Meter
) -> None:
    try:
        http_get(
            _url(hub, model, file),
            target,
            resume_size=done,
            headers=_headers(),
            expected_size=file.num_bytes,
            tqdm_class=_bar(meter.advance),
        )
    except OSError as error:
        if error.errno == errno.ENOSPC:
            target.truncate(0)  # whatever else wants to write needs the room more
        raise


def _bar(advance: Callable[[int], None]) -> Any:
    """Returns what huggingface_hub takes for a class of progress bars."""

    class Bar:
        def __init__(self, **_: Any) -> None:
            """Takes what a bar would show."""

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            """Leaves the end to others."""

        def update(self, count: int) -> None:
            """Counts bytes; less than none if the hub began from the start again."""
            advance(count)

    return Bar


@contextmanager
def _explained(hub: Hub, name: HubName) -> Iterator[None]:
    """Says for people what keeps a model from coming."""
    where = hub.endpoint
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise DownloadFailed(
            f"{name} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it."
        ) from error
    except GatedRepoError as error:
        raise DownloadFailed(
            f"{name.repository} asks for consent to its terms. Agree at "
            f"{where}/{name.repository} and set HF_TOKEN to your token."
        ) from error
    except RepositoryNotFoundError as error:
        raise NotInHub(
            f"{where} has no model {name.repository}, or it is private. Check the name; for a "
            "private one set HF_TOKEN to a token that may read it."
        ) from error
    except HfHubHTTPError as error:
        raise DownloadFailed(f"{name}: {where} {_status(error)}") from error
    except HFValidationError as error:
        raise DownloadFailed(f"{name} is not the name of a model: {error}.") from error
    except DownloadFailed:
        raise
    except OSError as error:
        full = error.errno == errno.ENOSPC
        reason = "the disk is full" if full else error.strerror or str(error)
        raise DownloadFailed(f"{name} cannot be kept: {reason}.") from error
    except HTTPError as error:
        raise DownloadFailed(
            f"{where} cannot be reached ({error}). Is there a network? `rocmforge list` shows "
            "what is on this machine."
        ) from error


def _status(error: HfHubHTTPError) -> str:
    code = error.response.status_code
    after = error.response.headers.get("Retry-After")
    when = f" in {after} s" if after and after.isdigit() else " later"
    match code:
        case 401 | 403:
            return "refuses the token. Set HF_TOKEN to one that may read this model."
        case 429:
            return f"has had too many requests from here. Try again{when}."
        case _ if code >= 500:
            return f"does not work now (status {code}). Try again{when}."
    return f"refuses (status {code})."
