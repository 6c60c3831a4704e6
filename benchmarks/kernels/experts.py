"""Speed of the kernels of experts: `python -m benchmarks.kernels.experts --platform nvidia`.

Tokens choose experts at random. Grouped GEMM is shown for each tile, in TFLOP/s of what the tokens
need and in GB/s of the weights of all experts that any token chose, each counted once; down also
where its rows stay in LDS. GEMV stands
for a kernel that multiplies every pair of a token and an expert on its own. Weights rotate through
more memory than caches hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.kernels.timing import Stopwatch, open_gpu
from rocmforge_hip.device.constants import GATED_ROWS, SHARE_ROUNDS
from rocmforge_hip.device.driver import list_devices
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE
from tests.support.operands.groups import GroupArrays, group
from tests.support.operands.linear import CLAMPED_SWIGLU, NOT_GATED, SILU, Layer, random_layer

_CACHE_BYTES = 768 << 20  # well above the last-level cache of any GPU
_TILES = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Shape:
    """The experts of a layer."""

    hidden_size: int
    intermediate_size: int
    experts: int
    chosen: int
    gate_up: str  # formats
    down: str
    activation: int


SHAPES = {
    "qwen3.5-35b-a3b": Shape(2048, 512, 256, 8, "q4_k", "q6_k", SILU),
    "qwen3-30b-a3b": Shape(2048, 768, 128, 8, "q4_k", "q6_k", SILU),
    "gpt-oss-20b": Shape(2880, 2880, 32, 4, "mxfp4", "mxfp4", CLAMPED_SWIGLU),
}


class Matrices:
    """The same matrix for all experts, as often as it takes to leave no copy in a cache."""

    def __init__(self, device: Device, layer: Layer, experts: int) -> None:
        packed = layer.packed()
        self.layer = layer
        self.expert_bytes = packed.nbytes
        all_experts = np.tile(packed, (experts, 1))
        count = max(2, -(-_CACHE_BYTES // all_experts.nbytes))
        self.copies = [device.upload(all_experts) for _ in range(count)]


class Bench:
    """Measures one shape."""

    def __init__(self, watch: Stopwatch, shape: Shape) -> None:
        rng = np.random.default_rng(0)
        self.watch, self.shape = watch, shape
        features = shape.intermediate_size, shape.hidden_size
        gate_up = random_layer(rng, shape.gate_up, *features, shape.activation)
        down = random_layer(rng, shape.down, *features[::-1])
        self.gate_up = Matrices(watch.device, gate_up, shape.experts)
        self.down = Matrices(watch.device, down, shape.experts)

    def choose(self, tokens: int) -> npt.NDArray[np.int32]:
        """Returns distinct experts for each token, [tokens, chosen]."""
        keys = np.random.default_rng(tokens).random((tokens, self.shape.experts))
        return np.argsort(keys, axis=1)[:, : self.shape.chosen].astype(np.int32)

    def gemm(self, matrices: Matrices, arrays: GroupArrays, tile: int, x: DeviceArray) -> float:
        """Seconds of a product; of gate and up, with the rows of tokens."""
        device, layer = self.watch.device, matrices.layer
        gated = layer.activation != NOT_GATED
        pairs = arrays.tokens.shape[0]
        out = device.empty((pairs, layer.out_features), np.float16 if gated else np.float32)
        bias = device.upload(np.zeros((self.shape.experts, layer.out_features), np.float32))
        has_bias = self.shape.activation == CLAMPED_SWIGLU
        kernel = f"rf_gemm_{layer.weights[0].name}_m{tile}"

        def enqueue() -> None:
            for weight in matrices.copies:
                device.enqueue(
                    kernel,
                    weight,
                    None,
                    x,
                    arrays.tiles,
                    arrays.tokens if gated else None,
                    bias if has_bias else None,
                    bias if has_bias and gated else None,
                    *((None, out) if gated else (out, None)),
                    None,
                    matrices.expert_bytes,
                    0,
                    layer.out_features,
                    layer.quant_blocks,
                    layer.activation,
                    layer.quant_blocks,
                    grid=(arrays.tiles.shape[0], -(-layer.stored_rows // 128)),
                    block=device.max_threads(kernel),
                    stream=self.watch.stream,
                )

        seconds = self.watch.seconds(enqueue, len(matrices.copies))
        out.free()
        return seconds

    def held(self, matrices: Matrices, arrays: GroupArrays, x: DeviceArray) -> float | None:
        """Seconds with rows that stay in LDS, if there is a kernel."""
        device, layer = self.watch.device, matrices.layer
        name, gated = layer.weights[0].name, layer.activation != NOT_GATED
        kernel = f"rf_experts_gated_gemm_{name}" if gated else f"rf_experts_gemm_{name}"
        if not device.has(kernel):
            return None
        out = device.empty(
            (arrays.tokens.shape[0], layer.out_features), np.float16 if gated else np.float32
        )
        rows = (x, arrays.tiles, arrays.tokens if gated else None)
        biases, activation = ((None, None), (layer.activation,)) if gated else ((None,), ())
        tiles, compute_units = arrays.tiles.shape[0], list_devices()[0].compute_units

        def enqueue() -> None:
            for weight in matrices.copies:
                device.enqueue(
                    kernel,
                    weight,
                    None,
                    *rows,
                    *biases,
                    out,
                    matrices.expert_bytes,
                    layer.out_features,
                    layer.quant_blocks,
                    *activation,
                    compute_units,
                    grid=tiles + SHARE_ROUNDS * compute_units,
                    block=512,
                    stream=self.watch.stream,
                )

        seconds = self.watch.seconds(enqueue, len(matrices.copies))
        out.free()
        return seconds

    def gemv(self, matrices: Matrices, pairs: int) -> float:
        """Seconds of as many products with one row each, all with other experts."""
        device, layer = self.watch.device, matrices.layer
        x = device.upload(np.ones((1, layer.quant_blocks * 32), np.int8))
        scales = device.upload(np.zeros((1, layer.quant_blocks), SCALE_DTYPE))
        gated = layer.activation != NOT_GATED
        rows = min(pairs, self.shape.experts) * layer.stored_rows
        features = rows // 2 if gated else rows
        out = device.empty((1, features), np.float32)

        def enqueue() -> None:
            for weight in matrices.copies:
                device.enqueue(
                    f"rf_gemv_{layer.weights[0].name}_r1",
                    weight,
                    x,
                    scales,
                    None,
                    out,
                    1,
                    1,
                    features,
                    layer.quant_blocks,
                    layer.activation,
                    grid=rows // 16,
                    block=128,
                    stream=self.watch.stream,
                )

        return self.watch.seconds(enqueue, len(matrices.copies)) * max(
            1.0, pairs / self.shape.experts
        )

    def row(self, launch: Callable[[], None], repeats: int = 8) -> float:
        """Seconds of a launch, of `repeats` in a row."""

        def enqueue() -> None:
            for _ in range(repeats):
                launch()

        return self.watch.seconds(enqueue, repeats)

    def run(self, tokens: int) -> None:
        """Prints what so many tokens take."""
        device, shape, stream = self.watch.device, self.shape, self.watch.stream
        chosen = self.choose(tokens)
        pairs, distinct = chosen.size, len(np.unique(chosen))
        rng = np.random.default_rng(1)
        x = device.upload(rng.standard_normal((tokens, shape.hidden_size)).astype(np.float16))
        inner = rng.standard_normal((pairs, shape.intermediate_size)).astype(np.float16)
        h = device.upload(inner)
        threads = min(1024, max(64, -(-pairs // 64) * 64))
        best: dict[str, float] = {}
        for tile in _TILES:
            if tile > 32 and tile > 4 * -(-pairs // shape.experts) and tile > 64:
                continue
            arrays = group(device, chosen, shape.experts, tile, threads)
            for name, matrices, rows in (("gate, up", self.gate_up, x), ("down", self.down, h)):
                seconds = self.gemm(matrices, arrays, tile, rows)
                layer = matrices.layer
                flops = 2 * pairs * layer.stored_rows * layer.quant_blocks * 32
                read = distinct * matrices.expert_bytes
                print(
                    f"  {tokens:5} tokens {name:8} tile {tile:3} {seconds * 1e6:8.1f} us"
                    f" {flops / seconds / 1e12:6.1f} TFLOP/s {read / seconds / 1e9:6.0f} GB/s",
                    flush=True,
                )
                best[name] = min(seconds, best.get(name, seconds))
        arrays = group(device, chosen, shape.experts, GATED_ROWS, threads)
        for name, matrices, rows in (("gate, up", self.gate_up, x), ("down", self.down, h)):
            if (held := self.held(matrices, arrays, rows)) is not None:
                print(f"  {tokens:5} tokens {name:8} in LDS   {held * 1e6:8.1f} us")
                best[name] = min(held, best[name])
        if pairs <= 512:
            for name, matrices in (("gate, up", self.gate_up), ("down", self.down)):
                seconds = self.gemv(matrices, pairs)
                print(f"  {tokens:5} tokens {name:8} gemv     {seconds * 1e6:8.1f} us")
        choices = device.upload(chosen)
        arrays = group(device, chosen, shape.experts, _TILES[0], threads)

        def sort() -> None:
            device.enqueue(
                "rf_group_experts",
                choices,
                arrays.tokens,
                arrays.places,
                arrays.tiles,
                pairs,
                shape.chosen,
                _TILES[0],
                grid=shape.experts,
                block=threads,
                stream=stream,
            )

        best["group"] = self.row(sort)
        y = device.upload(np.zeros((pairs, shape.hidden_size), np.float32))
        out = device.empty((tokens, shape.hidden_size), np.float32)
        weights = device.upload(np.ones(chosen.shape, np.float32))

        def mix() -> None:
            device.enqueue(
                "rf_mix_experts",
                y,
                arrays.places,
                weights,
                out,
                shape.chosen,
                shape.hidden_size,
                1,
                grid=(-(-shape.hidden_size // 1024), tokens),
                block=256,
                stream=stream,
            )

        best["mix"] = self.row(mix)
        total = sum(best.values())
        parts = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in best.items())
        print(f"  {tokens:5} tokens: {total * 1e6:.1f} us a layer ({parts})", flush=True)
        for array in (x, h, y, out):
            array.free()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", choices=("nvidia", "rocm"), required=True)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--tokens", default="8,32,64,512,4096")
    options = parser.parse_args()
    device = open_gpu(options.platform)
    watch = Stopwatch(device)
    for name in options.shapes.split(","):
        print(f"{name}, {device.arch}")
        bench = Bench(watch, SHAPES[name])
        for tokens in options.tokens.split(","):
            bench.run(int(tokens))
        device.release()


if __name__ == "__main__":
    main()
