"""Speed of recurrent layers' kernels: `python -m benchmarks.kernels.recurrent --platform nvidia`.

Decodes are shown in GB/s of the states, read and written once each, and as a share of what a copy
reaches; prefills in time a layer takes for all tokens. States rotate through more memory than
caches hold. `at once` is the launch that takes the place of the others in decodes, but for the norm
of Mamba-2. `chunks, narrow` takes the place of `chunks` where blocks are few. A layer's time is
that of all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.kernels.timing import Stopwatch, copy_bandwidth, open_gpu
from tests.support.launches.kernels import Device, DeviceArray

_CACHE_BYTES = 256 << 20
_CHUNK = 64  # tokens
_WIDTH = 4
_EPS = 1e-6

Slots = tuple[DeviceArray, DeviceArray]
"""Of the states before the first tokens, and of those after each."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A layer of Gated DeltaNet."""

    key_heads: int
    value_heads: int
    dim: int = 128

    @property
    def state(self) -> int:
        """Elements of a state."""
        return self.value_heads * self.dim * self.dim

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return (2 * self.key_heads + self.value_heads) * self.dim

    @property
    def heads(self) -> int:
        """With a rate of decay."""
        return self.value_heads

    @property
    def inner(self) -> int:
        """Features of the result."""
        return self.value_heads * self.dim

    @property
    def norm(self) -> tuple[int, int]:
        """Groups of the norm, and elements of one."""
        return self.value_heads, self.dim


@dataclass(frozen=True, slots=True)
class Mamba:
    """A Mamba-2 layer."""

    heads: int
    groups: int
    head_dim: int = 64
    state_size: int = 128

    @property
    def state(self) -> int:
        """Elements of a state."""
        return self.heads * self.head_dim * self.state_size

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def inner(self) -> int:
        """Features of the result."""
        return self.heads * self.head_dim

    @property
    def norm(self) -> tuple[int, int]:
        """Groups of the norm, and elements of one."""
        return self.groups, self.inner // self.groups


SHAPES: dict[str, Delta | Mamba] = {
    "qwen3.5-35b-a3b": Delta(16, 32),
    "qwen3.5-27b": Delta(16, 48),
    "nemotron-3-nano": Mamba(64, 8),
    "granite-4-h-small": Mamba(128, 1),
}


