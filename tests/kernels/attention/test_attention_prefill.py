"""rf_attention_prefill_*: several queries a sequence over a paged cache, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_hip.device.constants import MAX_SINK_DIM, MAX_SPLIT_DIM
from rocmforge_hip.device.heads import CACHED_HEADS, HeadSize
from tests.support.launches.kernels import Device, check
from tests.support.operands.paged_cache import AttentionCase, PagedBatch

ROWS = 128  # queries of a block: a token and one of the heads that share a kv head
VALUES = 256  # elements of a value whose results a block has
THREADS = 256
UNEVEN_HEADS = [head for head in CACHED_HEADS if not head.is_even]


def prefill(
    device: Device,
    batch: PagedBatch,
    split_tokens: int | None = None,
    split_tiles: int | None = None,
) -> npt.NDArray[np.float32]:
    """The kernel's answer for the sequences with several new tokens; other rows stay NaN.

    With `split_tokens` that of splits of so many keys, put together; with `split_tiles` only those
    of so many tiles of rows of each sequence, its first ones.
    """
    case = batch.case
    lengths = np.diff(batch.query_start)
    sequences = np.flatnonzero(lengths > 1).astype(np.int32)
    tiles = -(-int(lengths.max()) * case.group // ROWS)
    out = device.empty(batch.result_shape, np.float32, "out")
    out_f16 = device.empty(batch.result_shape, np.float16, "out_f16")
    cuts = -(-case.head.value_dim // VALUES)
    splits = 1 if split_tokens is None else -(-int(batch.context_len.max()) // split_tokens)
    split_tiles = 0 if split_tokens is None else tiles if split_tiles is None else split_tiles
    of_tiles = -(-split_tiles * ROWS // case.group)  # tokens that have rows in these
    results = len(sequences) * of_tiles * case.heads * splits
    partial = device.empty((results, case.head.value_dim), np.float32, "partial")
    partial_ml = device.empty((results, 2), np.float32, "partial_ml")
    on_device = device.upload(sequences), device.upload(batch.query_start)
    sinks = None if batch.sinks is None else device.upload(batch.sinks, "sinks")
    device.launch(
        f"rf_attention_prefill_{batch.kind}_{case.head.name}",
        device.upload(batch.q, "q"),
        *(device.upload(part, "cache") for part in batch.cache),
        device.upload(batch.block_table, "block_table"),
        *on_device,
        device.upload(batch.context_len),
        None if batch.seen_ends is None else device.upload(batch.seen_ends, "seen_ends"),
        *(sinks, out, out_f16, partial, partial_ml, split_tiles, splits, split_tokens or 0),
        *(batch.block_table.shape[1], case.heads, case.kv_heads),
        *(case.window or 0, case.scale, case.softcap or 0.0),
        grid=(len(sequences) * case.kv_heads * cuts, tiles + split_tiles * (splits - 1)),
        block=THREADS,
    )
    if split_tokens is not None:
        device.launch(
            "rf_attention_prefill_reduce",
            *(partial, partial_ml, *on_device, sinks, out, out_f16, split_tiles, splits),
            *(case.kv_heads, case.head.value_dim),
            grid=(case.heads, min(of_tiles, int(lengths.max())), len(sequences)),
            block=-(-case.head.value_dim // 64) * 64,
        )
    result = out.get()
    check(out_f16.get(), result.astype(np.float16).astype(np.float64), rtol=1e-3, atol=1e-7)
    return result


def assert_right(
    device: Device,
    case: AttentionCase,
    *,
    int8: bool = False,
    packed: bool = False,
    split_tokens: int | None = None,
    split_tiles: int | None = None,
) -> None:
    batch = PagedBatch(case, int8, packed=packed)
    expected = batch.expected()
    for sequence in batch.sequences_with([1]):
        expected[batch.query_start[sequence]] = np.nan  # decode's rows stay poison
    # The weights are rounded to float16 for the second product.
    actual = prefill(device, batch, split_tokens, split_tiles)
    check(actual, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("head", CACHED_HEADS, ids=lambda head: head.name)
def test_every_variant(device: Device, head: HeadSize, int8: bool) -> None:
    case = AttentionCase(((37, 9),), head_dim=head.key_dim, value_dim=head.value_dim, group=2)
    assert_right(device, case, int8=int8)


@pytest.mark.parametrize(
    ("head_dim", "split_tokens"), [(64, None), (64, 64), (128, None), (128, 64)]
)
def test_values_of_four_bits(device: Device, head_dim: int, split_tokens: int | None) -> None:
    case = AttentionCase(((70, 9), (150, 20)), head_dim=head_dim, kv_heads=2, group=2)
    assert_right(device, case, packed=True, split_tokens=split_tokens)


@pytest.mark.parametrize("head", UNEVEN_HEADS, ids=lambda head: head.name)
def test_values_of_another_size_than_keys(device: Device, head: HeadSize) -> None:
    """Several heads of both kinds and blocks: a wrong stride reads a neighbour's row."""
    case = AttentionCase(
        ((70, 5), (33, 2)), head_dim=head.key_dim, value_dim=head.value_dim, kv_heads=2, group=3
    )
    assert_right(device, case)


