"""Speed of the linear kernels on a GPU: `python -m benchmarks.kernels.linear --platform nvidia`.

GEMV is shown in GB/s of weights read and in per cent of the bandwidth that a device-to-device copy
reaches; its weights rotate through more memory than caches hold. GEMM is shown in TFLOP/s. Each
line is the best of the launch geometries tried, which it names. Kernels are replayed from graphs,
so that launching costs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks.kernels.timing import Measurement, Stopwatch, copy_bandwidth, open_gpu
from rocmforge_hip.device.constants import WIDE_GEMM_ROWS
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.activations import SCALE_DTYPE
from tests.support.operands.linear import Layer, random_layer
from tests.support.operands.weights import FLOAT_TYPES

_CACHE_BYTES = 768 << 20  # well above the last-level cache of any GPU


def weight_copies(device: Device, layer: Layer) -> list[DeviceArray]:
    """The layer's matrix as often as it takes to leave no copy in a cache."""
    packed = layer.packed()
    count = min(64, max(1, -(-_CACHE_BYTES // packed.nbytes)))
    return [device.upload(packed) for _ in range(count)]


def measure_gemv(watch: Stopwatch, layer: Layer, rows: int, blocks: list[int]) -> Measurement:
    """The best block size for `rows` rows with one term."""
    device = watch.device
    name = layer.weights[0].name
    in_features = layer.quant_blocks * 32
    weights = weight_copies(device, layer)
    if name in FLOAT_TYPES:
        activation = [device.upload(np.zeros((rows, in_features), np.float32))]
    else:
        scales = np.zeros((rows, layer.quant_blocks), SCALE_DTYPE)
        activation = [device.upload(np.ones((rows, in_features), np.int8)), device.upload(scales)]
    out = device.empty((rows, layer.out_features), np.float32)
    counts = (rows,) if name in FLOAT_TYPES else (rows, 1)
    shape = (*counts, layer.out_features, layer.quant_blocks, layer.activation)
    variant = 1 << (rows - 1).bit_length()

    def cases() -> Iterator[Measurement]:
        for block in blocks:

            def enqueue(block: int = block) -> None:
                for weight in weights:
                    device.enqueue(
                        f"rf_gemv_{name}_r{variant}",
                        weight,
                        *activation,
                        None,
                        out,
                        *shape,
                        grid=layer.stored_rows // 16,
                        block=block,
                        stream=watch.stream,
                    )

            yield Measurement(watch.seconds(enqueue, len(weights)), f"block {block}")

    best = min(cases(), key=lambda case: case.seconds)
    device.release()
    return best


def measure_gemm(watch: Stopwatch, layer: Layer, rows: int, tiles: list[int]) -> Measurement:
    """The best of these tiles, of kernels for few rows, and splits of K, for `rows` rows."""
    device = watch.device
    weights = weight_copies(device, layer)
    rng = np.random.default_rng(0)
    x = device.upload(rng.standard_normal((rows, layer.quant_blocks * 32)).astype(np.float16))
    out = device.empty((rows, layer.out_features), np.float32)

    def cases() -> Iterator[Measurement]:
        for kernel, tile, splits in geometries(device, layer, rows, tiles):
            partial = None
            split_quant_blocks = layer.quant_blocks
            if splits > 1:
                split_quant_blocks = -(-layer.quant_blocks // (8 * splits)) * 8
                partial = device.empty((splits, rows, layer.stored_rows), np.float32)

            def enqueue(
                kernel: str = kernel,
                tile: int = tile,
                splits: int = splits,
                partial: DeviceArray | None = partial,
                split_quant_blocks: int = split_quant_blocks,
            ) -> None:
                arrays: tuple[DeviceArray | int | None, ...]
                arrays = (x, None, None, out, None, partial)
                if kernel.endswith(f"_m{tile}"):
                    arrays = (None, x, *(None,) * 4, out, None, partial, 0)
                for weight in weights:
                    device.enqueue(
                        kernel,
                        weight,
                        *arrays,
                        rows,
                        layer.out_features,
                        layer.quant_blocks,
                        layer.activation,
                        split_quant_blocks,
                        grid=(-(-rows // tile), -(-layer.stored_rows // 128), splits),
                        block=device.max_threads(kernel),
                        stream=watch.stream,
                    )
                    if partial is None:
                        continue
                    device.enqueue(
                        "rf_gemm_sum",
                        partial,
                        None,
                        out,
                        None,
                        *(None, None, None),
                        splits,
                        layer.out_features,
                        0,
                        layer.activation,
                        grid=(-(-layer.out_features // 256), rows),
                        block=256,
                        stream=watch.stream,
                    )

            seconds = watch.seconds(enqueue, len(weights))
            yield Measurement(seconds, f"{kernel}, {splits} splits")

    best = min(cases(), key=lambda case: case.seconds)
    device.release()
    return best


def geometries(
    device: Device, layer: Layer, rows: int, tiles: list[int]
) -> Iterator[tuple[str, int, int]]:
    """Kernels, tiles that fit rows, and splits that leave each block at least 16 quant blocks."""
    name = layer.weights[0].name
    kernels = [(f"rf_gemm_{name}_r{most}", most) for most in (16, 32, 64, 128) if rows <= most]
    kernels += [(f"rf_gemm_{name}_m{tile}", tile) for tile in tiles if tile < max(33, 2 * rows)]
    kernels += [(f"rf_gemm_wide_{name}_r{tile}", tile) for tile in tiles if tile < 2 * rows]
    for kernel, tile in kernels:
        if not device.has(kernel):
            continue
        for splits in (1, 2, 4, 8):
            if splits == 1 or (rows <= 2 * tile and layer.quant_blocks // splits >= 16):
                yield kernel, tile, splits


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", choices=("nvidia", "rocm"), required=True)
    parser.add_argument("--types", default="q4_k,q8_0,q6_k,f16")
    parser.add_argument("--shapes", default="14336x4096,4096x14336,4096x4096", help="out x in")
    parser.add_argument("--gemv-rows", default="1,2,4,8")
    parser.add_argument("--gemm-rows", default="16,64,128,512,4096")
    tiles = f"32,64,128,256,{WIDE_GEMM_ROWS}"
    parser.add_argument("--tiles", default=tiles, help="rows of GEMM's tiles to try")
    parser.add_argument("--blocks", default="64,128,256", help="block sizes of GEMV to try")
    options = parser.parse_args()
    numbers = {
        name: [int(n) for n in getattr(options, name).split(",") if n]
        for name in ("gemv_rows", "gemm_rows", "tiles", "blocks")
    }
    device = open_gpu(options.platform)
    watch = Stopwatch(device)
    copy = copy_bandwidth(watch)
    print(f"{device.arch}: copies {copy / 1e9:.0f} GB/s (read and write)")
    rng = np.random.default_rng(0)
    for shape in options.shapes.split(","):
        out_features, in_features = (int(n) for n in shape.split("x"))
        for name in options.types.split(","):
            layer = random_layer(rng, name, out_features, in_features)
            weight_bytes = layer.packed().nbytes
            for rows in numbers["gemv_rows"]:
                best = measure_gemv(watch, layer, rows, numbers["blocks"])
                rate = weight_bytes / best.seconds
                print(
                    f"gemv {name:6} {shape:12} {rows:5} rows {best.seconds * 1e6:9.1f} us"
                    f" {rate / 1e9:7.0f} GB/s {rate / copy:6.1%}  {best.geometry}",
                    flush=True,
                )
            for rows in numbers["gemm_rows"]:
                best = measure_gemm(watch, layer, rows, numbers["tiles"])
                rate = 2 * rows * out_features * in_features / best.seconds
                print(
                    f"gemm {name:6} {shape:12} {rows:5} rows {best.seconds * 1e6:9.1f} us"
                    f" {rate / 1e12:7.1f} TFLOP/s      {best.geometry}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
