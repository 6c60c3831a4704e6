"""The host platform's librccl.so: ranks in processes of their own, and the mistakes they make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kernels.build import NVIDIA_SOURCES
from kernels.builder import ROOT, build_library
from rocmforge_hip.ops.collective import new_group_id
from tests.support.launches.host_platform import LIBRARY, ROCM_PATH, HostPlatform
from tests.support.launches.kernels import PlatformOptions

TIMEOUT_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def platform(request: pytest.FixtureRequest) -> Iterator[None]:
    """Built and chosen, for the processes of the ranks too."""
    if request.config.getoption("--platform") != "host":
        pytest.skip("these tests are about the host platform")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HIP_PLATFORM", "host")
        HostPlatform.start(PlatformOptions(platform="host", wave=32, lane_order="forward"))
        yield


def run_ranks(
    libraries: Path = ROCM_PATH, patience_s: int = 60, **different: tuple[Any, Any]
) -> list[dict[str, Any]]:
    """What both ranks say; arguments are those that differ from a run without mistakes."""
    group, running = new_group_id().hex(), []
    environment = os.environ | {
        "RF_HOST_PATIENCE": str(patience_s),  # for ranks that do not come
        "LD_LIBRARY_PATH": str(libraries / "lib"),
    }
    with ExitStack() as stack:
        for rank in range(2):
            task: dict[str, Any] = {"group": group, "rank": rank, "device": rank, "counts": [5]}
            task |= {"gathers": True, "writes": True, "captures": False}
            task |= {"libraries": str(libraries)}
            task |= {name: values[rank] for name, values in different.items()}
            command = [sys.executable, "-m", "tests.platform.rank", json.dumps(task)]
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
            )
            running.append(stack.enter_context(process))
        return [json.loads(process.communicate(timeout=TIMEOUT_S)[0]) for process in running]


def findings(**different: tuple[Any, Any]) -> list[str]:
    """What the library told each rank, both of which got an error."""
    answers = run_ranks(ROCM_PATH, 60, **different)
    assert all(answer["error"] for answer in answers)
    return [answer["finding"] for answer in answers]


def test_both_ranks_get_the_sums_and_everything_that_is_gathered() -> None:
    for answer in run_ranks():
        assert answer == {"values": [3, 5, 7, 9, 11] * 2, "error": "", "finding": ""}


def test_nccl_is_called_through_the_library_for_nvidia(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libamdhip64.so", "libnccl.so.2"):
        (tmp_path / "lib" / name).symlink_to(LIBRARY)
    sources = sorted(NVIDIA_SOURCES.glob("rccl/*.c"))
    build_library(sources, (NVIDIA_SOURCES.parent,), tmp_path / "lib/librccl.so")
    for answer in run_ranks(tmp_path):
        assert answer == {"values": [3, 5, 7, 9, 11] * 2, "error": "", "finding": ""}


def test_arrays_may_be_larger_than_what_is_shared() -> None:
    counts = [150_000, 3]
    for answer in run_ranks(counts=(counts, counts)):
        assert answer == {"values": [6, 10, 14] * 2, "error": "", "finding": ""}


def test_a_captured_call_is_made_by_each_launch_and_keeps_the_group() -> None:
    for answer in run_ranks(captures=(True, True)):
        assert answer["values"] == [6, 10, 14, 18, 22] * 2
        assert "ncclCommDestroy" in answer["error"]
        assert "a stream or a graph still uses" in answer["finding"]


def test_ranks_that_do_different_things() -> None:
    first, second = findings(counts=([5], [4]))
    assert "rank 0: ncclAllReduce of 5, call 1, but rank 1: ncclAllReduce of 4" in first
    assert "rank 1: ncclAllReduce of 4, call 1, but rank 0: ncclAllReduce of 5" in second


def test_ranks_in_another_order() -> None:
    first, second = findings(counts=([5, 5], [5]))
    assert "ncclAllReduce of 5, call 2, but rank 1: ncclAllGather of 5" in first
    assert "ncclAllGather of 5, call 2, but rank 0: ncclAllReduce of 5" in second


def test_a_rank_that_does_not_come() -> None:
    def is_found(patience_s: int) -> bool:
        first, second = run_ranks(patience_s=patience_s, gathers=(True, False))
        waited = f"ncclAllGather of 5, call 2: rank 0 waited {patience_s} s for rank 1"
        return waited in first["finding"] and not second["finding"]

    # A busy machine may start one so late that the other does not wait for it at all.
    assert is_found(3) or is_found(20)


def test_a_rank_that_sends_what_was_never_written() -> None:
    first, second = run_ranks(counts=([5], [5]), writes=(True, False))
    assert "not all of which was written" in second["finding"]
    assert "another rank has left" in first["finding"]


def test_ranks_on_the_same_device() -> None:
    def is_found(patience_s: int) -> bool:
        answers = run_ranks(patience_s=patience_s, device=(1, 1))  # one waits in vain
        said = [answer["finding"] for answer in answers if answer["error"]]
        return len(said) == 2 and any("ranks 0 and 1 are both on device 1" in each for each in said)

    assert is_found(3) or is_found(20)
