"""Speed of an encoder's kernels on a GPU: `python -m benchmarks.kernels.encoder --platform rocm`.

All but attention are shown in GB/s of what they must read and write, and in per cent of the
bandwidth that a device-to-device copy reaches: activations of so many tokens that no cache of the
GPU holds them. Attention is shown in TFLOP/s of its two products. The default shape is one layer
of BERT base.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.kernels.timing import Stopwatch, copy_bandwidth, open_gpu
from tests.support.launches.kernels import Device, DeviceArray

EPS = 1e-12
THREADS = 256
ATTENTION_ROWS = 128
SUM_COLUMNS, SUM_THREADS = 32, 1024
CONTEXT = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """A step of an encoder."""

    tokens: int
    heads: int
    head_dim: int
    ffn: int

    @property
    def dim(self) -> int:
        """The width."""
        return self.heads * self.head_dim


Bandwidth = tuple[str, int, Callable[[], None]]
"""What is measured, the bytes that it must move, and its launch."""


def bandwidths(watch: Stopwatch, shape: Shape) -> Iterator[Bandwidth]:
    """Measures everything that computes little."""
    device, tokens, dim = watch.device, shape.tokens, shape.dim

    def enqueue(kernel: str, *args: object, grid: object, block: int) -> Callable[[], None]:
        def launch() -> None:
            device.enqueue(kernel, *args, grid=grid, block=block, stream=watch.stream)  # type: ignore[arg-type]

        return launch

    x, delta = (floats(device, tokens, dim) for _ in range(2))
    weight, bias = (floats(device, 1, dim) for _ in range(2))
    half = device.empty((tokens, dim), np.float16)
    norm_threads = min(-(-dim // 256) * 64, 1024)
    inputs = (delta, x, weight, bias)
    outputs = (None, x, half, dim, EPS)
    launch = enqueue("rf_add_layer_norm", *inputs, *outputs, grid=tokens, block=norm_threads)
    yield "add_layer_norm", tokens * dim * (4 + 4 + 4 + 2), launch

    inner = halves(device, tokens, shape.ffn)
    count = tokens * shape.ffn
    launch = enqueue("rf_gelu_half", inner, count, grid=-(-count // 2048), block=THREADS)
    yield "gelu_half", 2 * 2 * count, launch

    qkv = halves(device, tokens, 3 * dim)
    positions = device.upload(np.arange(tokens, dtype=np.int32) % CONTEXT)
    table = floats(device, CONTEXT, shape.head_dim // 2)
    sizes = (3 * dim, 3 * dim, shape.heads, shape.heads, shape.head_dim, shape.head_dim)
    chunks = 2 * shape.heads * (shape.head_dim // 16)
    rotated = (qkv, qkv.part(dim), None, None, table, table, positions, *sizes, EPS)
    launch = enqueue("rf_rope_half", *rotated, grid=(tokens, -(-chunks // 128)), block=128)
    yield "rope_half", 2 * 2 * 2 * tokens * dim, launch

    for sequences in (1, tokens // CONTEXT):
        edges = np.linspace(0, tokens, sequences + 1).astype(np.int32)
        ranges = device.upload(np.stack([edges[:-1], edges[1:]], axis=1))
        sums = (x, ranges, floats(device, sequences, dim), dim)
        grid = (-(-dim // SUM_COLUMNS), sequences)
        launch = enqueue("rf_sum_rows", *sums, grid=grid, block=SUM_THREADS)
        yield f"sum_rows, {sequences} sequences", 4 * tokens * dim, launch


def attention(watch: Stopwatch, shape: Shape, length: int) -> tuple[float, float]:
    """Seconds, and operations of the products, of sequences of this length."""
    device, dim = watch.device, shape.dim
    qkv = halves(device, shape.tokens, 3 * dim)
    out = device.empty((shape.tokens, dim), np.float16)
    sequences = shape.tokens // length
    starts = device.upload(np.arange(sequences + 1, dtype=np.int32) * length)

    def enqueue() -> None:
        device.enqueue(
            f"rf_attention_full_d{shape.head_dim}",
            *(qkv, qkv.part(dim), qkv.part(2 * dim), starts, out),
            *(3 * dim, 3 * dim, 3 * dim, shape.head_dim**-0.5, 1),
            grid=(-(-length // ATTENTION_ROWS), shape.heads, sequences),
            block=THREADS,
            stream=watch.stream,
        )

    return watch.seconds(enqueue, 1), 4.0 * sequences * length**2 * dim


def floats(device: Device, rows: int, columns: int) -> DeviceArray:
    """Returns float32 [rows, columns]: the same random values over and over, to be made quickly."""
    part = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    return device.upload(np.resize(part, (rows, columns)))


def halves(device: Device, rows: int, columns: int) -> DeviceArray:
    """Returns the same as float16."""
    part = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16)
    return device.upload(np.resize(part, (rows, columns)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", choices=("nvidia", "rocm"), required=True)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--ffn", type=int, default=3072)
    parser.add_argument("--lengths", default="32,128,512", help="of sequences that attend")
    options = parser.parse_args()
    shape = Shape(options.tokens, options.heads, options.head_dim, options.ffn)
    device = open_gpu(options.platform)
    watch = Stopwatch(device)
    copy = copy_bandwidth(watch)
    print(f"{device.arch}: copies {copy / 1e9:.0f} GB/s (read and write)")
    for name, moved, launch in bandwidths(watch, shape):
        seconds = watch.seconds(launch, 1)
        rate = moved / seconds
        print(f"{name:24} {seconds * 1e6:9.1f} us {rate / 1e9:7.0f} GB/s {rate / copy:6.1%}")
    device.release()
    for length in (int(text) for text in options.lengths.split(",")):
        seconds, operations = attention(watch, shape, length)
        print(
            f"attention of {length:5} tokens {seconds * 1e6:9.1f} us"
            f" {operations / seconds / 1e12:7.1f} TFLOP/s"
        )
        device.release()


if __name__ == "__main__":
    main()
