"""Models come from a hub whole, in their own cache, or with a reason why not."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from huggingface_hub import constants, scan_cache_dir

from rocmforge.errors import DownloadFailed
from rocmforge.library.hub import Hub, HubFile, fetch, find_in_hub
from rocmforge.library.hub_names import HubName
from tests.support.processes.hub import COMMIT, FakeHub

WEIGHTS = bytes(range(256)) * 4000
MODEL = HubName("org/model-GGUF", "Q4_K_M")
REPOSITORIES = {
    "org/model-GGUF": {
        "README.md": b"text",
        "model-Q4_K_M.gguf": WEIGHTS,
        "model-Q8_0.gguf": WEIGHTS * 2,
        "mmproj-model-f16.gguf": b"tower",
    },
    "org/split": {f"big-Q8_0-{n:05}-of-00002.gguf": bytes([n]) * 1000 for n in (1, 2)},
    "org/lacking": {"big-Q8_0-00001-of-00002.gguf": b"x"},
    "org/folder": {
        "config.json": b"{}",
        "tokenizer.json": b"{ }",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"pickle",
        "additional_chat_templates/tools.jinja": b"t",
    },
    "org/odd": {"one-IQ3_XXS.gguf": b"1", "two-IQ2_M.gguf": b"2"},
    "org/none": {"README.md": b"text"},
}


class Counting:
    """Counts bytes, as a bar does."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.count = 0

    def begin(self, file: HubFile, done: int) -> None:
        self.begun.append((file.path, done))

    def advance(self, count: int) -> None:
        self.count += count


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between its tries
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 14)  # of ten megabytes
    return FakeHub(REPOSITORIES)


@pytest.fixture
def hub(fake: FakeHub, tmp_path: Path) -> Iterator[Hub]:
    with fake.serve() as address:
        yield Hub(address, tmp_path / "hub")


def pull(hub: Hub, name: HubName = MODEL, meter: Counting | None = None) -> Path:
    return fetch(hub, find_in_hub(hub, name), meter or Counting())


def unfinished(hub: Hub) -> list[Path]:
    return list(hub.cache.rglob("*.rocmforge-partial"))


def test_a_file_comes_whole_and_where_every_program_finds_it(hub: Hub) -> None:
    meter = Counting()
    path = pull(hub, meter=meter)
    assert path.read_bytes() == WEIGHTS
    assert path.name == "model-Q4_K_M.gguf"
    assert path.parent.name == COMMIT
    (repository,) = scan_cache_dir(hub.cache).repos
    assert repository.repo_id == MODEL.repository
    assert (meter.begun, meter.count) == ([(path.name, 0)], len(WEIGHTS))
    assert not unfinished(hub)


def test_what_is_there_is_not_fetched_again(hub: Hub, fake: FakeHub) -> None:
    pull(hub)
    before, meter = fake.sent_bytes, Counting()
    pull(hub, meter=meter)
    assert fake.sent_bytes - before < len(WEIGHTS) // 10
    assert not meter.begun


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (HubName("org/model-GGUF"), "model-Q4_K_M.gguf"),
        (HubName("org/model-GGUF", "q8_0"), "model-Q8_0.gguf"),
        (HubName("org/split"), "big-Q8_0-00001-of-00002.gguf"),
        (HubName("org/odd", "iq2_m"), "two-IQ2_M.gguf"),
    ],
)
def test_the_quantisation_that_is_named_or_the_usual_one_comes(
    hub: Hub, name: HubName, expected: str
) -> None:
    assert pull(hub, name).name == expected


def test_all_parts_of_a_split_model_come(hub: Hub) -> None:
    path = pull(hub, HubName("org/split"))
    assert [part.read_bytes()[:1] for part in sorted(path.parent.iterdir())] == [b"\1", b"\2"]


