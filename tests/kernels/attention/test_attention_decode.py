"""rf_attention_decode_*: one query a sequence over a paged cache, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_hip.device.constants import MERGE_SUMS, NARROW_HEAD_DIM
from rocmforge_hip.device.heads import CACHED_HEADS, HeadSize
from rocmforge_hip.run.teams import Teams, form_teams
from rocmforge_hip.weights.formats import round_up
from tests.support.launches.kernels import Device, DeviceArray, Part, check
from tests.support.operands.activations import BLOCK, SCALE_DTYPE, QuantisedActivation, quantise
from tests.support.operands.paged_cache import BLOCK_TOKENS, AttentionCase, PagedBatch

WAVES = 4
MORE_WAVES = 8
EPS = 1e-6
UNEVEN_HEADS = [head for head in CACHED_HEADS if not head.is_even]


@dataclass(frozen=True)
class New:
    """The products of the new tokens, which attention is to rotate and to store."""

    queries: Sequence[DeviceArray | Part | None]  # with keys, values, norms, cosine and sine
    strides: Sequence[int]
    rotary_dim: int
    neox: int
    norms_values: int = 0
    rotates_first: int = 0
    joint_norms: bool = False  # of all heads of a row together


def decode(
    device: Device,
    batch: PagedBatch,
    *,
    split_tokens: int = 1024,
    group_tile: int = 4,
    q: DeviceArray | None = None,
    cache: Sequence[DeviceArray] | None = None,
    new: New | None = None,
    merges: bool = True,
    teams: Teams | None = None,
    room: int = 0,
    found: DeviceArray | None = None,
    waves: int = WAVES,
) -> npt.NDArray[np.float32]:
    """The kernel's answer for the sequences with one new token; other rows stay NaN.

    `q` and `cache` are used in place of the batch's. Without `merges`, another kernel puts the
    splits together. With `teams`, what those share is read once. `room`: tokens of the longest
    context that the launch has splits for. `found`: where splits write their maximum and sum.
    `waves`: of a block, which decide on the kernel.
    """
    case = batch.case
    sequences = batch.sequences_with([1])
    span = max(int(batch.context_len[sequences].max()), room)
    if case.window is not None:
        span = min(span, case.window + BLOCK_TOKENS - 1)
    splits = -(-span // split_tokens) + (teams is not None)
    tiles = -(-case.group // group_tile)
    window = case.window or 0

    ids, starts = device.upload(sequences), device.upload(batch.query_start)
    contexts = device.upload(batch.context_len, "context_len")
    results, value_dim = batch.result_shape, case.head.value_dim
    out = device.empty(results, np.float32, "out")
    out_f16 = device.empty(results, np.float16, "out_f16")
    out_q, out_q_scale = None, None
    if value_dim % BLOCK == 0:
        columns = case.heads * value_dim
        out_q = device.empty((2, len(batch.q), columns), np.int8, "q")
        out_q_scale = device.empty((2, len(batch.q), columns // BLOCK), SCALE_DTYPE, "q_scale")
    sinks = None if batch.sinks is None else device.upload(batch.sinks, "sinks")
    outputs = (out, out_f16, out_q, out_q_scale, int(np.prod(results)))  # with two slices
    shape = (len(sequences), case.heads, splits)
    partial = device.empty((*shape, value_dim), np.float32, "partial")
    partial_ml = found or device.empty((*shape, 2), np.float32, "partial_ml")
    arrived = device.upload(np.zeros((len(sequences), case.kv_heads * tiles), np.uint32), "arrived")
    kind = batch.kind if teams is None else f"teams_{batch.kind}"
    if new is not None and new.joint_norms:
        kind = f"joint_{kind}"
    if waves > WAVES:
        kind = f"w{waves}_{kind}"
    of_teams = None if teams is None else device.upload(teams.rows, "teams")
    device.launch(
        f"rf_attention_decode_{kind}_{case.head.name}_g{group_tile}",
        *((q or device.upload(batch.q, "q"), *[None] * 7) if new is None else (None, *new.queries)),
        *(cache or [device.upload(part, "cache") for part in batch.cache]),
        device.upload(batch.block_table, "block_table"),
        *(ids, starts, contexts, *([of_teams] if teams else []), sinks, *outputs),
        *(partial, partial_ml, arrived if merges else None),
        *((0, 0, 0) if new is None else new.strides),
        *(batch.block_table.shape[1], case.heads, case.kv_heads),
        *((0, 0, 0) if new is None else (new.rotary_dim, new.neox, new.norms_values)),
        *(window, split_tokens, EPS, case.scale, case.softcap or 0.0),
        0 if new is None else new.rotates_first,
        grid=(case.kv_heads * tiles, splits, len(sequences)),
        block=waves * device.wave,
    )
    if splits > 1 and not merges:
        device.launch(
            "rf_attention_decode_reduce",
            *(partial, partial_ml, ids, starts, contexts, of_teams, sinks, *outputs),
            *(splits, value_dim, window, split_tokens),
            grid=(case.heads, len(sequences)),
            block=round_up(value_dim // 4 * MERGE_SUMS, device.wave),
        )
    assert not arrived.get().any()
    result = out.get()
    check(out_f16.get(), result.astype(np.float16).astype(np.float64), rtol=1e-3, atol=1e-7)
    if out_q is not None and out_q_scale is not None:
        rows = batch.query_start[sequences[batch.context_len[sequences] > 0]]
        written = QuantisedActivation(out_q.get()[:, rows], out_q_scale.get()[:, rows])
        values = result.reshape(len(result), -1)[rows]
        expected = quantise(values)
        # A value that lies next to a half may round either way.
        assert np.abs(written.q[0].astype(int) - expected.q[0]).max() <= 1
        check(written.scales["scale"][0], expected.scales["scale"][0], rtol=1e-6)
        check(written.values(), values.astype(np.float64), atol=float(np.abs(values).max()) * 2e-5)
    return result


def assert_right(
    device: Device,
    case: AttentionCase,
    *,
    int8: bool = False,
    packed: bool = False,
    split_tokens: int = 1024,
    group_tile: int = 4,
    waves: int = WAVES,
) -> None:
    batch = PagedBatch(case, int8, packed=packed)
    attend = partial(decode, device, batch, split_tokens=split_tokens, group_tile=group_tile)
    actual, merged_apart = (attend(merges=merges, waves=waves) for merges in (True, False))
    np.testing.assert_array_equal(actual, merged_apart)
    rows = batch.query_start[batch.sequences_with([1])]
    check(actual[rows], batch.expected()[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize(
    ("head", "group_tile"),
    [(head, group) for head in CACHED_HEADS for group in head.groups],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_variant(device: Device, head: HeadSize, group_tile: int, int8: bool) -> None:
    case = AttentionCase(
        ((37, 1),), head_dim=head.key_dim, value_dim=head.value_dim, group=group_tile
    )
    assert_right(device, case, int8=int8, group_tile=group_tile)


@pytest.mark.parametrize(
    ("head", "group_tile"),
    [(head, group) for head in CACHED_HEADS if head.is_common for group in head.groups],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("split_tokens", [32, 1024])
def test_values_of_four_bits(
    device: Device, head: HeadSize, group_tile: int, split_tokens: int
) -> None:
    case = AttentionCase(
        ((70, 1), (33, 1)), head_dim=head.key_dim, kv_heads=2, group=group_tile - 1, window=60
    )
    assert_right(device, case, packed=True, split_tokens=split_tokens, group_tile=group_tile)


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("head", UNEVEN_HEADS, ids=lambda head: head.name)
def test_values_of_another_size_than_keys(device: Device, head: HeadSize, int8: bool) -> None:
    """Several heads of both kinds, blocks and splits: a wrong stride reads a neighbour's row."""
    case = AttentionCase(
        ((70, 1), (33, 1)), head_dim=head.key_dim, value_dim=head.value_dim, kv_heads=2, group=3
    )
    assert_right(device, case, int8=int8, split_tokens=32)


