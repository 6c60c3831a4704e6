"""Checks of the operations that only encoders have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ActivationFunction, NormKind, RopeStyle
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.rope import RopeTables
from rocmforge.models.weights import present
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.records import allocate
from rocmforge_hip.load.model import upload, upload_tables
from rocmforge_hip.ops.activations import (
    Activation,
    ActivationArrays,
    StepLimits,
    plan_full_activations,
)
from rocmforge_hip.ops.full_attention import FULL_HEAD_DIMS
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear import part_of
from rocmforge_hip.ops.model_ops import HipOps, Resources
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error
from rocmforge_hip.verify.rows import random_values
from rocmforge_hip.verify.workbench import (
    CONTEXT,
    MAX_SEQUENCES,
    MAX_TOKENS,
    Recipe,
    Workbench,
    blocks_of,
)
from rocmforge_hip.weights.products import Product

W = TypeVar("W")

_FLOAT: Final = 4e-6  # relative to the largest value
_HALF: Final = 2.0**-11
_ATTENTION: Final = 4e-3  # weights are rounded to halves
_HEADS: Final = 2
_LENGTHS: Final = (1, 140, 64, 33)

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields norms of several widths, then what depends on stored type and head size."""
    for width in (96, 4160):
        norms = [
            Case("layer_norm", f"width {width}", _HALF, _norm),
            Case("add_layer_norm", f"width {width}", _FLOAT, _add_norm),
            Case("add_two_norms", f"width {width}", _FLOAT, _add_two_norms),
            Case("norm_projection", f"width {width}", _HALF, _norm_projection),
            Case("add_then_norm", f"width {width}", _HALF, _add_then_norm),
        ]
        yield Group(Recipe(hidden_size=width), tuple(norms))
    yield Group(Recipe(intermediate_size=160), (Case("gelu", "12 rows", _HALF, _gelu),))
    for format in ("f32", "f16", "bf16"):
        cases = (Case("embed_add", f"{format} positions", _FLOAT, _embed_add),)
        yield Group(Recipe(format=format, hidden_size=160), cases)
    for head_dim in FULL_HEAD_DIMS:
        yield Group(
            Recipe(hidden_size=_HEADS * head_dim, rotary_dim=32),
            (
                Case("rope", f"heads of {head_dim}", 2 * _HALF, partial(_rope, head_dim=head_dim)),
                *(
                    Case(
                        "full attention",
                        f"heads of {head_dim}, sequences of {_LENGTHS} tokens, {name}",
                        _ATTENTION,
                        partial(_attention, head_dim=head_dim, reach=reach, slopes=slopes),
                    )
                    for name, reach, slopes in (
                        ("all", None, ()),
                        ("within reach", 20, ()),
                        ("with slopes", None, (0.5, 0.03)),
                    )
                ),
            ),
        )


@dataclass(frozen=True, slots=True)
class _Encoder:
    """The operations of an encoder and their arrays, on the device of a workbench."""

    ops: HipOps
    arena: ActivationArrays[DeviceArray]


def _encoder(
    bench: Workbench, head_dim: int = FULL_HEAD_DIMS[0], slopes: tuple[float, ...] = ()
) -> _Encoder:
    """Makes an encoder as wide as the workbench's model, whose weights it may use."""
    model, device = bench.config, bench.device
    heads = replace(
        model.layers[0], num_heads=_HEADS, num_kv_heads=_HEADS, key_dim=head_dim, value_dim=head_dim
    )
    config = replace(
        model,
        causal=False,
        layers=(heads,),
        norm=NormKind.LAYER,
        pre_norm=False,
        activation=ActivationFunction.GELU,
        has_alibi=bool(slopes),
    )
    limits = StepLimits(tokens=MAX_TOKENS, sequences=MAX_SEQUENCES, context=CONTEXT)
    geometry = Geometry(compute_units=1)  # nothing here is split
    features = {Product.QKV: 3 * model.hidden_size}
    plan = plan_full_activations(config, features, limits, geometry)
    arena: ActivationArrays[DeviceArray] = allocate(device.memory, plan, device.stream)
    tables = upload_tables(device, RopeTables(bench.table, None))
    formats = frozenset([part_of(bench.model.weights.embedding.token).matrix.format.name])
    on_device = upload(device, np.array(slopes, np.float32), "slopes") if slopes else None
    ops = HipOps(
        Resources(
            config=config,
            library=device.library,
            geometry=geometry,
            arena=arena,
            caches=(),
            tables=tables,
            slopes=on_device,
            formats=formats,
            adapters={},
            slices=0,
        )
    )
    return _Encoder(ops, arena)


