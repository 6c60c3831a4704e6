"""Checks of rotation, cache and attention to it, for every size of head and type of cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.models.rope_config import RopeStyle
from rocmforge.models.weights import present
from rocmforge_hip.device.constants import BLOCK_TOKENS, MAX_SINK_DIM
from rocmforge_hip.device.heads import CACHED_HEADS, HeadSize
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.step.variants import VARIANTS
from rocmforge_hip.run.block_copies import BlockCopies
from rocmforge_hip.run.teams import form_teams
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error, values_of
from rocmforge_hip.verify.workbench import Recipe, Workbench, blocks_of
from rocmforge_hip.weights.formats import ceil_div

# Relative to the largest value of a head of a token.
HALF: Final = 2.0**-10
_INT8: Final = 0.51 / 127
_INT4: Final = 0.51 / 7
STORED: Final = {"f16": HALF, "int8": _INT8, "k8v4": _INT4}
# Relative to the largest result: decoding is in float32, prefilling in halves.
_DECODE: Final = 2e-4
PREFILL: Final = 5e-3

# Heads of queries and of keys: one block has all that share a key, or two have.
_SHARED: Final = ((6, 2), (10, 1))
# Tokens of each sequence, and how many of the last ones attend. Splits of a context, its last
# block, and a prefill that does not begin at the start are among them.
CONTEXTS: Final = (1, 33, 300, 70)
DECODES: Final = (1, 1, 1)
MIXED: Final = (1, 1, 1, 40)
# Tokens of sequences that have the blocks of the third, and which of its tokens attend.
_IN_TEAMS: Final = (300, 231, 97, 64, 292)
_SPLIT: Final = (1, 1, 40, 30)  # with splits of 64 keys

Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields every kernel, with what else the smallest number of models can vary."""
    for kv_dtype in ("f16", "int8"):
        for index, head in enumerate(CACHED_HEADS):
            if not head.values_in_keys:  # see `latent`
                yield from _of_head(head, kv_dtype, is_odd=bool(index % 2))
            if head.has_w8:
                yield from _of_many_blocks(head, kv_dtype)
    common = [head for head in CACHED_HEADS if head.is_common]
    for head in common:
        for kv_dtype in ("f16", "int8"):
            yield _all_to_one(head, kv_dtype)
            yield from _norms_of_rows(head, kv_dtype)
    for head in common:
        for heads, kv_heads in _SHARED:
            yield _group(
                Recipe(
                    heads=heads,
                    kv_heads=kv_heads,
                    head_dim=head.key_dim,
                    rotary_dim=head.key_dim,
                    kv_dtype="k8v4",
                )
            )
    for kv_dtype in ("f16", "int8"):
        yield from _of_any_head(kv_dtype)


def _of_head(head: HeadSize, kv_dtype: str, *, is_odd: bool) -> Iterator[Group]:
    """Yields few heads of queries to one of keys; and ten, with a window, a softcap and sinks.

    Three or ten, or six where blocks have room for four: of the latter two, two blocks share a key.
    """
    (heads, kv_heads), more = _SHARED if len(head.groups) > 1 else ((6, 1), None)
    yield _group(
        Recipe(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head.key_dim,
            value_dim=head.value_dim,
            rotary_dim=head.key_dim if is_odd else 32,
            rope_style=RopeStyle.NEOX if is_odd else RopeStyle.NORMAL,
            architecture="qwen3" if is_odd else "llama",
            kv_dtype=kv_dtype,
        )
    )
    if more is not None:
        yield _group(
            Recipe(
                heads=more[0],
                kv_heads=more[1],
                head_dim=head.key_dim,
                value_dim=head.value_dim,
                rotary_dim=head.key_dim,
                rope_style=RopeStyle.NORMAL if is_odd else RopeStyle.NEOX,
                kv_dtype=kv_dtype,
                window=50,
                attention_softcap=20.0,
                sinks=head.value_dim <= MAX_SINK_DIM,
            )
        )


