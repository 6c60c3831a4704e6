"""A step as the operations see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import StepInput
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceArray, PinnedBuffer
from rocmforge_hip.ops.step.arrays import StepArrays
from rocmforge_hip.ops.step.needs import SamplingNeeds
from rocmforge_hip.ops.step.shape import StepShape
from rocmforge_hip.ops.step.variants import PLAIN, StepVariant


@dataclass(frozen=True, slots=True, eq=False)
class StagedRows:
    """Rows in pinned memory: embeddings instead of the table's, or patches of images."""

    driver: Driver
    stream: int
    address: int  # [parts, E, features], of the type of what they are copied to
    tokens: Int32Array  # [E], of the step, in ascending order
    parts: int = 1

    def copy_to(self, x: DeviceArray) -> None:
        """Copies the rows of the first part over those of their tokens in x, [T, features]."""
        row_bytes = x.shape[1] * x.dtype.itemsize
        for first, end, token in self.runs():
            target = x.address + token * row_bytes
            source = self.address + first * row_bytes
            self.driver.copy_to_device(target, source, (end - first) * row_bytes, self.stream)

    def copy_part(self, part: int, x: DeviceArray) -> None:
        """Copies the rows of a part to x, [E, features]."""
        nbytes = len(self.tokens) * x.shape[1] * x.dtype.itemsize
        self.driver.copy_to_device(x.address, self.address + part * nbytes, nbytes, self.stream)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yields rows of tokens that follow each other: the first, that behind, the token."""
        gaps = np.flatnonzero(np.diff(self.tokens) != 1) + 1
        for first, end in pairwise([0, *gaps.tolist(), len(self.tokens)]):
            yield first, end, int(self.tokens[first])


@dataclass(frozen=True, slots=True)
class StagedInputs:
    """Inputs of a step in pinned memory."""

    host: PinnedBuffer
    inputs: DeviceArray  # where they are wanted
    nbytes: int

    @property
    def array(self) -> DeviceArray:
        """The memory, which kernels can read."""
        return DeviceArray(self.host.address, (self.nbytes,), self.inputs.dtype)

    def there(self, array: DeviceArray) -> DeviceArray:
        """Returns one of the wanted arrays as it is in pinned memory."""
        address = self.host.address + array.address - self.inputs.address
        return DeviceArray(address, array.shape, array.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """A step as the operations see it: its sizes, and its arrays on the device."""

    shape: StepShape
    inputs: StepArrays[DeviceArray]
    needs: SamplingNeeds
    variant: StepVariant = PLAIN
    host: StepInput | None = None  # for logits processors, which need no other operation
    embeddings: StagedRows | None = None
    patches: StagedRows | None = None  # of images, for a tower

    @property
    def defers(self) -> bool:
        """Whether norms and sums are left for later, as no adapter changes what they are of."""
        return self.variant.defers_norms and not self.shape.lora_tiles

    @property
    def rope_rows(self) -> DeviceArray:
        """The row of the table of rotations for each token, int32 [T]."""
        return self.inputs.rope_rows if self.shape.has_axes else self.inputs.positions
