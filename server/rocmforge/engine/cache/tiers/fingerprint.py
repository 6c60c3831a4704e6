"""The fingerprint of a model, which tells it from every other whose blocks are kept.

Reading all weights at each start would take as long as loading them. What decides is: the files'
size, time of change and description, and samples of the bytes of every tensor. Files that differ
in weights alone, of one size and one time, differ in those samples, as whatever changes a matrix
on purpose changes all of it. What else keys and values depend on is covered too: adapters, a tower,
the backend, the device's kind, the stored type of the cache, and our version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

import numpy as np

from rocmforge import __version__
from rocmforge.backend.arrays import UInt8Array
from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.checkpoint.tensor import Stack, Tensor
from rocmforge.models.checkpoint import Checkpoint

_FORMAT: Final = 2  # of the bytes of a block, as backends lay them out
_ROW_BYTES: Final = 1024  # of each row that is looked at
_ROWS: Final = 3  # of a tensor
_PARTS: Final = 4  # of a stack


def fingerprint_of(checkpoint: Checkpoint, info: RunnerInfo, options: LoadOptions) -> bytes:
    """Returns the fingerprint of a loaded model, 32 bytes; reads some 3 KiB of each tensor."""
    identity = checkpoint.identify()
    rope = checkpoint.config.rope
    scaling = None if rope is None else rope.scaling
    facts = (
        *(_FORMAT, __version__, identity.size, identity.modified_ns, identity.digest),
        *(info.backend, info.device.target, info.kv_dtype, info.block_size, info.block_bytes),
        *(info.slot_bytes, options.activation_bits, options.tensor_parallel),
        # Which factors LongRoPE takes depends on the context that is served.
        scaling is not None and info.max_context > scaling.original_context,
    )
    digest = blake2b(repr(facts).encode(), digest_size=32, person=b"kv cache model")
    for name, tensor in checkpoint.weights.items():
        _add(digest, name, _samples(tensor))
    for adapter in checkpoint.adapters:
        for place, change in adapter.changes.items():
            _add(digest, f"{adapter.name} {place} {change.scale}", _samples(change.a))
            _add(digest, "b", _samples(change.b))
    if checkpoint.tower is not None:  # blocks know images by their pixels
        digest.update(repr((checkpoint.vision, checkpoint.tower.config)).encode())
        for name, tensor in checkpoint.tower.weights.items():
            _add(digest, name, _samples(tensor))
    return digest.digest()


def _add(digest: blake2b, name: str, samples: Iterable[UInt8Array]) -> None:
    digest.update(repr(name).encode())
    for sample in samples:
        digest.update(repr(sample.shape).encode() + sample.tobytes())


def _samples(tensor: Tensor) -> Iterator[UInt8Array]:
    """Yields the beginnings of some rows, among them the first and the last."""
    if isinstance(tensor, Stack):
        for part in _some(len(tensor.parts), _PARTS):
            yield from _samples(tensor.parts[part])
        return
    data, shape = tensor.data, tensor.data.shape[:-1]
    for row in _some(int(np.prod(shape)), _ROWS):
        yield data[np.unravel_index(row, shape)][:_ROW_BYTES] if shape else data[:_ROW_BYTES]


def _some(count: int, most: int) -> list[int]:
    """Returns up to `most` different numbers below `count`, evenly from the first to the last."""
    return sorted({round(each) for each in np.linspace(0, count - 1, most)})
