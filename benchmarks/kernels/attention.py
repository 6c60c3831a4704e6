"""Speed of attention on a GPU: `python -m benchmarks.kernels.attention --platform nvidia`.

Decode is shown in GB/s of keys and values read, and in per cent of the bandwidth that a
device-to-device copy reaches; a single sequence rotates through caches of several, which no cache
of the GPU holds. Prefill is shown in TFLOP/s of the two products, without what the causal mask
hides. The default shape is one layer of Llama 3.1 8B.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.kernels.timing import Measurement, Stopwatch, copy_bandwidth, open_gpu
from rocmforge_hip.device.driver import list_devices
from rocmforge_hip.ops.geometry import Geometry
from tests.support.launches.kernels import Device, DeviceArray

BLOCK_TOKENS = 32
DECODE_WAVES = 4
ROTATION = 8  # sequences that a single decoding one rotates through
PREFILL_ROWS = 128
THREADS = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """The heads of a layer, and how its cache is stored."""

    heads: int
    kv_heads: int
    head_dim: int
    int8: bool

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    @property
    def kind(self) -> str:
        """As in the kernels' names."""
        return "int8" if self.int8 else "f16"

    @property
    def decode_tile(self) -> int:
        """Of these, those of a block."""
        return 4 if self.group <= 4 else 8

    @property
    def decode_blocks(self) -> int:
        """Thread blocks of a token and split."""
        return self.kv_heads * -(-self.group // self.decode_tile)

    @property
    def decode_kernel(self) -> str:
        """The kernel's name."""
        return f"rf_attention_decode_{self.kind}_d{self.head_dim}_g{self.decode_tile}"

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token, with their scales."""
        return 2 * self.kv_heads * (self.head_dim + 4 if self.int8 else 2 * self.head_dim)


class Layer:
    """Caches of some sequences of one length, in blocks that lie in random order."""

    def __init__(self, device: Device, shape: Shape, sequences: int, context: int) -> None:
        rng = np.random.default_rng(0)
        self.device, self.shape, self.sequences, self.context = device, shape, sequences, context
        self.blocks = -(-context // BLOCK_TOKENS)
        table = rng.permutation(sequences * self.blocks).astype(np.int32)
        rows = (sequences * self.blocks, shape.kv_heads, BLOCK_TOKENS)
        if shape.int8:
            part = rng.integers(-127, 128, 1 << 22, np.int8)
            scales = [device.upload(np.full(rows, 0.01, np.float32)) for _ in range(2)]
        else:
            part, scales = rng.standard_normal(1 << 22).astype(np.float16), []
        data = np.resize(part, (*rows, shape.head_dim))
        self.cache = [device.upload(data), device.upload(data), *scales]
        self.table = device.upload(table.reshape(sequences, self.blocks))
        self.contexts = device.upload(np.full(sequences, context, np.int32))

    def queries(self, tokens: int) -> DeviceArray:
        """Returns random queries, float16 [tokens, heads, head_dim]."""
        shape = (tokens, self.shape.heads, self.shape.head_dim)
        return self.device.upload(np.random.default_rng(1).standard_normal(shape).astype("f2"))


def measure_decode(watch: Stopwatch, layer: Layer, batch: int, splits: list[int]) -> Measurement:
    """Measures the best number of tokens in a split, for a batch out of the layer's sequences."""
    device, shape = watch.device, layer.shape
    rotation = layer.sequences // batch
    which = np.arange(layer.sequences, dtype=np.int32).reshape(rotation, batch)
    sequences = [device.upload(ids) for ids in which]
    starts = device.upload(np.arange(layer.sequences + 1, dtype=np.int32))
    q = layer.queries(layer.sequences)
    out = device.empty((layer.sequences, shape.heads, shape.head_dim), np.float32)

    def cases() -> Iterator[Measurement]:
        for tokens in splits:
            count = -(-layer.context // tokens)
            rows = (batch, shape.heads, count)
            partial = device.empty((*rows, shape.head_dim), np.float32)
            partial_ml = device.empty((*rows, 2), np.float32)
            arrived = device.upload(np.zeros((batch, shape.decode_blocks), np.uint32))

            def enqueue(
                tokens: int = tokens,
                count: int = count,
                partial: DeviceArray = partial,
                partial_ml: DeviceArray = partial_ml,
                arrived: DeviceArray = arrived,
            ) -> None:
                for ids in sequences:
                    device.enqueue(
                        shape.decode_kernel,
                        *(
                            q,
                            *[None] * 7,  # nothing is to be rotated
                            *layer.cache,
                            layer.table,
                            ids,
                            starts,
                            layer.contexts,
                            None,
                            out,
                            *(None, None, None, 0),
                        ),
                        *(partial, partial_ml, arrived, 0, 0, 0, layer.blocks, shape.heads),
                        *(shape.kv_heads, 0, 0, 0, 0, tokens, 0.0, shape.head_dim**-0.5, 0.0, 0),
                        grid=(shape.decode_blocks, count, batch),
                        block=DECODE_WAVES * device.wave,
                        stream=watch.stream,
                    )

            yield Measurement(watch.seconds(enqueue, rotation), f"{count} splits of {tokens}")

    return min(cases(), key=lambda case: case.seconds)


def measure_prefill(watch: Stopwatch, layer: Layer, tokens: int) -> Measurement:
    """Measures the last `tokens` of the first sequence's context."""
    device, shape = watch.device, layer.shape
    q = layer.queries(tokens)
    out = device.empty((tokens, shape.heads, shape.head_dim), np.float16)
    ids, starts = device.upload(np.zeros(1, np.int32)), device.upload(np.array([0, tokens], "i4"))

    def enqueue() -> None:
        device.enqueue(
            f"rf_attention_prefill_{shape.kind}_d{shape.head_dim}",
            *(q, *layer.cache, layer.table, ids, starts, layer.contexts, None, None, None, out),
            *(None, None, 0, 1, 0, layer.blocks, shape.heads, shape.kv_heads),
            *(0, shape.head_dim**-0.5, 0.0),
            grid=(shape.kv_heads, -(-tokens * shape.group // PREFILL_ROWS), 1),
            block=THREADS,
            stream=watch.stream,
        )

    return Measurement(watch.seconds(enqueue, 1), f"after {layer.context - tokens}")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", choices=("nvidia", "rocm"), required=True)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--decode-context", type=int, default=32768)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument(
        "--splits", default="", help="tokens of a split to try besides what the backend takes"
    )
    parser.add_argument("--prefill-tokens", default="2048,8192")
    options = parser.parse_args()
    batches, splits, prefills = (
        [int(n) for n in text.split(",") if n]
        for text in (options.batches, options.splits, options.prefill_tokens)
    )
    device = open_gpu(options.platform)
    watch = Stopwatch(device)
    geometry = Geometry(list_devices()[0].compute_units)
    copy = copy_bandwidth(watch)
    print(f"{device.arch}: copies {copy / 1e9:.0f} GB/s (read and write)")
    for int8 in (False, True):
        shape = Shape(options.heads, options.kv_heads, options.head_dim, int8)
        for batch in batches:
            sequences = max(batch, ROTATION)
            layer = Layer(device, shape, sequences, options.decode_context)
            at_once = device.blocks_at_once(shape.decode_kernel, DECODE_WAVES * device.wave)
            own = geometry.attention(
                options.decode_context, None, shape.decode_blocks, batch, at_once
            ).tokens
            best = measure_decode(watch, layer, batch, [own, *splits])
            rate = batch * options.decode_context * shape.token_bytes / best.seconds
            print(
                f"decode  {shape.kind:5} {options.decode_context:6} tokens, batch {batch:3}"
                f" {best.seconds * 1e6:9.1f} us {rate / 1e9:7.0f} GB/s {rate / copy:6.1%}"
                f"  {best.geometry}",
                flush=True,
            )
            device.release()
        for tokens in prefills:
            for context in (tokens, 2 * tokens):
                layer = Layer(device, shape, 1, context)
                best = measure_prefill(watch, layer, tokens)
                pairs = tokens * (context - tokens) + tokens * (tokens + 1) // 2
                rate = 4 * shape.heads * shape.head_dim * pairs / best.seconds
                print(
                    f"prefill {shape.kind:5} {tokens:6} tokens {best.seconds * 1e6:20.1f} us"
                    f" {rate / 1e12:7.1f} TFLOP/s      {best.geometry}",
                    flush=True,
                )
                device.release()


if __name__ == "__main__":
    main()