# context, new tokens; group 1, so that rows are tokens
CHUNKS = {
    "two_tokens": (2, 2),
    "one_tile_of_queries": (16, 16),
    "tile_plus_one": (17, 17),
    "one_tile_of_keys": (64, 64),
    "tile_of_keys_plus_one": (65, 65),
    "one_block_of_rows": (128, 128),
    "block_of_rows_plus_one": (129, 129),
    "chunk_after_prefix": (100, 20),
    "chunk_after_long_prefix_ends_a_tile": (192, 33),
}


@pytest.mark.parametrize(("context", "new"), CHUNKS.values(), ids=CHUNKS.keys())
def test_chunks(device: Device, context: int, new: int) -> None:
    assert_right(device, AttentionCase(((context, new),), group=1))


@pytest.mark.parametrize("head_dim", [128, 256])
def test_many_tiles_of_keys(device: Device, head_dim: int) -> None:
    assert_right(device, AttentionCase(((150, 5),), head_dim=head_dim, group=1))


def test_several_blocks_of_rows_of_large_heads(device: Device) -> None:
    """All waves of a block have rows, and those of the last block some or none."""
    assert_right(device, AttentionCase(((210, 150),), head_dim=256, group=1))


@pytest.mark.parametrize(
    ("kv_heads", "group"), [(2, 1), (2, 3), (1, 7), (1, 16)], ids=lambda count: str(count)
)
def test_gqa_groups(device: Device, kv_heads: int, group: int) -> None:
    assert_right(device, AttentionCase(((25, 11),), kv_heads=kv_heads, group=group))


@pytest.mark.parametrize(
    ("context", "new", "window"),
    [(90, 40, 1), (90, 40, 20), (140, 70, 64), (140, 70, 65), (60, 30, 200)],
    ids=["itself", "within_a_tile", "whole_tile", "tile_plus_one", "longer_than_context"],
)
def test_window(device: Device, context: int, new: int, window: int) -> None:
    assert_right(device, AttentionCase(((context, new),), group=1, window=window))


def test_softcap(device: Device) -> None:
    assert_right(device, AttentionCase(((70, 20),), group=2, softcap=3.0))


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("window", [None, 20])
def test_sinks(device: Device, window: int | None, int8: bool) -> None:
    """Far below the scores, among them, above them, and far above them."""
    sinks = (-1e4, 1.0, 3.0, 7.0, -2.0, 200.0)
    case = AttentionCase(
        ((40, 40), (90, 7)), kv_heads=2, group=3, window=window, softcap=9.0, sinks=sinks
    )
    assert_right(device, case, int8=int8)


def test_sinks_of_the_largest_heads_that_may_have_them(device: Device) -> None:
    case = AttentionCase(((40, 9),), head_dim=MAX_SINK_DIM, group=2, sinks=(2.0, 5.0))
    assert_right(device, case)


def test_sequences_of_different_lengths(device: Device) -> None:
    assert_right(device, AttentionCase(((40, 40), (33, 1), (8, 8), (150, 3), (70, 1)), group=2))


@pytest.mark.parametrize("int8", [False, True], ids=["f16", "int8"])
@pytest.mark.parametrize("split_tokens", [64, 128])
def test_splits_of_the_keys(device: Device, split_tokens: int, int8: bool) -> None:
    """One split that some rows do not see, one that no row of a sequence sees, and one alone."""
    case = AttentionCase(((200, 9), (70, 1), (130, 70), (60, 20)), kv_heads=2, group=3)
    assert_right(device, case, int8=int8, split_tokens=split_tokens)


@pytest.mark.parametrize("head_dim", [64, MAX_SPLIT_DIM])
def test_splits_of_the_smallest_and_the_largest_heads(device: Device, head_dim: int) -> None:
    assert_right(device, AttentionCase(((150, 5),), head_dim=head_dim, group=2), split_tokens=64)


@pytest.mark.parametrize("split_tiles", [1, 2, 5])
def test_splits_of_some_tiles(either: Device, split_tiles: int) -> None:
    """Of seven tiles, of two, one of which is not full, of one, and of a row that is no chunk.

    The second tile begins within a token.
    """
    case = AttentionCase(((300, 280), (90, 70), (200, 9), (40, 1)), kv_heads=2, group=3)
    assert_right(either, case, split_tokens=64, split_tiles=split_tiles)