CONTEXTS = {
    "one_token": 1,
    "one_block": BLOCK_TOKENS,
    "one_block_plus_one": BLOCK_TOKENS + 1,
    "every_wave_has_one_step": 64,
    "waves_with_unequal_steps": 100,
    "many_blocks": 200,
}


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())
def test_contexts(device: Device, context: int, int8: bool) -> None:
    assert_right(device, AttentionCase(((context, 1),)), int8=int8)


@pytest.mark.parametrize(
    ("kv_heads", "group", "group_tile"),
    [(3, 1, 4), (2, 3, 4), (1, 7, 8), (2, 9, 8), (1, 16, 8)],
    ids=["no_groups", "tile_not_full", "seven", "second_tile_has_one", "two_full_tiles"],
)
def test_gqa_groups(device: Device, kv_heads: int, group: int, group_tile: int) -> None:
    case = AttentionCase(((41, 1),), kv_heads=kv_heads, group=group)
    assert_right(device, case, group_tile=group_tile)


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize(
    "context", [32, 33, 64, 65, 127, 129], ids=lambda context: f"context_{context}"
)
def test_split_context(device: Device, context: int, int8: bool) -> None:
    assert_right(device, AttentionCase(((context, 1),)), int8=int8, split_tokens=32)


@pytest.mark.parametrize("head_dim", [80, 256, 512])
def test_reduction_of_head_sizes(device: Device, head_dim: int) -> None:
    case = AttentionCase(((150, 1),), head_dim=head_dim, group=1)
    assert_right(device, case, split_tokens=32)


