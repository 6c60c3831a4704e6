"""Runs the logits processors of a step, between the mask and the draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from rocmforge.backend.step import ProcessorBatch
from rocmforge.logits.host import apply_processors
from rocmforge.logits.processor import LogitsProcessor
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, PinnedBuffer, spec
from rocmforge_hip.jit.source import ARGUMENTS, MAX_SCRATCH_ROWS
from rocmforge_hip.jit.toolchain import THREADS
from rocmforge_hip.jit.worker import Made
from rocmforge_hip.kernels.sampling import rf_logits_processor
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.step.processor_arrays import launches

_SCRATCH_BYTES: Final = 64 << 20
_POINTER_BYTES: Final = 8


class Processors(Protocol):
    """A way to run logits processors: on the device or on the host."""

    def apply(self, step: DeviceStep, scores: DeviceArray, sampled: DeviceArray) -> None:
        """Changes the scores [L, V] of the rows that have processors.

        Args:
            step: with a `ProcessorBatch`.
            scores: a copy of the logits; what is drawn from.
            sampled: tokens of the step before, by row.
        """
        ...

    def host_rows(self, batch: ProcessorBatch) -> int:
        """Returns how many rows of these go to the host."""
        ...


class CompiledProcessors:
    """Launches kernels: the first processors of all rows, then the second ones, and so on."""

    def __init__(
        self, library: KernelLibrary, made: Mapping[str, Made], scratch: DeviceArray
    ) -> None:
        entry = _manifest_entry()
        self._kernels = {
            name: library.add(
                f"logits processor {name}", each.symbol, each.code, entry, rf_logits_processor
            )
            for name, each in made.items()
        }
        self._scratch = scratch

    def apply(self, step: DeviceStep, scores: DeviceArray, sampled: DeviceArray) -> None:
        assert step.host is not None
        batch = step.host.sampling.processors
        assert batch is not None
        inputs, vocab = step.inputs, scores.shape[1]
        arrays = inputs.processors
        assert arrays is not None
        at_once = self._scratch.shape[0]
        first = 0
        for name, uses in launches(batch):
            for start in range(0, len(uses), at_once):
                count = min(at_once, len(uses) - start)
                self._kernels[name].launch(
                    (count, 1, 1),
                    THREADS,
                    scores=scores,
                    order=arrays.order,
                    rows=arrays.rows,
                    numbers=arrays.numbers,
                    token_sets=arrays.token_sets,
                    windows=arrays.windows,
                    uniforms=arrays.uniforms,
                    positions=inputs.draw_position,
                    history_offsets=arrays.history_offsets,
                    histories=arrays.histories,
                    prompt_lengths=arrays.prompt_lengths,
                    row_source=inputs.row_source,
                    sampled=sampled,
                    scratch=self._scratch,
                    scratch_bits=self._scratch,
                    vocab=vocab,
                    first=first + start,
                    num_numbers=batch.numbers.shape[1],
                    num_words=batch.token_sets.shape[1],
                )
            first += len(uses)

    def host_rows(self, batch: ProcessorBatch) -> int:
        return 0


class HostProcessors:
    """Brings the rows that have processors to the host, one by one, and back."""

    def __init__(
        self,
        driver: Driver,
        stream: int,
        processors: Mapping[str, LogitsProcessor],
        staging: PinnedBuffer,
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._processors = processors
        self._staging = staging

    def apply(self, step: DeviceStep, scores: DeviceArray, sampled: DeviceArray) -> None:
        assert step.host is not None
        sampling = step.host.sampling
        batch = sampling.processors
        assert batch is not None
        sources = step.host.token_source[step.host.logit_rows]
        vocab = scores.shape[1]
        logits = self._staging.bytes[: 4 * vocab].view(np.float32)
        token = self._staging.bytes[4 * vocab :].view(np.int32)
        for row in np.unique(batch.rows).tolist():
            address = scores.address + row * logits.nbytes
            self._download(logits, address)
            if sources[row] >= 0:
                self._download(token, sampled.address + int(sources[row]) * token.nbytes)
            self._driver.synchronize_stream(self._stream)
            position = int(sampling.position[row])
            apply_processors(self._processors, batch, row, logits, int(token[0]), position)
            self._driver.copy_to_device(address, self._staging.address, logits.nbytes, self._stream)
            self._driver.synchronize_stream(self._stream)  # the next row needs the buffer

    def host_rows(self, batch: ProcessorBatch) -> int:
        return len(np.unique(batch.rows))

    def _download(self, target: npt.NDArray[Any], address: int) -> None:
        self._driver.copy_to_host(target.ctypes.data, address, target.nbytes, self._stream)


def staging_bytes(vocab: int) -> int:
    """Returns the bytes of the pinned buffer of `HostProcessors`: a row and a token."""
    return 4 * vocab + 4


def scratch_spec(vocab: int, sequences: int) -> ArraySpec:
    """Returns the kernels' scratch memory, [blocks of a launch, MAX_SCRATCH_ROWS, V]."""
    blocks = _SCRATCH_BYTES // (4 * MAX_SCRATCH_ROWS * vocab)
    return spec((max(1, min(blocks, sequences)), MAX_SCRATCH_ROWS, vocab), "f4")


def _manifest_entry() -> dict[str, Any]:
    """Returns what the library must know of a kernel: pointers first, then integers."""
    arguments, offset = [], 0
    for name, kind in ARGUMENTS:
        is_pointer = kind.endswith("*")
        arguments.append(
            {"name": name, "type": "pointer" if is_pointer else kind, "offset": offset}
        )
        offset += _POINTER_BYTES if is_pointer else 4
    return {"args": arguments, "max_threads": THREADS}