def _norm(bench: Workbench) -> float:
    encoder, values = _encoder(bench), random_values(12, bench.config.hidden_size) + 1
    x = bench.activation(encoder.arena.normed, values)
    got = encoder.ops.norm(x, *_norm_and_bias(bench.model.weights))
    assert got.f16 is not None
    return error(bench.get(got.f16).astype(np.float64), _normed(bench, values))


def _add_norm(bench: Workbench) -> float:
    encoder = _encoder(bench)
    old, delta = (
        random_values(9, bench.config.hidden_size),
        random_values(10, bench.config.hidden_size)[:9],
    )
    got = encoder.ops.norm_of_sum(
        bench.activation(encoder.arena.normed, old),
        bench.activation(encoder.arena.delta, delta),
        *_norm_and_bias(bench.model.weights),
    )
    return error(bench.result(got), _normed(bench, old + delta))


def _add_then_norm(bench: Workbench) -> float:
    encoder = _encoder(bench)
    old, delta = (
        random_values(9, bench.config.hidden_size),
        random_values(10, bench.config.hidden_size)[:9],
    )
    total, got = encoder.ops.add_norm(
        bench.activation(encoder.arena.normed, old),
        bench.activation(encoder.arena.delta, delta),
        bench.model.weights.layers[0].feed_forward_norm,
        None,
    )
    weight = bench.weights.layers[0].feed_forward_norm.to_float32().astype(np.float64)
    added = (old + delta).astype(np.float64)
    want = oracle.layer_norm(added, weight, np.zeros_like(weight), bench.config.norm_eps)
    return max(error(bench.result(total), added), error(bench.result(got), want))


def _add_two_norms(bench: Workbench) -> float:
    encoder = _encoder(bench)
    old, delta = (
        random_values(9, bench.config.hidden_size),
        random_values(10, bench.config.hidden_size)[:9],
    )
    norm = _norm_and_bias(bench.model.weights)
    got = encoder.ops.two_norms_of_sum(
        bench.activation(encoder.arena.normed, old),
        bench.activation(encoder.arena.delta, delta),
        norm,
        norm,
    )
    return error(bench.result(got), _normed(bench, old + _normed(bench, old + delta)))


def _norm_projection(bench: Workbench) -> float:
    """Checks columns of a wider matrix."""
    encoder, width = _encoder(bench), bench.config.hidden_size
    values = random_values(5, 3 * width).astype(np.float16)
    whole = bench.put(values, encoder.arena.qkv.float16(*values.shape))
    x = Activation(
        encoder.arena.qkv, 5, width, f16=whole.columns(width, 2 * width), stride=3 * width
    )
    got = bench.result(encoder.ops.norm_projection(x, *_norm_and_bias(bench.model.weights)))
    return error(got, _normed(bench, values[:, width : 2 * width]))


def _normed(bench: Workbench, x: Array) -> Float64:
    weight, bias = (norm.to_float32().astype(np.float64) for norm in _norm_and_bias(bench.weights))
    return oracle.layer_norm(x.astype(np.float64), weight, bias, bench.config.norm_eps)


def _norm_and_bias(weights: ModelWeights[W]) -> tuple[W, W]:
    """Returns one norm of the model as the weight, and another as the bias."""
    layer = weights.layers[0]
    return present(layer.attention_norm), layer.feed_forward_norm