def test_sequences_of_one_batch_need_different_numbers_of_splits(device: Device) -> None:
    case = AttentionCase(((10, 1), (140, 1), (64, 1), (1, 1)), group=2)
    assert_right(device, case, split_tokens=64)


@pytest.mark.parametrize("merges", [True, False], ids=["at_once", "apart"])
@pytest.mark.parametrize(
    ("contexts", "splits"),
    [((700, 3, 257), (6, 1, 5)), ((140, 512), (5, 8)), ((2048,), (8,)), ((1,), (1,))],
)
def test_a_context_with_more_room_than_it_needs_is_cut_evenly(
    device: Device, contexts: tuple[int, ...], splits: tuple[int, ...], merges: bool
) -> None:
    """Of 8 splits of 256 tokens, 700 tokens fill 6 with 128 each, where 256 each would fill 3."""
    case = AttentionCase(tuple((each, 1) for each in contexts), kv_heads=1)
    batch = PagedBatch(case, int8=False)
    found = device.empty((len(contexts), case.heads, 8, 2), np.float32, "partial_ml")
    got = decode(device, batch, split_tokens=256, merges=merges, room=8 * 256, found=found)
    check(got, batch.expected(), rtol=1e-4, atol=1e-5)
    used = np.isfinite(found.get()[:, 0, :, 0]).sum(axis=-1)
    assert [max(count, 1) for count in used.tolist()] == list(splits)


@pytest.mark.parametrize(
    ("context", "window"),
    [(90, 1), (90, 20), (96, 32), (90, 33), (90, 200)],
    ids=["itself", "part_of_a_block", "whole_block", "block_plus_one", "longer_than_context"],
)
@pytest.mark.parametrize("split_tokens", [32, 1024])
def test_window(device: Device, context: int, window: int, split_tokens: int) -> None:
    case = AttentionCase(((context, 1),), group=2, window=window)
    assert_right(device, case, split_tokens=split_tokens)


@pytest.mark.parametrize("split_tokens", [32, 1024])
def test_softcap(device: Device, split_tokens: int) -> None:
    case = AttentionCase(((70, 1),), group=2, softcap=3.0)
    assert_right(device, case, split_tokens=split_tokens)


