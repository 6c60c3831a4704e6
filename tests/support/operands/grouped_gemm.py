"""Products of grouped rows, of rf_gemm_* and of kernels for experts, against numpy's, for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rocmforge_hip.device.constants import SHARE_ROUNDS
from tests.support.launches.kernels import Device, DeviceArray
from tests.support.operands.experts import ExpertLayer, upload_experts
from tests.support.operands.groups import group, groups_of
from tests.support.operands.linear import (
    NOT_GATED,
    Layer,
    random_activation,
    random_layer,
    worst_error,
)

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Biases = tuple[Float32, ...]  # [experts, out_features] of each weight
_ROUNDING = 2.0**-11  # as in test_gemm.py


def random_experts(
    name: str, count: int, out_features: int, in_features: int, activation: int = NOT_GATED
) -> list[Layer]:
    rng = np.random.default_rng(0)
    return [random_layer(rng, name, out_features, in_features, activation) for _ in range(count)]


def two_of_three(rows: int) -> Int32:
    """Returns a choice where each of two experts has so many rows, and a third none."""
    return np.repeat(np.array([0, 2], np.int32), rows)[:, None]


def check_groups(
    device: Device,
    experts: list[Layer],
    chosen: Int32,
    *,
    tile: int = 32,
    biases: Biases = (),
    gathered: bool = True,
    half: bool = False,
    scattered: bool = False,
    factor: float = 1.0,
    multiprocessors: int = 0,
) -> None:
    """Compares with each expert's product with its rows.

    `gathered`: with rows of tokens. `multiprocessors`: that blocks of rf_experts_gemm_* or
    rf_experts_gated_gemm_* share; 0: this is rf_gemm_*.
    """
    layer, pairs = experts[0], chosen.size
    groups, arrays = groups_of(chosen), group(device, chosen, len(experts), tile)
    rows = chosen.shape[0] if gathered else pairs
    x = factor * random_activation(np.random.default_rng(1), rows, 32 * layer.quant_blocks)
    halves = x.astype(np.float16)
    weight = ExpertLayer(tuple(experts), ()).packed()
    out = device.empty((pairs, layer.out_features), np.float16 if half else np.float32, "out")
    name = layer.weights[0].name
    uploaded: list[DeviceArray | None] = [device.upload(bias, "bias") for bias in biases]
    bias, up_bias = (uploaded + [None] * 2)[:2]
    rows_of_x = (device.upload(halves, "x"), arrays.tiles, arrays.tokens if gathered else None)
    matrix = upload_experts(device, weight, scattered=scattered)
    tiles, nbytes = arrays.tiles.shape[0], weight.shape[1]
    shape = layer.out_features, layer.quant_blocks
    if multiprocessors:
        gated = layer.activation != NOT_GATED
        kernel = f"rf_experts_gated_gemm_{name}" if gated else f"rf_experts_gemm_{name}"
        added, gate = ((bias, up_bias), (layer.activation,)) if gated else ((bias,), ())
        device.launch(
            kernel,
            *(*matrix, *rows_of_x, *added, out, nbytes, *shape, *gate, multiprocessors),
            grid=tiles + SHARE_ROUNDS * multiprocessors,
            block=512,
        )
    else:
        kernel, outputs = f"rf_gemm_{name}_m{tile}", (None, out) if half else (out, None)
        device.launch(
            kernel,
            *(*matrix, *rows_of_x, bias, up_bias, *outputs, None, nbytes, 0, *shape),
            *(layer.activation, layer.quant_blocks),
            grid=(tiles, -(-layer.stored_rows // 128)),
            block=device.max_threads(kernel),
        )
    seen = halves.astype(np.float64)[groups.tokens if gathered else slice(None)]
    expected = np.empty((pairs, layer.out_features))
    magnitude = np.empty_like(expected)
    for expert, each in enumerate(experts):
        own = groups.experts == expert
        of_expert = tuple(bias[expert] for bias in biases)
        expected[own] = each.apply(seen[own], of_expert)
        added = sum(np.abs(bias) for bias in of_expert)
        magnitude[own] = each.magnitude(seen[own]) + (3.0 if layer.activation else 1.0) * added
    assert worst_error(out.get(), expected, magnitude) < _ROUNDING * (2 if half else 1)
