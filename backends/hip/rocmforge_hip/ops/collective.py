"""Operations that all ranks do together, through RCCL: the only module that imports its bindings.

hip-python opens `librccl.so` at the first call, where it finds HIP's library too (see `platform`).
All calls are in the order of the stream and may be captured in a graph. Every rank must make the
same calls in the same order: https://rocm.docs.amd.com/projects/rccl.
"""

from __future__ import annotations

import ctypes
from threading import Lock
from typing import Any, Final

from rocmforge.errors import BackendError, ConfigurationError
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.platform import NCCL_VARIABLE
from rocmforge_hip.weights.shard import Shard

_ID_BYTES: Final = 128  # NCCL_UNIQUE_ID_BYTES


class CollectiveError(BackendError):
    """A call of RCCL returned an error. `code` is its name."""

    def __init__(self, call: str, code: str, shard: Shard) -> None:
        super().__init__(call, f"{code} on rank {shard.rank} of {shard.size}")
        self.code = code
        self.shard = shard


class CommunicatorAborted(BackendError):
    """The ranks do not belong together any more, as one of them has failed."""


def new_group_id() -> bytes:
    """Makes the id by which the ranks of a group find each other; one of them calls this.

    Raises:
        ConfigurationError: RCCL or its bindings cannot be used.
    """
    rccl = _bindings()
    try:
        status, group_id = rccl.ncclGetUniqueId()
        problem = "" if status == rccl.ncclResult_t.ncclSuccess else status.name
    except RuntimeError:  # hip-python's answer to a failed dlopen
        problem = "librccl.so was not found"
    if problem:
        raise ConfigurationError(
            f"Models on several devices need RCCL, but it cannot be used: {problem}. On NVIDIA's "
            f"platform, {NCCL_VARIABLE} names the file of NCCL that stands for it."
        )
    return ctypes.string_at(int(group_id), _ID_BYTES)


def _bindings() -> Any:
    try:
        from rocm.bindings import rccl  # type: ignore[attr-defined, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            "Models on several devices need the bindings of RCCL: pip install 'rocmforge[multi]'."
        ) from error
    return rccl


class Communicator:
    """One rank's membership of a group. Made by all ranks at once, each with its device current."""

    def __init__(self, group_id: bytes, shard: Shard, stream: int) -> None:
        self.shard = shard
        self._rccl = _bindings()
        self._success = self._rccl.ncclResult_t.ncclSuccess
        self._float32 = self._rccl.ncclDataType_t.ncclFloat32
        self._sum = self._rccl.ncclRedOp_t.ncclSum
        self._stream = stream
        self._lock = Lock()  # only `abort` comes from another thread
        status, self._handle = self._rccl.ncclCommInitRank(
            shard.size, bytearray(group_id), shard.rank
        )
        self._check(status, "ncclCommInitRank")

    def all_reduce(self, array: DeviceArray) -> None:
        """Adds up the values of all ranks, in place; equal to the last bit on all of them."""
        assert array.dtype == "f4"
        count = array.nbytes // 4
        with self._lock:
            self._check_joined("ncclAllReduce")
            (status,) = self._rccl.ncclAllReduce(
                array.address,
                array.address,
                count,
                self._float32,
                self._sum,
                self._handle,
                self._stream,
            )
        self._check(status, "ncclAllReduce")

    def all_gather(self, part: DeviceArray, whole: DeviceArray) -> None:
        """Gathers the parts of all ranks, one after the other; `whole` does not overlap `part`."""
        assert part.dtype == whole.dtype == "f4"
        assert whole.nbytes == part.nbytes * self.shard.size
        count = part.nbytes // 4
        with self._lock:
            self._check_joined("ncclAllGather")
            (status,) = self._rccl.ncclAllGather(
                part.address, whole.address, count, self._float32, self._handle, self._stream
            )
        self._check(status, "ncclAllGather")

    def abort(self) -> None:
        """Ends what waits for other ranks, also on the device; what was being computed is lost.

        From any thread, any number of times. The first call may take long: NVIDIA's library, for
        one, did not return while captured steps existed. Others return at once, so that whoever
        owns those can destroy them.
        """
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._rccl.ncclCommAbort(handle)

    def close(self) -> None:
        """Leaves the group, as all ranks do at the same time; after `abort` nothing is left to do.

        Nothing that uses it may be running, and no graph that does may exist.
        """
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            (status,) = self._rccl.ncclCommDestroy(handle)
            self._check(status, "ncclCommDestroy")

    def _check_joined(self, call: str) -> None:
        if self._handle is None:
            raise CommunicatorAborted(call, "another rank has failed")

    def _check(self, status: Any, call: str) -> None:
        if status != self._success:
            raise CollectiveError(call, status.name, self.shard)