# Far below the scores, among them, above them, and so far above that nothing is left of the values.
SINKS = (-1e4, 1.0, 3.0, 7.0, -2.0, 0.0, 200.0, 20.0, 2.0)


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("split_tokens", [32, 1024])
@pytest.mark.parametrize(("kv_heads", "group", "group_tile"), [(2, 4, 4), (1, 8, 8), (1, 9, 8)])
def test_sinks(
    device: Device, kv_heads: int, group: int, group_tile: int, split_tokens: int, int8: bool
) -> None:
    """A sink counts once, in however many splits a context is."""
    case = AttentionCase(
        ((1, 1), (33, 1), (150, 1)), kv_heads=kv_heads, group=group, sinks=SINKS[: kv_heads * group]
    )
    assert_right(device, case, int8=int8, split_tokens=split_tokens, group_tile=group_tile)


@pytest.mark.parametrize("split_tokens", [32, 1024])
def test_sinks_and_a_window(either: Device, split_tokens: int) -> None:
    case = AttentionCase(((90, 1), (300, 1)), head_dim=128, group=8, window=128, sinks=SINKS[:8])
    assert_right(either, case, split_tokens=split_tokens, group_tile=8)


def test_sequences_with_more_new_tokens_are_left_to_prefill(device: Device) -> None:
    assert_right(device, AttentionCase(((20, 5), (33, 1), (8, 8), (40, 1)), group=1))


def test_a_padded_sequence_is_skipped(device: Device) -> None:
    batch = PagedBatch(AttentionCase(((20, 1), (30, 1)), group=1), int8=False)
    expected = batch.expected()
    batch.context_len[0] = 0
    expected[0] = np.nan  # poison: nothing was written
    check(decode(device, batch), expected, rtol=1e-4, atol=1e-5)


def test_large_scores_do_not_overflow(device: Device) -> None:
    batch = PagedBatch(AttentionCase(((70, 1),), group=1), int8=False)
    batch.q *= np.float16(200)
    check(decode(device, batch), batch.expected(), rtol=1e-3, atol=1e-4)