def test_of_a_folder_comes_what_holds_no_code(hub: Hub) -> None:
    path = pull(hub, HubName("org/folder"))
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    assert found == [
        *("additional_chat_templates/tools.jinja", "config.json"),
        *("model.safetensors", "tokenizer.json"),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (HubName("org/odd"), r"org/odd has no usual quantisation. Say one of: org/odd:IQ2_M, "),
        (HubName("org/model-GGUF", "Q2_K"), r"has no Q2_K. Say one of: .*:Q4_K_M, .*:Q8_0"),
        (HubName("org/folder", "Q8_0"), r"has no GGUF files, so there is no Q8_0"),
        (HubName("org/none"), r"org/none holds no model"),
        (HubName("org/lacking"), r"lacks big-Q8_0-00002-of-00002.gguf"),
        (HubName("org/private"), r"has no model org/private, or it is private.*HF_TOKEN"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_what_is(
    hub: Hub, name: HubName, message: str
) -> None:
    with pytest.raises(DownloadFailed, match=message):
        pull(hub, name)
    assert not list(hub.cache.rglob("*.gguf"))


def test_a_download_goes_on_after_the_connection_was_lost(hub: Hub, fake: FakeHub) -> None:
    fake.cut_after = [300_000, 200_000, 100_000]
    assert pull(hub).read_bytes() == WEIGHTS
    assert fake.sent_bytes < len(WEIGHTS) + 60_000  # what had come of three chunks comes again


def test_a_pull_goes_on_where_three_before_it_were_stopped(hub: Hub, fake: FakeHub) -> None:
    class Stopped(Counting):
        def advance(self, count: int) -> None:
            super().advance(count)
            if self.count > 200_000:
                raise KeyboardInterrupt

    begun = []
    for _ in range(3):
        meter = Stopped()
        with pytest.raises(KeyboardInterrupt):
            pull(hub, meter=meter)
        begun += [done for _, done in meter.begun]
    before, whole = fake.sent_bytes, Counting()
    assert pull(hub, meter=whole).read_bytes() == WEIGHTS
    begun += [done for _, done in whole.begun]
    assert begun == [0, 196_608, 393_216, 589_824]
    assert fake.sent_bytes - before < len(WEIGHTS) - begun[-1] + 10_000
    assert not unfinished(hub)


def test_other_content_than_was_promised_is_thrown_away(hub: Hub, fake: FakeHub) -> None:
    fake.changed["model-Q4_K_M.gguf"] = WEIGHTS[:-1] + b"?"
    with pytest.raises(DownloadFailed, match=r"came with other content than the hub promises"):
        pull(hub)
    assert not unfinished(hub)
    assert not [blob for blob in hub.cache.rglob("blobs/*") if blob.stat().st_size == len(WEIGHTS)]
    del fake.changed["model-Q4_K_M.gguf"]
    assert pull(hub).read_bytes() == WEIGHTS


def test_two_at_once_fetch_a_file_once(hub: Hub, fake: FakeHub) -> None:
    threads = [threading.Thread(target=pull, args=(hub,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pull(hub).read_bytes() == WEIGHTS
    assert fake.sent_bytes < len(WEIGHTS) + 10_000
    assert not unfinished(hub)


class _Meanwhile(Counting):
    """Does something when a download begins."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def begin(self, file: HubFile, done: int) -> None:
        super().begin(file, done)
        self._act()


def test_who_waited_for_other_content_than_promised_fetches_it_anew(
    hub: Hub, fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.changed["model-Q4_K_M.gguf"] = WEIGHTS[:-1] + b"?"
    waits, paths, lock = threading.Event(), list[Path](), fcntl.flock
    second = threading.Thread(
        target=lambda: paths.append(pull(hub, meter=_Meanwhile(fake.changed.clear)))
    )

    def locking(file: BinaryIO, operation: int) -> None:
        if threading.current_thread() is second:
            waits.set()
        lock(file, operation)

    def begin_second() -> None:
        second.start()
        assert waits.wait(30)

    monkeypatch.setattr(fcntl, "flock", locking)
    with pytest.raises(DownloadFailed, match="came with other content"):
        pull(hub, meter=_Meanwhile(begin_second))
    second.join()
    assert [path.read_bytes() for path in paths] == [WEIGHTS]
    assert not unfinished(hub)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_file_that_another_process_completes_meanwhile_is_there(
    hub: Hub, fake: FakeHub, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """Its name changes right after somebody has looked for the old one, or right before."""
    blob = pull(hub).resolve()
    partial = blob.rename(f"{blob}.rocmforge-partial")
    fake.sent_bytes = 0
    look = Path.stat

    def looking(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path != partial or blob.exists():
            return look(path, follow_symlinks=follow_symlinks)
        found = look(path) if is_seen else None
        partial.rename(blob)
        return found or look(path)

    monkeypatch.setattr(Path, "stat", looking)
    assert pull(hub).read_bytes() == WEIGHTS
    assert fake.sent_bytes < len(WEIGHTS)


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (429, {"Retry-After": "40"}, r"too many requests from here. Try again in 40 s"),
        (503, {}, r"does not work now \(status 503\). Try again later"),
        (401, {}, r"is private|refuses the token"),
        (403, {"X-Error-Code": "GatedRepo"}, r"asks for consent to its terms. Agree at http"),
    ],
)
def test_a_hub_that_refuses_is_explained(
    hub: Hub, fake: FakeHub, status: int, headers: dict[str, str], message: str
) -> None:
    fake.status = (status, headers)
    with pytest.raises(DownloadFailed, match=message):
        pull(hub)


def test_no_network_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"cannot be reached .*Is there a network"):
        find_in_hub(Hub("http://127.0.0.1:9", tmp_path), MODEL)


def test_offline_nothing_is_asked(hub: Hub, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadFailed, match=r"HF_HUB_OFFLINE forbids"):
        find_in_hub(hub, MODEL)
    assert not fake.requests


def test_a_model_that_the_disk_cannot_hold_is_refused_before(
    hub: Hub, fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(hub.cache.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DownloadFailed, match=r"takes 0.0 GB more.*Make room, or set HF_HOME"):
        pull(hub)
    assert fake.sent_bytes < 10_000


def test_a_disk_that_gets_full_meanwhile_keeps_nothing(hub: Hub) -> None:
    class Full(Counting):
        def advance(self, count: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadFailed, match="the disk is full"):
        pull(hub, meter=Full())
    assert [path.stat().st_size for path in unfinished(hub)] == [0]


def test_the_token_is_sent_and_only_where_there_is_one(
    hub: Hub, fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.gated = {MODEL.repository}
    with pytest.raises(DownloadFailed, match="asks for consent"):
        pull(hub)
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert hashlib.sha256(pull(hub).read_bytes()).digest() == hashlib.sha256(WEIGHTS).digest()
    assert fake.tokens == {None, "Bearer secret"}