def _gelu(bench: Workbench) -> float:
    encoder, width = _encoder(bench), bench.config.layers[0].intermediate_size
    values = 2 * random_values(12, width)
    halves = values.astype(np.float16)
    got = encoder.ops.gelu(bench.activation(encoder.arena.intermediate, halves))
    return error(bench.result(got), oracle.gelu(halves.astype(np.float64)))


def _embed_add(bench: Workbench) -> float:
    """Takes the table of tokens as that of positions, too."""
    encoder, tokens = _encoder(bench), [5, 63, 0, 5]
    step = bench.step([(4, 4, [0])], tokens=tokens)
    weights = bench.model.weights
    got = encoder.ops.embed(
        step,
        weights.embedding.token,
        weights.embedding.token,
        weights.layers[0].feed_forward_norm,
        1.0,
    )
    table, type_row = (
        tensor.to_float32().astype(np.float64)
        for tensor in (bench.weights.embedding.token, bench.weights.layers[0].feed_forward_norm)
    )
    return error(bench.result(got), table[tokens] + table[:4] + type_row)


def _rope(bench: Workbench, head_dim: int) -> float:
    encoder = _encoder(bench, head_dim)
    step = bench.step([(40, 30, [0, 1])])
    stacked, parts = _stacked(bench, encoder, 30)
    q, k = encoder.ops.rope(step, parts[0], parts[1], _spec())
    cos, sin = (half[10:40].astype(np.float64) for half in (bench.table.cos, bench.table.sin))
    errors = []
    for got, values in zip((q, k), stacked, strict=False):
        want = oracle.rope(values, cos, sin, RopeStyle.NEOX)
        found = bench.result(
            Activation(got.arrays, 30, got.features, f16=got.f16, stride=got.stride)
        )
        errors.append(error(found.reshape(want.shape), want))
    return max(errors)


def _spec(reach: int | None = None, scale: float = 1.0) -> AttentionSpec:
    window = None if reach is None else reach + 1
    return AttentionSpec(layer=0, scale=scale, softcap=None, window=window, local_rope=False)


def _attention(
    bench: Workbench, head_dim: int, reach: int | None, slopes: tuple[float, ...]
) -> float:
    encoder = _encoder(bench, head_dim, slopes)
    count = sum(_LENGTHS)
    blocks = blocks_of(_LENGTHS)
    step = bench.step([(n, n, own) for n, own in zip(_LENGTHS, blocks, strict=True)])
    (q, k, v), parts = _stacked(bench, encoder, count)
    scale = 2.0 * head_dim**-0.5  # sharper than usual, so that a wrong key shows
    got = bench.result(encoder.ops.attend_all(step, *parts, _spec(reach, scale)))
    starts = np.cumsum([0, *_LENGTHS])
    want = [
        oracle.full_attention(q[start:stop], k[start:stop], v[start:stop], scale, reach, slopes)
        for start, stop in pairwise(starts)
    ]
    return error(got, np.concatenate(want).reshape(count, -1))


def _stacked(
    bench: Workbench, encoder: _Encoder, tokens: int
) -> tuple[tuple[Float64, ...], tuple[Activation, Activation, Activation]]:
    """Puts query, key and value, [tokens, heads, head_dim] each, in one matrix of halves."""
    width = bench.config.hidden_size
    values = random_values(tokens, 3 * width).astype(np.float16)
    whole = bench.put(values, encoder.arena.qkv.float16(*values.shape))
    columns = [(first, first + width) for first in (0, width, 2 * width)]
    q, k, v = (
        Activation(encoder.arena.qkv, tokens, width, f16=whole.columns(*part), stride=3 * width)
        for part in columns
    )
    wide = (values[:, slice(*part)].astype(np.float64) for part in columns)
    return tuple(each.reshape(tokens, _HEADS, -1) for each in wide), (q, k, v)