class Bench:
    """Measures one shape."""

    def __init__(self, watch: Stopwatch, shape: Delta | Mamba, bandwidth: float) -> None:
        self.watch, self.shape, self.bandwidth = watch, shape, bandwidth
        self.device: Device = watch.device
        random = np.random.default_rng(0)
        self.decay = self._upload(-np.exp(random.uniform(-5, 0.5, shape.heads)))
        self.vector = self._upload(random.standard_normal(shape.heads))
        self.weight = self._upload(random.standard_normal((shape.channels, _WIDTH)))
        self.norm_weight = self._upload(random.standard_normal(shape.inner))

    def _upload(self, values: npt.NDArray[np.float64]) -> DeviceArray:
        return self.device.upload(values.astype(np.float32))

    def run(self, sequences: int, tokens: int) -> None:
        """Prints what so many sequences take, each with so many new tokens."""
        shape, device = self.shape, self.device
        rows = sequences * tokens
        random = np.random.default_rng(1)
        x = self._upload(random.standard_normal((rows, shape.channels)))
        gates = self._upload(random.standard_normal((rows, shape.heads)))
        convolved = device.empty((rows, shape.channels), np.float32)
        out = device.empty((rows, shape.inner), np.float32)
        z = self._upload(random.standard_normal((rows, shape.inner)))
        half = device.empty((rows, shape.inner), np.float16)
        copies = max(1, -(-_CACHE_BYTES // (4 * shape.state * sequences)))
        states = device.upload(np.zeros((copies * sequences, shape.state), np.float32))
        kept = device.upload(np.zeros((copies * sequences, _WIDTH - 1, shape.channels), np.float32))
        step = (
            device.upload(np.arange(sequences, dtype=np.int32)),
            device.upload(np.arange(0, rows + 1, tokens, dtype=np.int32)),
            device.upload(np.full(sequences, tokens + 1, np.int32)),
        )
        slots = []
        for i in range(copies):
            own = np.arange(i * sequences, (i + 1) * sequences, dtype=np.int32)
            writes = np.full((sequences, tokens), -1, np.int32)
            writes[:, -1] = own
            slots.append((device.upload(own), device.upload(writes)))

        def convolve(own: Slots) -> None:
            device.enqueue(
                "rf_short_conv",
                *(x, None, None, self.weight, None, *step, *own, kept, convolved),
                *(None, None, None, 0, shape.channels, shape.channels, _WIDTH, 1),
                grid=(-(-shape.channels // 256), -(-tokens // 8), sequences),
                block=64,
                stream=self.watch.stream,
            )

        def recur(own: Slots) -> None:
            if isinstance(shape, Delta):
                device.enqueue(
                    "rf_gated_delta",
                    *(convolved, gates, gates, self.decay, self.vector, *step, *own, states, out),
                    *(shape.channels, shape.heads, shape.heads, shape.key_heads),
                    *(shape.value_heads, shape.dim, shape.dim, 1, _EPS),
                    grid=(shape.dim // 32, shape.value_heads, sequences),
                    block=128,
                    stream=self.watch.stream,
                )
            else:
                device.enqueue(
                    "rf_mamba",
                    *(convolved, gates, self.decay, self.vector, self.vector, *step, *own),
                    *(states, out, shape.channels, shape.heads, shape.heads, shape.head_dim),
                    *(shape.groups, shape.state_size),
                    grid=(shape.head_dim // 32, shape.heads, sequences),
                    block=128,
                    stream=self.watch.stream,
                )

        chunks = rows // _CHUNK + sequences
        scratch: list[DeviceArray] = []
        if isinstance(shape, Delta) and tokens > 1:
            of_keys, of_values = (chunks * n * _CHUNK for n in (shape.key_heads, shape.heads))
            scratch = [
                *(device.empty(of_keys * shape.dim, np.float16) for _ in range(3)),
                *(device.empty(of_values * _CHUNK, np.float16) for _ in range(2)),
                device.empty(2 * of_values, np.float32),
            ]

        elif isinstance(shape, Mamba) and tokens > 1:
            of_groups, of_heads = (chunks * n * _CHUNK for n in (shape.groups, shape.heads))
            scratch = [
                *(device.empty(of_groups * shape.state_size, np.float16) for _ in range(2)),
                device.empty(of_heads * _CHUNK, np.float16),
                device.empty(2 * of_heads, np.float32),
            ]

        def solve(own: Slots) -> None:
            assert isinstance(shape, Delta)
            device.enqueue(
                "rf_gated_delta_solve",
                *(convolved, gates, gates, self.decay, self.vector, *step, *own, *scratch),
                *(shape.channels, shape.heads, shape.heads, shape.key_heads, shape.value_heads),
                *(1, _EPS),
                grid=(shape.value_heads, -(-tokens // _CHUNK), sequences),
                block=4 * device.wave,
                stream=self.watch.stream,
            )

        def walk(kernel: str, columns: int, own: Slots) -> None:
            assert isinstance(shape, Delta)
            device.enqueue(
                kernel,
                *(convolved, *step, *own, *scratch, states, out),
                *(shape.channels, shape.key_heads, shape.value_heads, 1),
                grid=(128 // columns, shape.value_heads, sequences),
                block=4 * device.wave,
                stream=self.watch.stream,
            )

        def mamba_scores(own: Slots) -> None:
            assert isinstance(shape, Mamba)
            device.enqueue(
                "rf_mamba_scores",
                *(convolved, gates, self.decay, self.vector, *step, *own, *scratch),
                *(shape.channels, shape.heads, shape.heads, shape.head_dim, shape.groups),
                grid=(shape.heads, -(-tokens // _CHUNK), sequences),
                block=4 * device.wave,
                stream=self.watch.stream,
            )

        def walk_mamba(kernel: str, rows_of_block: int, own: Slots) -> None:
            assert isinstance(shape, Mamba)
            device.enqueue(
                kernel,
                *(convolved, self.vector, *step, *own, *scratch, states, out),
                *(shape.channels, shape.heads, shape.head_dim, shape.groups),
                grid=(shape.head_dim // rows_of_block, shape.heads, sequences),
                block=4 * device.wave,
                stream=self.watch.stream,
            )

        groups, dim = shape.norm
        per_thread = 4 if dim <= 1024 else 16
        of_block = min(8, groups) if dim <= 4 * device.wave else 1

        def norm(_: Slots) -> None:
            device.enqueue(
                "rf_gated_norm",
                *(out, z, self.norm_weight, None, half, None, None, 0, shape.inner, groups, dim),
                *(0, int(isinstance(shape, Mamba)), _EPS),
                grid=(rows, -(-groups // of_block)),
                block=-(-dim // (per_thread * device.wave)) * device.wave * of_block,
                stream=self.watch.stream,
            )

        kinds = shape.key_heads if isinstance(shape, Delta) else shape.groups
        arrived = device.upload(np.zeros(sequences * kinds, np.uint32))

        def at_once(own: Slots) -> None:
            if isinstance(shape, Delta):
                device.enqueue(
                    "rf_gated_delta_step",
                    *(x, self.weight, gates, gates, self.decay, self.vector, z, self.norm_weight),
                    *(*step, *own, kept, states, arrived, None, half, None, None, 0),
                    *(shape.channels, shape.heads, shape.heads, shape.inner, shape.key_heads),
                    *(shape.value_heads, shape.dim, shape.dim, _WIDTH, 1, _EPS),
                    grid=(shape.value_heads, sequences),
                    block=shape.dim * 4,
                    stream=self.watch.stream,
                )
            else:
                device.enqueue(
                    "rf_mamba_step",
                    *(x, self.weight, None, gates, self.decay, self.vector, self.vector),
                    *(*step, *own, kept, states, arrived, out, shape.channels, shape.heads),
                    *(shape.heads, shape.head_dim, shape.groups, shape.state_size, _WIDTH),
                    *(None, None, None, None, None, None, 0, 0, 0, _EPS),
                    grid=(shape.heads, sequences),
                    block=shape.head_dim * 4,
                    stream=self.watch.stream,
                )

        state_bytes = 2 * 4 * shape.state * sequences
        moved = {
            "convolve": 4 * 2 * shape.channels * (rows + (_WIDTH - 1) * sequences),
            "recur": state_bytes + 4 * rows * (shape.channels + shape.inner),
            "norm": (4 + 4 + 2) * rows * shape.inner,
            "solve": 4 * rows * shape.channels,
            "scores": 4 * rows * shape.channels,
            "chunks": 4 * rows * shape.inner * 2,
            "chunks, narrow": 4 * rows * shape.inner * 2,
            "at once": state_bytes + 4 * rows * (shape.channels + 2 * shape.inner),
        }
        total = 0.0
        launches = {"convolve": convolve, "recur": recur, "norm": norm}
        if scratch and isinstance(shape, Mamba):
            launches |= {
                "scores": mamba_scores,
                "chunks": partial(walk_mamba, "rf_mamba_chunks", 32),
                "chunks, narrow": partial(walk_mamba, "rf_mamba_chunks_c16", 16),
            }
        elif scratch:
            launches |= {
                "solve": solve,
                "chunks": partial(walk, "rf_gated_delta_chunks", 32),
                "chunks, narrow": partial(walk, "rf_gated_delta_chunks_c16", 16),
            }
        if tokens == 1:
            launches["at once"] = at_once
        for name, launch in launches.items():
            seconds = self._seconds(launch, slots)
            if name not in ("at once", "chunks, narrow") and (name != "recur" or not scratch):
                total += seconds
            rate = moved[name] / seconds
            print(
                f"  {sequences:3} x {tokens:4} {name:14} {seconds * 1e6:9.1f} us"
                f" {rate / 1e9:6.0f} GB/s {100 * rate / self.bandwidth:4.0f}%",
                flush=True,
            )
        print(f"  {sequences:3} x {tokens:4} a layer        {total * 1e6:9.1f} us", flush=True)
        for array in (x, gates, convolved, out, z, half, states, kept, arrived, *scratch):
            array.free()

    def _seconds(self, launch: Callable[[Slots], None], slots: list[Slots]) -> float:
        def enqueue() -> None:
            for own in slots:
                launch(own)

        return self.watch.seconds(enqueue, len(slots))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", choices=("nvidia", "rocm"), required=True)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--steps", default="1x1,32x1,1x4096", help="sequences x new tokens")
    options = parser.parse_args()
    device = open_gpu(options.platform)
    watch = Stopwatch(device)
    bandwidth = copy_bandwidth(watch)
    print(f"copy: {bandwidth / 1e9:.0f} GB/s")
    for name in options.shapes.split(","):
        print(f"{name}, {device.arch}")
        bench = Bench(watch, SHAPES[name], bandwidth)
        for step in options.steps.split(","):
            sequences, tokens = map(int, step.split("x"))
            bench.run(sequences, tokens)
        device.release()


if __name__ == "__main__":
    main()