def test_a_sequence_gives_the_same_bits_in_any_batch(device: Device) -> None:
    alone = PagedBatch(AttentionCase(((130, 1),)), int8=False)
    batch = PagedBatch(AttentionCase(((130, 1), (200, 1))), int8=False, seed=6)
    batch.q[0] = alone.q[0]
    used = -(-130 // BLOCK_TOKENS)
    batch.k[batch.block_table[0, :used]] = alone.k[alone.block_table[0, :used]]
    batch.v[batch.block_table[0, :used]] = alone.v[alone.block_table[0, :used]]
    first = decode(device, alone, split_tokens=64)[0]
    second = decode(device, batch, split_tokens=64)[0]
    np.testing.assert_array_equal(first, second)


ROTATIONS = {  # head_dim, value_dim, kv_heads, group, group_tile, rotary_dim, neox, norms, context
    "neox": (64, 64, 2, 3, 4, 64, 1, "", (70, 32, 33, 1)),
    "eight_heads": (128, 128, 1, 8, 8, 128, 1, "before_rope", (150, 32, 33, 1)),
    # Two blocks put the same key into the cache.
    "ten_heads": (64, 64, 2, 10, 8, 64, 1, "before_rope", (70, 32, 33, 1)),
    "three_heads": (128, 128, 2, 3, 4, 64, 0, "", (70, 17)),
    "normal_partial": (80, 80, 1, 2, 4, 32, 0, "", (40,)),
    "smaller_values": (192, 128, 2, 1, 4, 192, 1, "before_rope", (65,)),
    "wide": (256, 256, 1, 8, 8, 64, 0, "", (33,)),
    "widest": (512, 512, 2, 3, 4, 128, 1, "before_rope", (70, 32, 33, 1)),
    "six_of_the_widest": (512, 512, 1, 6, 4, 128, 1, "", (40, 65)),
    "no_rotation": (96, 96, 1, 4, 8, 0, 0, "", (64,)),
    "norms_behind_rope": (128, 128, 2, 4, 4, 128, 1, "behind_rope", (70, 33)),
    "norms_behind_some_rope": (64, 64, 1, 5, 8, 32, 0, "behind_rope", (40,)),
    "joint_norms": (128, 128, 2, 3, 4, 128, 1, "joint", (70, 32, 33, 1)),
    "joint_norms_of_heads_alone": (64, 64, 3, 1, 4, 64, 0, "joint", (40, 65)),
    "joint_norms_of_ten_heads": (64, 64, 2, 10, 8, 64, 1, "joint", (33, 64)),
    # A row of queries takes a second round of loads, in which that of keys begins.
    "joint_norms_of_many_heads": (128, 128, 5, 7, 8, 64, 1, "joint", (33, 64)),
    # All of these are no whole number of what threads load at once.
    "joint_norms_of_wide_rows": (128, 128, 33, 1, 4, 128, 1, "joint", (33,)),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ROTATIONS for kind in ("f16", "int8") if name != "three_heads"),
        *((name, "k8v4") for name in ("neox", "eight_heads", "ten_heads", "norms_behind_rope")),
    ],
)
@pytest.mark.parametrize("split_tokens", [32, 1024])
def test_new_tokens_are_rotated_and_stored_first(
    device: Device, name: str, split_tokens: int, kind: str
) -> None:
    assert_rotated_and_stored(device, name, split_tokens, kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("eight_heads", kind) for kind in ("f16", "int8", "k8v4")),
        *(("ten_heads", kind) for kind in ("f16", "int8", "k8v4")),
        ("three_heads", "f16"),
        ("norms_behind_rope", "f16"),
        ("joint_norms", "int8"),
        ("joint_norms_of_many_heads", "f16"),
        ("joint_norms_of_heads_alone", "f16"),
        ("widest", "int8"),
    ],
)
@pytest.mark.parametrize("split_tokens", [32, 1024])
def test_old_tokens_are_asked_for_before_the_new_one_is_there(
    hopper: Device, name: str, split_tokens: int, kind: str
) -> None:
    """It lies in a step of its own, in one with others, at the end of a block, and alone."""
    assert_rotated_and_stored(hopper, name, split_tokens, kind)