def _of_many_blocks(head: HeadSize, kv_dtype: str) -> Iterator[Group]:
    """Yields decodes as of more sequences than there are here, whose blocks have fewer waves."""
    for heads, kv_heads in _SHARED:
        recipe = Recipe(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head.key_dim,
            rotary_dim=head.key_dim,
            kv_dtype=kv_dtype,
            compute_units=1,
        )
        name = f"{kv_dtype}, heads of {head}, {heads} to {kv_heads}, on one compute unit"
        yield Group(recipe, (Case("fused decode attention", name, _DECODE, _decode_fused),))


def _all_to_one(head: HeadSize, kv_dtype: str) -> Group:
    """Returns teams of ten heads that share one; three that do are in `_group`."""
    recipe = Recipe(
        heads=10,
        kv_heads=1,
        head_dim=head.key_dim,
        rotary_dim=head.key_dim,
        kv_dtype=kv_dtype,
    )
    name = f"{kv_dtype}, heads of {head}, 10 to 1"
    return Group(recipe, (Case("decode attention in teams", name, _DECODE, _decode_teams),))


def _norms_of_rows(head: HeadSize, kv_dtype: str) -> Iterator[Group]:
    """Yields norms of all heads together, and with rope and attention in one launch."""
    for heads, kv_heads in _SHARED:
        recipe = Recipe(
            architecture="olmo2",
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head.key_dim,
            rotary_dim=head.key_dim,
            kv_dtype=kv_dtype,
        )
        name = f"{kv_dtype}, heads of {head}, {heads} to {kv_heads}, normed together"
        stored = Case("rope_and_store", name, STORED[kv_dtype], _store)
        yield Group(recipe, (stored, Case("fused decode attention", name, _DECODE, _decode_fused)))


def _of_any_head(kv_dtype: str) -> Iterator[Group]:
    """Yields what does not depend on the size of heads."""
    recipe = Recipe(architecture="hunyuan-moe", kv_dtype=kv_dtype)
    name = f"{kv_dtype}, norms behind rope"
    others = (
        Case("rope_and_store", name, STORED[kv_dtype], _store),
        Case("fused decode attention", name, _DECODE, _decode_fused),
        Case("copy_blocks", f"{kv_dtype}, to the host and back", 0.0, _copy_blocks),
    )
    yield Group(recipe, others)

    recipe = Recipe(architecture="nemotron_h", kv_dtype=kv_dtype)
    case = Case("rope_and_store", f"{kv_dtype}, without rope", STORED[kv_dtype], _store)
    yield Group(recipe, (case,))

    recipe = Recipe(kv_dtype=kv_dtype, sinks=kv_dtype == "f16", least_prefill_split=64)
    name = f"{kv_dtype}, heads of {recipe.head_dim}"
    yield Group(recipe, (Case("split prefill attention", name, PREFILL, _split),))
    recipe = replace(recipe, sinks=False, window=130)
    seeing = (
        Case("split prefill attention", f"{name}, with windows", PREFILL, _split),
        Case("prefill attention", f"{name}, both ways", PREFILL, _both_ways),
    )
    yield Group(recipe, seeing)


def _group(recipe: Recipe) -> Group:
    head = HeadSize(recipe.head_dim, recipe.value_dim or recipe.head_dim)
    name = f"{recipe.kv_dtype}, heads of {head}, {recipe.heads} to {recipe.kv_heads}"
    name += ", with sinks" if recipe.sinks else ""
    stored = STORED[recipe.kv_dtype]
    cases = [
        Case("rope_and_store", name, stored, _store),
        Case("decode attention", name, _DECODE, _decode),
        Case("fused decode attention", name, _DECODE, _decode_fused),
        Case("prefill attention", name, PREFILL, _mixed),
    ]
    if head.is_common and recipe.window is None and recipe.kv_dtype != "k8v4":
        cases.append(Case("decode attention in teams", name, _DECODE, _decode_teams))
    return Group(recipe, tuple(cases))


