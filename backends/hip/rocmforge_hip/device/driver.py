"""The HIP runtime through hip-python: the only module that imports it.

Handles and addresses are plain integers here. Every status is checked before any output of a call
is looked at, since outputs of failed calls are garbage. HIP's current device is a property of the
thread: the thread that makes a `Driver` is the one that may use it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

from rocm.bindings import hip as _hip

from rocmforge.errors import BackendError, OutOfMemory
from rocmforge_hip.device.faults import fault_of

hip: Any = _hip  # its functions have no types

Dim3 = tuple[int, int, int]

_SUCCESS: Final = hip.hipError_t.hipSuccess
_NO_DEVICE: Final = hip.hipError_t.hipErrorNoDevice
_OUT_OF_MEMORY: Final = hip.hipError_t.hipErrorOutOfMemory
_NOT_READY: Final = hip.hipError_t.hipErrorNotReady
_TO_DEVICE: Final = hip.hipMemcpyKind.hipMemcpyHostToDevice
_TO_HOST: Final = hip.hipMemcpyKind.hipMemcpyDeviceToHost
# Other threads may go on calling HIP while this one captures.
_CAPTURE_MODE: Final = hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
_NON_BLOCKING: Final = 1  # hipStreamNonBlocking: no ordering with the default stream
_DISABLE_TIMING: Final = 2  # hipEventDisableTiming
_NON_COHERENT: Final = 0x80000000  # hipHostMallocNonCoherent: the device may cache it

# Entries of the `extra` array of a launch (hip_runtime_api.h).
_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2
_END: Final = 3


class HipUnavailable(BackendError):
    """There is no HIP library, or it cannot be opened."""


class HipError(BackendError):
    """A HIP call returned an error. `code` is its name, `context` what it was about."""

    def __init__(self, call: str, code: str, device: int | None, context: str = "") -> None:
        where = "" if device is None else f" on device {device}"
        about = f" ({context})" if context else ""
        super().__init__(call, f"{code}{where}{about}", fault_of(code))
        self.code = code
        self.device = device
        self.context = context


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """The facts of a device, as HIP states them."""

    index: int
    name: str
    target: str  # "gfx1100", without features
    wave_size: int
    compute_units: int
    memory_total: int  # bytes
    is_integrated: bool
    pci_id: str  # "0000:03:00.0"


def list_devices() -> tuple[DeviceProperties, ...]:
    """Returns all devices the library knows.

    Raises:
        HipUnavailable: The library cannot be opened.
        HipError: A call failed.
    """
    try:
        status, count = hip.hipGetDeviceCount()
    except RuntimeError as error:  # hip-python's answer to a failed dlopen
        reason = "libamdhip64.so was not found; install ROCm, or set ROCM_PATH to where it is"
        raise HipUnavailable("hipGetDeviceCount", reason) from error
    if status == _NO_DEVICE:
        return ()
    _check((status, count), "hipGetDeviceCount", None)
    return tuple(_properties(index) for index in range(count))


def _properties(index: int) -> DeviceProperties:
    found = _check(hip.hipGetDeviceProperties(index), "hipGetDeviceProperties", index)
    return DeviceProperties(
        index=index,
        name=_text(found.name),
        target=_text(found.gcnArchName).partition(":")[0],
        wave_size=found.warpSize,
        compute_units=found.multiProcessorCount,
        memory_total=found.totalGlobalMem,
        is_integrated=bool(found.integrated),
        pci_id=f"{found.pciDomainID:04x}:{found.pciBusID:02x}:{found.pciDeviceID:02x}.0",
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _check(result: tuple[Any, ...], call: str, device: int | None, context: str = "") -> Any:
    """Returns the output of a successful call, a tuple of several; None if there is none."""
    status, *values = result
    if status != _SUCCESS:
        raise HipError(call, status.name, device, context)
    return values[0] if len(values) == 1 else tuple(values) or None


class ArgumentBuffer:
    """The packed arguments of a launch, and HIP's description of where they lie.

    Reused from launch to launch: HIP copies the bytes before the call returns.
    """

    def __init__(self, size: int) -> None:
        self.data = ctypes.create_string_buffer(max(size, 1))
        self._size = ctypes.c_size_t(size)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(self.data),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            _END,
        )
        self.extra_address = ctypes.addressof(self._extra)


class Driver:
    """Calls for one device. Used by the thread that made it.

    `copies_to_device` and `copies_to_host` count copies, `allocations` device and pinned
    allocations, `waits` the times that the host waited for the device, `launches` the calls that
    started kernels, a graph being one.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.copies_to_device = 0
        self.copies_to_host = 0
        self.allocations = 0
        self.waits = 0
        self.launches = 0
        self._call(hip.hipSetDevice(device), "hipSetDevice")

    def _call(self, result: tuple[Any, ...], call: str, context: str = "") -> Any:
        return _check(result, call, self.device, context)

    def versions(self) -> tuple[int, int]:
        """Returns the versions of HIP's runtime and of the driver beneath it."""
        runtime = self._call(hip.hipRuntimeGetVersion(), "hipRuntimeGetVersion")
        return runtime, self._call(hip.hipDriverGetVersion(), "hipDriverGetVersion")

    def memory_info(self) -> tuple[int, int]:
        """Returns free and total bytes of the device."""
        free, total = self._call(hip.hipMemGetInfo(), "hipMemGetInfo")
        return free, total

    def allocate(self, nbytes: int, what: str) -> int:
        """Returns the address of new device memory; its content is undefined.

        Raises:
            OutOfMemory: There is not that much.
        """
        return self._allocated(hip.hipMalloc(nbytes), "hipMalloc", nbytes, what)

    def allocate_pinned(self, nbytes: int, what: str) -> int:
        """Returns the address of new host memory that the device can copy from and to.

        Raises:
            OutOfMemory: There is not that much.
        """
        return self._allocated(hip.hipHostMalloc(nbytes, 0), "hipHostMalloc", nbytes, what)

    def allocate_read_only(self, nbytes: int, what: str) -> int:
        """Returns the address of new host memory that kernels read, and may keep in their caches.

        Raises:
            OutOfMemory: There is not that much.
        """
        result = hip.hipHostMalloc(nbytes, _NON_COHERENT)
        return self._allocated(result, "hipHostMalloc", nbytes, what)

    def pin(self, address: int, nbytes: int, what: str) -> None:
        """Lets the device copy from and to host memory that is there already.

        Raises:
            OutOfMemory: So much cannot be pinned.
        """
        result = hip.hipHostRegister(address, nbytes, 0)
        if result[0] == _OUT_OF_MEMORY:
            raise OutOfMemory(f"hipHostRegister of {nbytes:,} bytes for {what}.")
        self._call(result, "hipHostRegister", f"{nbytes} bytes for {what}")

    def unpin(self, address: int) -> None:
        """Ends that; no copy may be running."""
        self._call(hip.hipHostUnregister(address), "hipHostUnregister")

    def _allocated(self, result: tuple[Any, ...], call: str, nbytes: int, what: str) -> int:
        assert nbytes > 0, what
        if result[0] == _OUT_OF_MEMORY:
            raise OutOfMemory(f"{call} of {nbytes:,} bytes for {what} on device {self.device}.")
        self.allocations += 1
        return int(self._call(result, call, f"{nbytes} bytes for {what}"))

    def free(self, address: int) -> None:
        """Gives device memory back, once the device has finished with it."""
        self._call(hip.hipFree(address), "hipFree")

    def free_pinned(self, address: int) -> None:
        """Gives pinned host memory back."""
        self._call(hip.hipHostFree(address), "hipHostFree")

    def copy_to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Starts a copy; pinned `source` must stay as it is until the stream has passed it."""
        self.copies_to_device += 1
        self._call(hip.hipMemcpyAsync(target, source, nbytes, _TO_DEVICE, stream), "hipMemcpyAsync")

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Starts a copy; pinned `target` is defined once the stream has passed it."""
        self.copies_to_host += 1
        self._call(hip.hipMemcpyAsync(target, source, nbytes, _TO_HOST, stream), "hipMemcpyAsync")

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Starts a copy between two places of the device that do not overlap."""
        kind = hip.hipMemcpyKind.hipMemcpyDeviceToDevice
        self._call(hip.hipMemcpyAsync(target, source, nbytes, kind, stream), "hipMemcpyAsync")

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        """Sets bytes, in the order of the stream."""
        self._call(hip.hipMemsetAsync(address, byte, nbytes, stream), "hipMemsetAsync")

    def create_stream(self) -> int:
        """Returns a stream that is not ordered with the default one."""
        return int(
            self._call(hip.hipStreamCreateWithFlags(_NON_BLOCKING), "hipStreamCreateWithFlags")
        )

    def destroy_stream(self, stream: int) -> None:
        """Destroys a stream that has nothing to do."""
        self._call(hip.hipStreamDestroy(stream), "hipStreamDestroy")

    def synchronize_stream(self, stream: int) -> None:
        """Waits until the stream has nothing to do."""
        self.waits += 1
        self._call(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")

    def create_event(self, *, timed: bool) -> int:
        """Returns an event; only timed ones can be given to `elapsed_ns`."""
        flags = 0 if timed else _DISABLE_TIMING
        return int(self._call(hip.hipEventCreateWithFlags(flags), "hipEventCreateWithFlags"))

    def destroy_event(self, event: int) -> None:
        """Destroys an event."""
        self._call(hip.hipEventDestroy(event), "hipEventDestroy")

    def record_event(self, event: int, stream: int) -> None:
        """Lets the event happen when the stream comes to this point."""
        self._call(hip.hipEventRecord(event, stream), "hipEventRecord")

    def wait_for_event(self, stream: int, event: int) -> None:
        """Lets what follows in the stream wait for an event that has been recorded."""
        self._call(hip.hipStreamWaitEvent(stream, event, 0), "hipStreamWaitEvent")

    def synchronize_event(self, event: int) -> None:
        """Waits until the event has happened; errors of the work before it show up here."""
        self.waits += 1
        self._call(hip.hipEventSynchronize(event), "hipEventSynchronize")

    def has_happened(self, event: int) -> bool:
        """Returns whether an event that was recorded has happened; does not wait."""
        result = hip.hipEventQuery(event)
        if result[0] == _NOT_READY:
            return False
        self._call(result, "hipEventQuery")
        return True

    def elapsed_ns(self, start: int, stop: int) -> int:
        """Returns the nanoseconds of device time between two events that have happened."""
        milliseconds = self._call(hip.hipEventElapsedTime(start, stop), "hipEventElapsedTime")
        return int(milliseconds * 1e6)

    def load_module(self, image: bytes, name: str) -> int:
        """Loads a code object; `name` is for errors."""
        return int(self._call(hip.hipModuleLoadData(image), "hipModuleLoadData", name))

    def unload_module(self, module: int) -> None:
        """Unloads a module none of whose kernels is running."""
        self._call(hip.hipModuleUnload(module), "hipModuleUnload")

    def function(self, module: int, kernel: str) -> int:
        """Returns a kernel of a module."""
        call = hip.hipModuleGetFunction(module, kernel.encode())
        return int(self._call(call, "hipModuleGetFunction", kernel))

    def blocks_at_once(self, function: int, threads: int, lds_bytes: int) -> int:
        """Returns how many blocks with so much dynamic LDS a compute unit runs at once."""
        call = hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, lds_bytes)
        return int(self._call(call, "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"))

    def launch(
        self,
        function: int,
        grid: Dim3,
        block: Dim3,
        lds_bytes: int,
        stream: int,
        arguments: ArgumentBuffer,
    ) -> None:
        """Starts a kernel; the caller describes it if this raises (see `library`)."""
        self.launches += 1
        result = hip.hipModuleLaunchKernel(
            function, *grid, *block, lds_bytes, stream, None, arguments.extra_address
        )
        if result[0] != _SUCCESS:
            self._call(result, "hipModuleLaunchKernel")

    def begin_capture(self, stream: int) -> None:
        """Records work given to the stream from now on instead of doing it."""
        self._call(hip.hipStreamBeginCapture(stream, _CAPTURE_MODE), "hipStreamBeginCapture")

    def end_capture(self, stream: int) -> int:
        """Returns an executable graph of what was recorded."""
        graph = self._call(hip.hipStreamEndCapture(stream), "hipStreamEndCapture")
        executable = self._call(hip.hipGraphInstantiate(graph, 0), "hipGraphInstantiate")
        self._call(hip.hipGraphDestroy(graph), "hipGraphDestroy")
        return int(executable[0])

    def launch_graph(self, graph: int, stream: int) -> None:
        """Starts a graph."""
        self.launches += 1
        self._call(hip.hipGraphLaunch(graph, stream), "hipGraphLaunch")

    def destroy_graph(self, graph: int) -> None:
        """Destroys a graph that is not running."""
        self._call(hip.hipGraphExecDestroy(graph), "hipGraphExecDestroy")