def test_splits_of_some_tiles_of_large_heads_with_windows_and_images(either: Device) -> None:
    case = AttentionCase(
        ((300, 280),), head_dim=256, group=2, window=100, images=(range(130, 290),)
    )
    assert_right(either, case, split_tokens=64, split_tiles=3)


def test_splits_with_sinks_windows_and_caps(device: Device) -> None:
    """The windows of the last rows begin behind the first split."""
    case = AttentionCase(((200, 90),), group=3, window=70, softcap=9.0, sinks=(1.0, 7.0, -2.0))
    assert_right(device, case, split_tokens=64)


IMAGES = {
    "in_a_tile_of_keys": (((100, 40),), (range(70, 90),)),
    "over_tiles_of_keys_and_waves": (((200, 190),), (range(50, 180),)),
    "from_the_first_to_the_last_row": (((150, 150),), (range(150),)),
    "whose_beginning_is_cached": (((200, 90),), (range(40, 170),)),
    "in_some_sequences": (((90, 60), (33, 1), (70, 70)), (range(35, 80), range(0), range(2, 66))),
}


@pytest.mark.parametrize("window", [None, 20, 100])
@pytest.mark.parametrize(("sequences", "images"), IMAGES.values(), ids=IMAGES.keys())
def test_images_whose_rows_see_each_other_both_ways(
    device: Device,
    sequences: tuple[tuple[int, int], ...],
    images: tuple[range, ...],
    window: int | None,
) -> None:
    case = AttentionCase(sequences, kv_heads=1, group=2, window=window, images=images)
    assert_right(device, case)


@pytest.mark.parametrize("head_dim", [128, 256])
def test_images_with_large_heads_an_int8_cache_and_a_cap(device: Device, head_dim: int) -> None:
    case = AttentionCase(
        ((150, 120),), head_dim=head_dim, group=2, softcap=9.0, window=40, images=(range(40, 140),)
    )
    assert_right(device, case, int8=True)


@pytest.mark.parametrize("window", [None, 30])
def test_splits_of_the_keys_of_images(device: Device, window: int | None) -> None:
    """One split is seen by nothing but what stands before it in an image."""
    case = AttentionCase(((300, 180),), group=2, window=window, images=(range(130, 290),))
    assert_right(device, case, split_tokens=64)


def test_large_scores_do_not_overflow(device: Device) -> None:
    batch = PagedBatch(AttentionCase(((70, 20),), group=1), int8=False)
    batch.q *= np.float16(100)
    check(prefill(device, batch), batch.expected(), rtol=5e-3, atol=5e-3)


def test_a_token_gives_the_same_in_any_chunk(device: Device) -> None:
    """The last token of a chunk is what it is when its chunk has only two tokens."""
    whole = PagedBatch(AttentionCase(((90, 30),), group=1), int8=False)
    short = PagedBatch(AttentionCase(((90, 2),), group=1), int8=False)
    short.q[:] = whole.q[-2:]
    short.block_table, short.k, short.v = whole.block_table, whole.k, whole.v
    np.testing.assert_array_equal(prefill(device, short), prefill(device, whole)[-2:])


# sequences, other fields of the case, keys of a split; tiles have 128 keys, or 64 of large heads
IN_WARPGROUPS: dict[str, tuple[tuple[tuple[int, int], ...], dict[str, Any], int | None]] = {
    "several_tiles_of_keys": (((300, 70),), {"group": 1}, None),
    "ragged_sequences": (((128, 128), (33, 1), (9, 9), (129, 3)), {"group": 2}, None),
    "window": (((200, 140),), {"group": 1, "window": 65}, None),
    "sinks_and_caps": (
        ((40, 40), (290, 7)),
        {"kv_heads": 2, "group": 3, "softcap": 9.0, "sinks": (-1e4, 1.0, 3.0, 7.0, -2.0, 200.0)},
        None,
    ),
    "splits": (((300, 9), (70, 1), (130, 70)), {"kv_heads": 2, "group": 3}, 128),
    "image": (((200, 190),), {"group": 2, "images": (range(50, 180),)}, None),
}


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    ("sequences", "fields", "split_tokens"), IN_WARPGROUPS.values(), ids=IN_WARPGROUPS.keys()
)
def test_warpgroups(
    hopper: Device,
    sequences: tuple[tuple[int, int], ...],
    fields: dict[str, Any],
    split_tokens: int | None,
    head_dim: int,
) -> None:
    """Prefill on the matrix instructions of Hopper GPUs."""
    case = AttentionCase(sequences, head_dim=head_dim, **fields)
    assert_right(hopper, case, split_tokens=split_tokens)
