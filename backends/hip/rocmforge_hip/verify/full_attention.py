"""Checks of attention without a cache: all tokens of a text, or all patches of a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.models.config import alibi_slopes
from rocmforge.models.weights import present
from rocmforge_hip.device.heads import FULL_HEADS
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cached_attention import HALF, rotated
from rocmforge_hip.verify.cases import Case, Group, error, values_of
from rocmforge_hip.verify.rows import random_values
from rocmforge_hip.verify.workbench import Recipe, Workbench

_FULL: Final = 4e-3  # relative to the largest result

# Tokens of each sequence.
_LENGTHS: Final = (1, 140, 64, 33)

# Patches of each window of a tile of 18 x 20, in the order in which a step has them: windows of
# Qwen2.5-VL are squares of 8 patches, and those at the right and at the bottom are cut.
_WINDOWS: Final = (64, 64, 32, 64, 64, 32, 16, 16, 8)

Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields the windows of a tower, and every size of head with what encoders vary."""
    recipe = Recipe(
        architecture="qwen25vl-tower",
        heads=16,
        kv_heads=16,
        head_dim=80,
        rotary_dim=80,
        tile_windows=True,
    )
    name = f"16 heads of 80, windows of {_WINDOWS} patches of a tile"
    yield Group(recipe, (Case("full attention", name, _FULL, _attend_in_windows),))

    for size in FULL_HEADS:
        yield from _of_encoder(size.key_dim)


def _of_encoder(head_dim: int) -> Iterator[Group]:
    for architecture, window, seen in (
        ("nomic-bert", None, "all"),
        ("nomic-bert", 21, "within reach"),
        ("jina-bert-v2", None, "with slopes"),
    ):
        recipe = Recipe(
            architecture=architecture,
            hidden_size=2 * head_dim,
            heads=2,
            head_dim=head_dim,
            rotary_dim=32,
            window=window,
        )
        name = f"heads of {head_dim}, sequences of {_LENGTHS} tokens, {seen}"
        cases = [Case("full attention", name, _FULL, _attend_all)]
        if seen == "all":
            cases.append(Case("rope", f"heads of {head_dim}", HALF, _rope))
        yield Group(recipe, tuple(cases))
    if head_dim & (head_dim - 1):  # such heads have no norms in an encoder: see `check_sizes`
        return
    recipe = Recipe(
        architecture="gemma-embedding",
        hidden_size=2 * head_dim,
        heads=3,
        kv_heads=1,
        head_dim=head_dim,
        rotary_dim=head_dim,
        window=21,
    )
    name = f"heads of {head_dim}, 3 to 1, sequences of {_LENGTHS} tokens, within reach"
    cases = [
        Case("full attention", name, _FULL, _attend_all),
        Case("rope", f"normed heads of {head_dim}, 3 to 1", HALF, _rope),
    ]
    yield Group(recipe, tuple(cases))


def _rope(bench: Workbench) -> float:
    step = bench.step([(40, 30, [])])
    (q, k, _), (q_part, k_part, _) = _random_qkv(bench, 30)
    values = present(bench.weights.layers[0].attention)
    own = present(bench.model.weights.layers[0].attention)
    got = bench.model.ops.rope(step, q_part, k_part, own.q_norm, own.k_norm, bench.spec)
    if values.q_norm is not None and values.k_norm is not None:
        q = oracle.rms_norm(q, values_of(values.q_norm), bench.config.norm_eps)
        k = oracle.rms_norm(k, values_of(values.k_norm), bench.config.norm_eps)
    want = rotated(bench, q, k, np.arange(10, 40))
    return max(
        error(bench.result(part).reshape(values.shape), values)
        for part, values in zip(got, want, strict=True)
    )


def _attend_all(bench: Workbench) -> float:
    """Returns the attention of all tokens to all of their sequence."""
    return _attend_within(bench, bench.step([(n, n, []) for n in _LENGTHS]), _LENGTHS)


def _attend_in_windows(bench: Workbench) -> float:
    """Returns the attention of all patches of one tile to those of their window."""
    patches, edges = sum(_WINDOWS), np.cumsum((0, *_WINDOWS)).tolist()
    step = bench.step([(patches, patches, [])], tile_windows=edges)
    return _attend_within(bench, step, _WINDOWS)


def _attend_within(bench: Workbench, step: DeviceStep, lengths: Sequence[int]) -> float:
    """Returns the attention of all tokens to so many neighbours, themselves among them."""
    values, parts = _random_qkv(bench, sum(lengths))
    got = bench.result(bench.model.ops.attend_all(step, *parts, bench.spec))
    starts = np.cumsum(lengths)[:-1]
    config, spec = bench.config, bench.spec
    slopes = alibi_slopes(config.layers[0].num_heads) if config.has_alibi else ()
    want = [
        oracle.attention(q, k, v, scale=spec.scale, window=spec.window, causal=False, slopes=slopes)
        for q, k, v in zip(*(np.split(part, starts) for part in values), strict=True)
    ]
    return error(got, np.concatenate(want).reshape(got.shape))


def _random_qkv(
    bench: Workbench, tokens: int
) -> tuple[tuple[Float64, ...], tuple[Activation, Activation, Activation]]:
    """Returns query, key and value: their values, [tokens, heads, head_dim], and the halves."""
    layer = bench.config.layers[0]
    ends = layer.query_features, layer.query_features + layer.key_features
    halves = random_values(tokens, ends[1] + layer.value_features).astype(np.float16)
    parts = np.split(halves.astype(np.float64), ends, axis=1)
    return tuple(part.reshape(tokens, -1, layer.key_dim) for part in parts), bench.qkv(halves)