def assert_rotated_and_stored(
    device: Device, name: str, split_tokens: int, kind: str, waves: int = WAVES
) -> None:
    """Bit for bit as norms, rope_store and then attention, with the same cache in the end.

    Where queries and keys are normed, values are, too.
    """
    key_dim, value_dim, kv_heads, group, tile, rotary, neox, order, contexts = ROTATIONS[name]
    joint, behind = order == "joint", int(order == "behind_rope")
    case = AttentionCase(
        tuple((context, 1) for context in contexts),
        head_dim=key_dim,
        value_dim=value_dim,
        kv_heads=kv_heads,
        group=group,
    )
    batch = PagedBatch(case, kind == "int8", packed=kind == "k8v4")
    rng, tokens = np.random.default_rng(9), len(contexts)
    last = batch.context_len - 1
    where = batch.block_table[np.arange(tokens), last // BLOCK_TOKENS], last % BLOCK_TOKENS
    before = batch.cache
    for part in before:
        part[where[0], :, where[1]] = np.array(-1).astype(part.dtype)
    widths = [case.heads * key_dim, kv_heads * key_dim, kv_heads * value_dim]
    values = rng.standard_normal((tokens, sum(widths))).astype(np.float32)
    parts, normed = (parts_of(device, values, widths) for _ in "ab")
    norms = [
        device.upload(rng.standard_normal(width if joint else key_dim).astype("f4"))
        if order
        else None
        for width in widths[:2]
    ]
    angles = rng.uniform(0, 6, (max(contexts), rotary // 2))
    tables = [device.upload(table(angles).astype(np.float32)) for table in (np.cos, np.sin)]
    strides = [sum(widths)] * 3

    stored = [device.upload(part, "cache") for part in before]
    q = device.empty(batch.q.shape, np.float16, "q")
    if joint:
        device.launch(
            "rf_rms_norm_columns",
            *(normed[0], norms[0], strides[0], widths[0], normed[1], norms[1], strides[1]),
            *(widths[1], EPS),
            grid=(tokens, 2),
            block=round_up(-(-widths[0] // 16), device.wave),
        )
    device.launch(
        f"rf_rope_store_{'wide_' if key_dim > NARROW_HEAD_DIM else ''}{kind}",
        *(*normed, *((None, None) if joint else norms), *tables, None),
        *(device.upload(last.astype(np.int32)),),
        *(device.upload((where[0] * BLOCK_TOKENS + where[1]).astype(np.int64)), q, *stored),
        *(*strides, case.heads, kv_heads, key_dim, value_dim, rotary, neox, behind),
        *(int(order != ""), EPS),
        grid=(tokens, -(-(case.heads + 2 * kv_heads) // 4)),
        block=4 * device.wave,
    )
    attend = partial(decode, device, batch, split_tokens=split_tokens, group_tile=tile, waves=waves)
    wanted = attend(q=q, cache=stored, merges=False)
    fresh = [device.upload(part, "cache") for part in before]
    new = New((*parts, *norms, *tables), strides, rotary, neox, int(order != ""), behind, joint)
    got = attend(cache=fresh, new=new)
    np.testing.assert_array_equal(got, wanted)
    for own, other in zip(fresh, stored, strict=True):
        np.testing.assert_array_equal(own.get(), other.get())


def parts_of(device: Device, rows: npt.NDArray[np.float32], widths: Sequence[int]) -> list[Part]:
    """Columns of so many elements, of a matrix of their own."""
    matrix = device.upload(rows, "qkv")
    return [matrix.part(first) for first in (0, *np.cumsum(widths[:-1]).tolist())]


@pytest.mark.parametrize("name", [name for name, case in ROTATIONS.items() if case[7]])
def test_norms_of_new_tokens(either: Device, name: str) -> None:
    """Against float64, but for the rounding of queries, keys and values to halves."""
    device = either
    key_dim, value_dim, kv_heads, group, tile, rotary, neox, order, contexts = ROTATIONS[name]
    case = AttentionCase(
        tuple((context, 1) for context in contexts),
        head_dim=key_dim,
        value_dim=value_dim,
        kv_heads=kv_heads,
        group=group,
    )
    batch = PagedBatch(case, int8=False)
    rng, tokens, joint = np.random.default_rng(9), len(contexts), order == "joint"
    last = batch.context_len - 1
    widths = [case.heads * key_dim, kv_heads * key_dim, kv_heads * value_dim]
    rows = rng.standard_normal((tokens, sum(widths)))
    weights = [rng.standard_normal(width if joint else key_dim) for width in widths[:2]]
    angles = rng.uniform(0, 6, (max(contexts), rotary // 2))
    cosine, sine = (table(angles[last])[:, None] for table in (np.cos, np.sin))

    half = rotary // 2
    halves = slice(half), slice(half, rotary)
    first, second = halves if neox else (slice(0, rotary, 2), slice(1, rotary, 2))

    def turned(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        result = x.copy()
        result[..., first] = x[..., first] * cosine - x[..., second] * sine
        result[..., second] = x[..., first] * sine + x[..., second] * cosine
        return result

    def normed(
        x: npt.NDArray[np.float64], weight: npt.NDArray[np.float64] | float
    ) -> npt.NDArray[np.float64]:
        mean: npt.NDArray[np.float64] = np.square(x).mean(axis=-1, keepdims=True)
        result: npt.NDArray[np.float64] = x / np.sqrt(mean + EPS) * weight
        return result

    q, k, v = np.split(rows, np.cumsum(widths[:-1]), axis=1)
    if joint:
        q, k = normed(q, weights[0]), normed(k, weights[1])
    q, k, v = (
        x.reshape(tokens, -1, dim) for x, dim in ((q, key_dim), (k, key_dim), (v, value_dim))
    )
    if order == "before_rope":
        q, k = normed(q, weights[0]), normed(k, weights[1])
    q, k = turned(q), turned(k)
    if order == "behind_rope":
        q, k = normed(q, weights[0]), normed(k, weights[1])
    where = batch.block_table[np.arange(tokens), last // BLOCK_TOKENS], last % BLOCK_TOKENS
    batch.k[where[0], :, where[1]] = batch.v[where[0], :, where[1]] = -1
    cache = [device.upload(part, "cache") for part in batch.cache]
    batch.q[:], batch.k[where[0], :, where[1]] = q, k
    batch.v[where[0], :, where[1]] = normed(v, 1.0)
    new = New(
        (
            *parts_of(device, rows.astype(np.float32), widths),
            *(device.upload(weight.astype(np.float32)) for weight in weights),
            *(device.upload(table(angles).astype(np.float32)) for table in (np.cos, np.sin)),
        ),
        [sum(widths)] * 3,
        *(rotary, neox, 1, int(order == "behind_rope"), joint),
    )
    got = decode(device, batch, split_tokens=32, group_tile=tile, cache=cache, new=new)
    check(got, batch.expected(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("is_padded", [False, True], ids=["", "padded"])
def test_new_queries_alone_are_rotated_for_a_cache_that_another_layer_fills(
    either: Device, int8: bool, is_padded: bool
) -> None:
    device = either
    batch = PagedBatch(AttentionCase(((70, 1), (33, 1)), head_dim=128), int8)
    if is_padded:
        batch.context_len[1] = 0
    case, rng, last = batch.case, np.random.default_rng(9), batch.context_len - 1
    rows = rng.standard_normal((2, case.heads * 128)).astype(np.float32)
    norm = device.upload(rng.standard_normal(128).astype(np.float32))
    angles = rng.uniform(0, 6, (70, 64))
    tables = [device.upload(table(angles).astype(np.float32)) for table in (np.cos, np.sin)]
    strides, queries = (rows.shape[1], 0, 0), device.upload(rows, "queries")

    q = device.empty(batch.q.shape, np.float16, "q")
    device.launch(
        f"rf_rope_store_{'int8' if int8 else 'f16'}",
        *(queries, None, None, norm, None, *tables, None),
        *(device.upload(last.clip(0).astype(np.int32)), device.upload(np.zeros(2, np.int64)), q),
        *(None, None, *((None, None) if int8 else ())),
        *(*strides, case.heads, 0, 128, 128, 128, 1, 0, 1, EPS),
        grid=(2, -(-case.heads // 4)),
        block=4 * device.wave,
    )
    wanted = decode(device, batch, q=q)
    cache = [device.upload(part, "cache") for part in batch.cache]
    new = New((queries, None, None, norm, None, *tables), strides, 128, 1, 1)
    np.testing.assert_array_equal(decode(device, batch, cache=cache, new=new), wanted)
    for after, before in zip(cache, batch.cache, strict=True):
        np.testing.assert_array_equal(after.get(), before)


def test_more_splits_than_lanes_and_loads_at_once(device: Device) -> None:
    """What merges them goes several times through all of its loops, and through their ends."""
    assert_right(device, AttentionCase(((2230, 1), (40, 1)), group=1), split_tokens=32)


def test_all_lanes_that_merge_splits_agree(either: Device) -> None:
    """A product that becomes one with the first addition of a sum over a wave had them differ."""
    device = either
    case = AttentionCase(((827, 1),), head_dim=128, kv_heads=2, group=8)
    assert_right(device, case, split_tokens=32, group_tile=8)


def sharing(batch: PagedBatch, shared: dict[int, int], most: int) -> Teams:
    """The teams of a batch once sequences have the first blocks of the one before them.

    Args:
        batch: Changed.
        shared: How many blocks a sequence has of the one before it.
        most: Members of a team.
    """
    for row, blocks in shared.items():
        batch.block_table[row, :blocks] = batch.block_table[row - 1, :blocks]
    decodes = batch.sequences_with([1])
    teams = form_teams(
        batch.block_table[decodes], batch.context_len[decodes], most=most, least=BLOCK_TOKENS
    )
    assert teams is not None
    return teams


TEAMS = {  # group, group_tile, most, kv_heads, contexts, blocks shared with the sequence before
    "one_wave": (4, 4, 8, 2, (100, 70), {1: 2}),
    "all_waves": (4, 4, 8, 1, (100, 70, 99, 130, 65, 66, 67, 68), dict.fromkeys(range(1, 8), 2)),
    "several_teams": (3, 4, 8, 1, (100, 90, 45, 60, 33, 200), {1: 2, 3: 1, 4: 1}),
    "heads_alone": (1, 4, 32, 2, (97, *range(66, 84)), dict.fromkeys(range(1, 19), 2)),
    "eight_heads": (8, 8, 4, 1, (100, 70, 65), {1: 2, 2: 2}),
    "seven_heads": (7, 8, 4, 1, (100, 70, 65), {1: 2, 2: 2}),
    "second_tile_has_one": (9, 8, 4, 1, (100, 70, 65), {1: 2, 2: 2}),
    "context_is_what_is_shared": (4, 4, 8, 1, (65, 64, 96, 66), {1: 2, 2: 2, 3: 2}),
}


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("name", TEAMS)
def test_teams(device: Device, name: str, int8: bool) -> None:
    group, group_tile, most, kv_heads, contexts, shared = TEAMS[name]
    case = AttentionCase(
        tuple((context, 1) for context in contexts), kv_heads=kv_heads, group=group
    )
    batch = PagedBatch(case, int8)
    teams = sharing(batch, shared, most)
    attend = partial(decode, device, batch, group_tile=group_tile, teams=teams)
    for split_tokens in (32, 64):
        merged, apart = (attend(split_tokens=split_tokens, merges=m) for m in (True, False))
        np.testing.assert_array_equal(merged, apart)
        check(merged, batch.expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("split_tokens", [64, 1024])
@pytest.mark.parametrize("head", [head for head in CACHED_HEADS if head.has_w8], ids=str)
def test_blocks_of_eight_waves_attend_to_all_tokens(
    hopper: Device, head: HeadSize, split_tokens: int, int8: bool
) -> None:
    """Of contexts in which some waves of a block have no step, one, or two."""
    contexts = tuple((context, 1) for context in (1, 17, 128, 129, 300))
    case = AttentionCase(contexts, head_dim=head.key_dim, kv_heads=2, group=3)
    assert_right(hopper, case, int8=int8, split_tokens=split_tokens, waves=MORE_WAVES)


def test_blocks_of_eight_waves_know_windows_and_sinks(hopper: Device) -> None:
    sinks = tuple(np.linspace(-2, 2, 8).tolist())
    case = AttentionCase(
        ((70, 1), (300, 1)), head_dim=64, kv_heads=1, group=8, window=100, sinks=sinks
    )
    assert_right(hopper, case, group_tile=8, waves=MORE_WAVES)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("eight_heads", "ten_heads") for kind in ("f16", "int8")),
        *((name, "f16") for name in ("neox", "three_heads", "wide", "norms_behind_rope")),
    ],
)
@pytest.mark.parametrize("split_tokens", [32, 1024])
def test_blocks_of_eight_waves_rotate_and_store_new_tokens_first(
    hopper: Device, name: str, split_tokens: int, kind: str
) -> None:
    assert_rotated_and_stored(hopper, name, split_tokens, kind, MORE_WAVES)