@dataclass(frozen=True, slots=True)
class _Stored:
    """The arguments of `rope_and_store` in a step of all tokens, and its results."""

    inputs: tuple[Float64, Float64, Float64]  # q, k, v [T, heads, key_dim or value_dim]
    rotated: Float64  # [T, heads, key_dim]
    keys: Float64  # [T, kv_heads, key_dim], as the cache has them
    values: Float64  # [T, kv_heads, value_dim]


def _fill_cache(bench: Workbench) -> _Stored:
    sizes, weights = bench.config.layers[0], present(bench.model.weights.layers[0].attention)
    widths = [sizes.query_features, sizes.key_features, sizes.value_features]
    rng = np.random.default_rng(3)
    tokens = sum(CONTEXTS)
    stacked = rng.standard_normal((tokens, sum(widths))).astype(np.float32)
    rotated = bench.model.ops.rope_and_store(
        fill_step(bench), *bench.qkv(stacked), weights.q_norm, weights.k_norm, bench.spec
    )
    cache = bench.model.ops.caches[0]
    parts = np.split(stacked, np.cumsum(widths)[:-1], axis=1)
    q, k, v = (
        part.astype(np.float64).reshape(tokens, -1, dim)
        for part, dim in zip(parts, (sizes.key_dim, sizes.key_dim, sizes.value_dim), strict=True)
    )
    return _Stored(
        inputs=(q, k, v),
        rotated=bench.result(rotated).reshape(q.shape),
        keys=cached_tokens(bench, cache.keys, cache.key_scale),
        values=cached_tokens(bench, *cache.of_values),
    )


def _copy_blocks(bench: Workbench) -> float:
    """Checks that blocks that went to the host and came back elsewhere have all their bytes."""
    cached, byte = bench.model.ops.cache_arrays, np.dtype(np.uint8)
    num_blocks = cached[0].shape[0]
    arrays = [
        DeviceArray(each.address, (num_blocks, each.nbytes // num_blocks), byte) for each in cached
    ]
    random = np.random.default_rng(5)
    values = [random.integers(0, 256, array.shape, np.uint8) for array in arrays]
    for array, bytes_of in zip(arrays, values, strict=True):
        bench.put(bytes_of, array)
    copies = BlockCopies(bench.device, arrays, BLOCK_TOKENS, 3)
    slots = np.array([2, 0, 1], np.int32)
    copies.start(copies.blocks, np.array([1, 3, 0], np.int32), slots, is_restore=False)
    copies.start(copies.blocks, np.array([0, 1, 2], np.int32), slots, is_restore=True)
    copies.close()
    for array, bytes_of in zip(arrays, values, strict=True):
        bytes_of[[0, 1, 2]] = bytes_of[[1, 3, 0]]
        if (bench.get(array) != bytes_of).any():
            return float("inf")
    return 0.0


def fill_step(bench: Workbench) -> DeviceStep:
    """Returns the step of all tokens, which fills the cache."""
    blocks = blocks_of(CONTEXTS)
    return bench.step([(n, n, of) for n, of in zip(CONTEXTS, blocks, strict=True)])


def cached_tokens(bench: Workbench, data: DeviceArray, scale: DeviceArray | None) -> Float64:
    """Returns the tokens of a cache [blocks, kv_heads, BLOCK_TOKENS, dim], [T, ...]."""
    block, offset = np.concatenate(
        [
            (np.array(of)[np.arange(n) // BLOCK_TOKENS], np.arange(n) % BLOCK_TOKENS)
            for n, of in zip(CONTEXTS, blocks_of(CONTEXTS), strict=True)
        ],
        axis=1,
    )
    found = bench.get(data)[block, :, offset]
    packed = found.dtype == np.uint32
    rows: Float64 = (oracle.nibbles(found) if packed else found).astype(np.float64)
    if scale is not None:
        rows = rows * bench.get(scale)[block, :, offset][..., None]
    return oracle.turned(rows) if packed else rows


def _store(bench: Workbench) -> float:
    config, stored = bench.config, _fill_cache(bench)
    q, k, v = stored.inputs
    layer = present(bench.weights.layers[0].attention)
    positions = np.concatenate([np.arange(n) for n in CONTEXTS])
    rotates_first = config.layers[0].rotates_first
    if rotates_first:
        q, k = rotated(bench, q, k, positions)
    if layer.q_norm is not None and layer.k_norm is not None:
        shapes, norms = (q.shape, k.shape), (values_of(layer.q_norm), values_of(layer.k_norm))
        if config.layers[0].joint_head_norms:
            q, k = (x.reshape(len(x), -1) for x in (q, k))
        q, k = (
            oracle.rms_norm(x, norm, config.norm_eps).reshape(shape)
            for x, norm, shape in zip((q, k), norms, shapes, strict=True)
        )
    if not rotates_first:
        q, k = rotated(bench, q, k, positions)
    values, factor = stored.values, 1.0
    if bench.model.ops.caches[0].of_values[0].dtype == np.uint32:
        values, v, factor = oracle.turned(values), oracle.turned(v), _INT4 / _INT8
    return max(
        weight * error(got, want, np.abs(want).max(axis=-1, keepdims=True))
        for got, want, weight in (
            (stored.rotated, q, factor),
            (stored.keys, k, factor),
            (values, v, 1.0),
        )
    )


def rotated(
    bench: Workbench, q: Float64, k: Float64, positions: npt.NDArray[np.int64]
) -> tuple[Float64, Float64]:
    """Returns queries and keys [T, heads, head_dim] as rope turns them, if the model has rope."""
    if bench.config.rope is None:
        return q, k
    cos, sin = (x[positions].astype(np.float64) for x in (bench.table.cos, bench.table.sin))
    style = bench.config.rope_of(local=False).style
    return oracle.rope(q, cos, sin, style), oracle.rope(k, cos, sin, style)


def _decode(bench: Workbench) -> float:
    return _attend(bench, DECODES)


def _decode_fused(bench: Workbench) -> float:
    """Rotates, stores and attends in one launch, from the last token of each sequence."""
    stored, blocks = _fill_cache(bench), blocks_of(CONTEXTS)
    chunks = [(context, 1, of) for context, of in zip(CONTEXTS, blocks, strict=True)]
    last = np.cumsum(CONTEXTS) - 1
    stacked = np.concatenate([part[last].reshape(len(last), -1) for part in stored.inputs], axis=1)
    step = replace(bench.step(chunks), variant=VARIANTS["fused"])
    own, ops = present(bench.model.weights.layers[0].attention), bench.model.ops
    qkv = bench.qkv(stacked.astype(np.float32))
    q = ops.rope_and_store(step, *qkv, own.q_norm, own.k_norm, bench.spec)
    got = bench.result(ops.attention(step, q, bench.spec, own.sinks))
    queries = stored.rotated[last]
    wanted = _attended(bench, stored, [(context, 1) for context in CONTEXTS], queries)
    return error(got.reshape(wanted.shape), wanted)


def _decode_teams(bench: Workbench) -> float:
    """Attends from sequences that share blocks; splits are merged in the launch or behind it."""
    stored, blocks = _fill_cache(bench), blocks_of(CONTEXTS)[2]
    chunks = [(context, 1, blocks[: ceil_div(context, BLOCK_TOKENS)]) for context in _IN_TEAMS]
    table = np.array([blocks] * len(_IN_TEAMS), np.int32)
    ops = bench.model.ops
    teams = form_teams(
        table, np.array(_IN_TEAMS, np.int32), most=ops.most_of_team, least=BLOCK_TOKENS
    )
    first = sum(CONTEXTS[:2])
    last = first + np.array(_IN_TEAMS) - 1
    queries = stored.rotated[last].astype(np.float16)
    wanted = np.concatenate(
        [
            oracle.attention(
                queries[row][None].astype(np.float64),
                stored.keys[first : token + 1],
                stored.values[first : token + 1],
                scale=bench.spec.scale,
            )
            for row, token in enumerate(last)
        ]
    )
    own, worst = present(bench.model.weights.layers[0].attention), 0.0
    for name in ("plain", "fused"):
        step = replace(bench.step(chunks, teams=teams), variant=VARIANTS[name])
        q = bench.activation(bench.model.arena.rotated, queries.reshape(len(last), -1))
        got = bench.result(ops.attention(step, q, bench.spec, own.sinks))
        worst = max(worst, error(got.reshape(wanted.shape), wanted))
    return worst


def _mixed(bench: Workbench) -> float:
    return _attend(bench, MIXED)


def _split(bench: Workbench) -> float:
    return _attend(bench, _SPLIT)


def _both_ways(bench: Workbench) -> float:
    """Attends from chunks with rows of an image, as long as there are tokens for it."""
    ends = []
    for context, count in zip(CONTEXTS, _SPLIT, strict=True):
        own = np.arange(context - count, context, dtype=np.int32) + 1
        own[3:25] = own[3:25].max(initial=0)
        ends.append(own)
    return _attend(bench, _SPLIT, ends)


def _attend(
    bench: Workbench, new: tuple[int, ...], ends: Sequence[npt.NDArray[np.int32]] | None = None
) -> float:
    stored, sinks = _fill_cache(bench), present(bench.model.weights.layers[0].attention).sinks
    step, q, queries = last_queries(bench, new, ends)
    got = bench.result(bench.model.ops.attention(step, q, bench.spec, sinks))
    wanted = _attended(bench, stored, list(zip(CONTEXTS, new, strict=False)), queries, ends)
    return error(got.reshape(wanted.shape), wanted)


def last_queries(
    bench: Workbench, new: tuple[int, ...], ends: Sequence[npt.NDArray[np.int32]] | None = None
) -> tuple[DeviceStep, Activation, Float64]:
    """Returns a step of the last `new` tokens of each sequence, and their random queries."""
    sizes = bench.config.layers[0]
    queries = np.random.default_rng(4).standard_normal((sum(new), sizes.num_heads, sizes.key_dim))
    halves = queries.astype(np.float16)
    q = bench.activation(bench.model.arena.rotated, halves.reshape(len(halves), -1))
    chunks = list(zip(CONTEXTS, new, blocks_of(CONTEXTS), strict=False))
    seen_ends = () if ends is None else np.concatenate(ends).tolist()
    return bench.step(chunks, seen_ends=seen_ends), q, halves.astype(np.float64)


def _attended(
    bench: Workbench,
    stored: _Stored,
    new: Sequence[tuple[int, int]],
    queries: Float64,
    ends: Sequence[npt.NDArray[np.int32]] | None = None,
) -> Float64:
    own = present(bench.weights.layers[0].attention).sinks
    scores = None if own is None else values_of(own)
    return attended(bench, stored.keys, stored.values, new, queries, scores, ends)


def attended(
    bench: Workbench,
    keys: Float64,
    values: Float64,
    new: Sequence[tuple[int, int]],
    queries: Float64,
    scores: Float64 | None = None,
    ends: Sequence[npt.NDArray[np.int32]] | None = None,
) -> Float64:
    """Returns what queries [T, heads, key_dim] get, the last ones of sequences in the cache.

    Args:
        bench: The model.
        keys: [all tokens, kv_heads, key_dim], as the cache has them.
        values: [all tokens, kv_heads, value_dim].
        new: Tokens of each sequence, and how many of the last ones attend.
        queries: Rotated.
        scores: Of sinks, if there are any.
        ends: Of each sequence, behind the last key that each token sees; None for its own.
    """
    spec = bench.spec
    wanted, start, row = [], 0, 0
    for index, (context, count) in enumerate(new):
        seen = slice(start, start + context)
        wanted.append(
            oracle.attention(
                queries[row : row + count],
                keys[seen],
                values[seen],
                scale=spec.scale,
                softcap=spec.softcap,
                window=spec.window,
                sinks=scores,
                ends=None if ends is None else ends[index],
            )
        )
        start, row = start + context, row + count
    return np.concatenate(wanted)
