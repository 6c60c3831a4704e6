"""Buffers with owners, and the plan of a device's memory."""

from __future__ import annotations

import copy
import pickle
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest

from rocmforge.backend.protocol import LoadOptions
from rocmforge.checkpoint.cache_types import CACHE_TYPES
from rocmforge.errors import OutOfMemory, UnsupportedTensor
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.memory import kv_bytes_per_token
from rocmforge.models.weights import present, take
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceBuffer, HostCopies, Memory, spec
from rocmforge_hip.load import memory_budget
from rocmforge_hip.load.memory_budget import (
    MemoryPlan,
    cache_block_bytes,
    cache_type,
    make_plan,
)
from rocmforge_hip.ops.attention.prefill_splits import KEY_TILE
from rocmforge_hip.ops.geometry import GemmShape, Geometry
from rocmforge_hip.weights.placement import PlannedPart, plan_weights, storages, weight_bytes
from tests.data.models.text import tiny_encoders
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_encoders import write_encoder
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.support.models.hip import fitting
from tests.support.models.options import SMALL

OPTIONS = replace(SMALL, max_batched_tokens=64, kv_blocks=None, memory_utilization=0.5)
MIB = 1 << 20


class FakeDriver:
    """Hands out addresses and remembers which are in use."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self._next = 1 << 20

    def allocate(self, nbytes: int, what: str) -> int:
        address, self._next = self._next, self._next + nbytes
        self.live[address] = nbytes
        return address

    def free(self, address: int) -> None:
        del self.live[address]


@pytest.fixture
def fake() -> FakeDriver:
    return FakeDriver()


def test_bytes_follow_from_shape_and_dtype(fake: FakeDriver) -> None:
    buffer = DeviceBuffer(cast(Driver, fake), spec((3, 5), "f2"), "x")
    assert buffer.nbytes == 30
    assert fake.live == {buffer.array.address: 30}


@pytest.mark.parametrize("rows", [1, 1021])  # by one thread, and by several
def test_copies_of_the_host_are_whole(rows: int) -> None:
    source = np.random.default_rng(rows).standard_normal((rows, 4, 512), np.float32)
    with closing(HostCopies()) as copies:
        halves = np.full((4, rows, 512), np.nan, np.float16)
        copies.copy(halves, source.swapaxes(0, 1))
        again = np.full((rows, 4, 512), np.nan, np.float32)
        copies.copy(again, source)
    assert np.array_equal(halves, source.swapaxes(0, 1).astype(np.float16))
    assert np.array_equal(again, source)


def test_a_buffer_is_freed_once(fake: FakeDriver) -> None:
    buffer = DeviceBuffer(cast(Driver, fake), spec((3,), "f4"), "x")
    buffer.free()
    assert fake.live == {}
    with pytest.raises(AssertionError, match="x is freed twice"):
        buffer.free()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_buffer_cannot_be_copied(copied: object, fake: FakeDriver) -> None:
    buffer = DeviceBuffer(cast(Driver, fake), spec((3,), "f4"), "x")
    with pytest.raises(TypeError, match="cannot be copied"):
        copied(buffer)  # type: ignore[operator]


def test_all_buffers_are_given_back(fake: FakeDriver) -> None:
    memory = Memory(cast(Driver, fake))
    for size in (1, 2, 3):
        memory.device(spec((size,), "f4"), "x")
    for buffer in memory.release():
        buffer.free()
    assert fake.live == {}


def test_parts_of_an_array_stay_inside_it(fake: FakeDriver) -> None:
    array = DeviceBuffer(cast(Driver, fake), spec((4, 8), "f4"), "x").array
    assert array.first(2, 8).nbytes == 64
    assert array.columns(2, 5).address == array.address + 8
    with pytest.raises(AssertionError):
        array.first(5, 8)
    with pytest.raises(AssertionError):
        array.columns(5, 9)


def plan_for(model: TinyModel, folder: Path, free: int, options: LoadOptions) -> MemoryPlan:
    return plan_of(write_model(model, folder), free, options)


def plan_of(path: Path, free: int, options: LoadOptions) -> MemoryPlan:
    with open_gguf(path) as file:
        config = read_config(file)
        weights = plan_weights(take(config, read_checkpoint(file).weights))
        return make_plan(config, weights, options, Geometry(8), free)


def test_the_cache_takes_what_is_left_but_no_more_than_can_be_used(tmp_path: Path) -> None:
    model = fitting(by_name("llama"))
    plenty = plan_for(model, tmp_path, 4096 * MIB, OPTIONS)
    assert plenty.num_blocks == 4 * 128 // 32
    tight = plan_for(model, tmp_path, 2 * (plenty.fixed_bytes + 6 * plenty.block_bytes), OPTIONS)
    assert tight.num_blocks == 6


def test_what_does_not_fit_is_said_in_numbers(tmp_path: Path) -> None:
    model = fitting(by_name("llama"))
    with pytest.raises(OutOfMemory, match=r"needs \d+ MiB for weights.*1 MiB may be used \(50%"):
        plan_for(model, tmp_path, 2 * MIB, OPTIONS)


def test_a_model_without_a_cache_has_to_fit_too(tmp_path: Path) -> None:
    tiny = tiny_encoders.by_name("bert")
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    path = write_encoder(replace(tiny, config=tiny.config | sizes), tmp_path)
    plenty = plan_of(path, 4096 * MIB, OPTIONS)
    assert (plenty.num_blocks, plenty.kv_bytes) == (0, 0)
    assert plan_of(path, 2 * plenty.fixed_bytes, OPTIONS).allowed == plenty.fixed_bytes
    with pytest.raises(OutOfMemory, match=r"for a step and no cache, but only \d+ MiB may be used"):
        plan_of(path, 2 * plenty.fixed_bytes - 2, OPTIONS)


def test_blocks_that_were_asked_for_must_fit(tmp_path: Path) -> None:
    model = fitting(by_name("llama"))
    asked = replace(OPTIONS, kv_blocks=7)
    assert plan_for(model, tmp_path, 4096 * MIB, asked).num_blocks == 7
    with pytest.raises(OutOfMemory, match="cache of 32000000 tokens"):
        plan_for(model, tmp_path, 64 * MIB, replace(OPTIONS, kv_blocks=1_000_000))


def test_an_int8_cache_is_smaller(tmp_path: Path) -> None:
    model = fitting(by_name("llama"))
    half = plan_for(model, tmp_path, 4096 * MIB, OPTIONS)
    eighth = plan_for(model, tmp_path, 4096 * MIB, replace(OPTIONS, kv_dtype="int8"))
    assert eighth.block_bytes / half.block_bytes == pytest.approx(0.5 + 4 / 64 / 2)
    packed = plan_for(model, tmp_path, 4096 * MIB, replace(OPTIONS, kv_dtype="k8v4"))
    assert packed.block_bytes / half.block_bytes == pytest.approx(0.375 + 4 / 64 / 2)
    assert cache_type(packed) == "k8v4"


@pytest.mark.parametrize("name", ["llama", "deepseek-v3", "gemma4-e"])
def test_blocks_take_what_the_type_of_the_cache_is_declared_to(name: str, tmp_path: Path) -> None:
    with open_gguf(write_model(fitting(by_name(name)), tmp_path)) as file:
        config = read_config(file)
    for kind in sorted(set(CACHE_TYPES) - {"f32"}):
        blocks = cache_block_bytes(config, replace(OPTIONS, kv_dtype=kind))
        assert sum(blocks) == BLOCK_TOKENS * kv_bytes_per_token(config, kind), kind


def test_small_models_keep_16_bits_of_activations_and_large_ones_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, free = fitting(by_name("llama")), 4096 * MIB
    chosen = plan_for(model, tmp_path, free, OPTIONS)
    assert chosen.activation_slices == 2
    monkeypatch.setattr(memory_budget, "SMALL_MODEL", chosen.weights - 1)
    assert plan_for(model, tmp_path, free, OPTIONS).activation_slices == 1


@pytest.mark.parametrize(("bits", "slices"), [("8", 1), ("16", 2)])
def test_bits_of_activations_are_what_was_asked_for(
    bits: Literal["8", "16"], slices: int, tmp_path: Path
) -> None:
    options = replace(OPTIONS, activation_bits=bits)
    plan = plan_for(fitting(by_name("llama")), tmp_path, 4096 * MIB, options)
    assert plan.activation_slices == slices
    assert f" {bits}-bit activations" in str(plan)


def test_a_plan_can_be_read(tmp_path: Path) -> None:
    text = str(plan_for(fitting(by_name("llama")), tmp_path, 4096 * MIB, OPTIONS))
    assert "16 blocks, 512 tokens, 4 sequences of 128" in text


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "gemma3"])
def test_query_key_and_value_are_one_matrix_and_so_are_gate_and_up(
    name: str, tmp_path: Path
) -> None:
    with open_gguf(write_model(fitting(by_name(name)), tmp_path)) as file:
        config = read_config(file)
        plan = plan_weights(take(config, read_checkpoint(file).weights))
        sizes = sum(tensor.nbytes for tensor in file.tensors.values())
    for layer in plan.layers:
        attention, feed_forward = present(layer.attention), present(layer.feed_forward)
        parts = [attention.q, attention.k, attention.v, feed_forward.gate, feed_forward.up]
        q, k, v, gate, up = (part for part in parts if isinstance(part, PlannedPart))
        assert q.matrix is k.matrix is v.matrix
        assert gate.matrix is up.matrix
        assert (q.first, k.first, v.first) == (0, q.out_features, q.out_features + k.out_features)
    assert len({id(storage) for storage in storages(plan)}) == len(storages(plan))
    padding = weight_bytes(plan) / sizes
    assert 1 <= padding < 1.2


def test_a_width_the_kernels_cannot_read_is_refused(tmp_path: Path) -> None:
    with open_gguf(write_model(by_name("llama"), tmp_path)) as file:
        weights = take(read_config(file), read_checkpoint(file).weights)
        with pytest.raises(UnsupportedTensor, match="its 48 in_features are not a multiple of 32"):
            plan_weights(weights)


@pytest.mark.parametrize("sequences", [1, 3, 64])
@pytest.mark.parametrize("context", [32, 4096, 131072])
@pytest.mark.parametrize("window", [None, 512])
def test_splits_of_a_context_cover_it_and_fit_the_scratch(
    sequences: int, context: int, window: int | None
) -> None:
    geometry = Geometry(132)
    split = geometry.attention(context, window, blocks=8, sequences=sequences)
    assert split.tokens % 32 == 0
    visible = context if window is None else min(context, window + 32)
    assert split.tokens * split.count >= visible > split.tokens * (split.count - 1)
    at_once = 4 * 132 // 8
    assert split.count == 1 or split.count * sequences <= 5 * at_once / 2 + 1 + sequences


@pytest.mark.parametrize(("context", "count"), [(256, 1), (512, 8), (1024, 16), (4096, 32)])
def test_splits_are_long_beside_what_it_costs_to_merge_them(context: int, count: int) -> None:
    split = Geometry(132).attention(context, None, blocks=8, sequences=1)
    assert (split.tokens * split.count, split.count) == (context, count)


@pytest.mark.parametrize("blocks_per_cu", [1, 2, 3, 4])
def test_splits_of_a_context_all_run_at_once(blocks_per_cu: int) -> None:
    split = Geometry(132).attention(32768, None, blocks=8, sequences=1, blocks_per_cu=blocks_per_cu)
    assert 0.9 * blocks_per_cu * 132 < split.count * 8 <= blocks_per_cu * 132


@pytest.mark.parametrize("rows", [9, 33, 128, 272, 384, 512, 1038, 4096])
@pytest.mark.parametrize("stored_rows", [64, 2048, 4096, 128256])
@pytest.mark.parametrize("has_wide", [False, True])
def test_splits_of_a_product_cover_it_and_fit_the_scratch(
    rows: int, stored_rows: int, *, has_wide: bool
) -> None:
    quant_blocks = 128
    shape = Geometry(132).gemm(rows, stored_rows, quant_blocks, has_wide=has_wide)
    assert shape.split_quant_blocks % 8 == 0
    assert (
        shape.split_quant_blocks * shape.splits
        >= quant_blocks
        > shape.split_quant_blocks * (shape.splits - 1)
    )
    if shape.splits > 1:
        assert shape.splits * rows * stored_rows <= Geometry(132).gemm_scratch().shape[0]
    assert np.isin(shape.tile_rows, (32, 64, 128, 272))


@pytest.mark.parametrize(("rows", "splits"), [(128, 8), (384, 2), (512, 2), (1024, 1)])
def test_blocks_of_many_rows_take_one_round(rows: int, splits: int) -> None:
    shape = Geometry(132).gemm(rows, 4096, 448)
    assert (shape.tile_rows, shape.splits) == (128, splits)


@pytest.mark.parametrize(
    ("stored_rows", "quant_blocks", "splits"), [(34816, 160, 1), (12416, 64, 2), (5120, 544, 6)]
)
def test_blocks_of_few_rows_take_one_round(
    stored_rows: int, quant_blocks: int, splits: int
) -> None:
    shape = Geometry(132).gemm(32, stored_rows, quant_blocks)
    assert (shape.tile_rows, shape.splits) == (32, splits)


@pytest.mark.parametrize(
    ("rows", "stored_rows", "splits"),
    [
        (4096, 28672, 1),
        (1024, 4096, 1),
        (1038, 2048, 2),  # which half of the device would have nothing of
        (560, 28672, None),  # whose last rows would fill a third of a round
        (520, 28672, 1),  # whose last rows larger tiles take
        (512, 28672, 1),
        (512, 4096, 2),
        (256, 28672, 1),
        (129, 28672, 1),
        (128, 28672, None),
    ],
)
def test_wide_blocks_take_what_fills_the_device_with_them(
    rows: int, stored_rows: int, splits: int | None
) -> None:
    geometry = Geometry(132)
    shape = geometry.gemm(rows, stored_rows, 128, has_wide=True)
    if splits is None:
        assert shape == geometry.gemm(rows, stored_rows, 128)
    else:
        assert shape == GemmShape(272, splits, 128 // splits)
    # A step of theirs is two quant blocks.
    odd = geometry.gemm(rows, stored_rows, 129, has_wide=True)
    assert odd == geometry.gemm(rows, stored_rows, 129)


def test_wide_blocks_may_be_asked_for() -> None:
    geometry = Geometry(132, least_wide_rows=17)
    tiles = [geometry.gemm(rows, 64, 8, has_wide=True).tile_rows for rows in (16, 17)]
    assert tiles == [32, 272]
    assert geometry.gemm(17, 64, 8).tile_rows == 32


def test_blocks_of_few_rows_that_are_short_may_come_late() -> None:
    assert Geometry(132).gemm(16, 6144, 128).splits == 6  # the last with 8 quant blocks of 24


def test_few_blocks_of_decodes_have_a_compute_unit_each() -> None:
    assert [Geometry(132).has_few_decodes(8 * sequences) for sequences in (16, 17)] == [True, False]


def test_many_logits_of_a_router_fill_a_gemm() -> None:
    geometry = Geometry(132)
    assert [geometry.routes_by_gemm(257 * tokens) for tokens in (123, 124)] == [False, True]
    assert Geometry(132, least_route_logits=1).routes_by_gemm(1)


def test_logits_of_a_router_are_split_while_the_device_has_room_for_more_blocks() -> None:
    geometry = Geometry(132)
    splits = [geometry.route_splits(tokens, 257, 2048) for tokens in (124, 1038, 2112, 2113, 4096)]
    assert splits == [4, 3, 2, 1, 1]
    assert geometry.route_splits(124, 257, 128) == 2  # of 64 features at least
    assert geometry.route_splits(124, 257, 32) == 1


def test_tiles_of_a_router_leave_a_single_row_over() -> None:
    assert list(map(Geometry.route_tiles, (1, 64, 65, 66, 256, 257, 258))) == [1, 1, 1, 2, 4, 4, 5]


@pytest.mark.parametrize(("tokens", "num_logits"), [(1, 8), (64, 257), (1000, 257), (4096, 32)])
def test_there_is_room_for_the_parts_of_a_routers_logits(tokens: int, num_logits: int) -> None:
    geometry = Geometry(132)
    parts = [
        count * geometry.route_splits(count, num_logits, 2048) for count in range(1, tokens + 1)
    ]
    assert geometry.most_split_tokens(tokens, num_logits, 2048) == max(parts)


def test_warpgroups_take_the_rows_of_a_tile_that_are_there() -> None:
    pairs = [128 * count for count in (1, 96, 97, 384, 385)]
    plain, warpgroups = Geometry(132), Geometry(132, has_warpgroups=True)
    assert [plain.group_tile_rows(each, 128) for each in pairs] == [32, 32, 64, 64, 128]
    assert [warpgroups.group_tile_rows(each, 128) for each in pairs] == [64, 64, 64, 64, 128]


@pytest.mark.parametrize(
    ("tokens", "chosen", "slices", "plain", "warpgroups"),
    [
        (8, 8, 1, False, False),  # of 128 experts
        (9, 8, 1, False, True),
        (12, 5, 1, False, False),
        (12, 5, 2, False, True),
        (16, 8, 1, False, True),
        (17, 8, 1, True, True),
        (8, 8, 2, False, False),
        (8, 9, 2, True, True),
    ],
)
def test_experts_are_grouped_earlier_where_there_are_warpgroups(
    tokens: int, chosen: int, slices: int, plain: bool, warpgroups: bool
) -> None:
    pairs = tokens * chosen
    assert Geometry(132).groups_experts(tokens, pairs, 128, slices) == plain
    hopper = Geometry(132, has_warpgroups=True)
    assert hopper.groups_experts(tokens, pairs, 128, slices) == warpgroups


def test_rows_of_gate_and_up_stay_in_lds_where_experts_have_about_as_many() -> None:
    geometry = Geometry(132, has_warpgroups=True)
    pairs = [128 * 12 - 1, 128 * 12, 128 * 40, 128 * 40 + 1]
    tiles = [geometry.group_tile_rows(each, 128, holds_gated=True) for each in pairs]
    assert tiles == [64, 48, 48, 64]


@pytest.mark.parametrize(("stored_rows", "is_wide"), [(28672, True), (6144, False)])
def test_int8_products_are_wide_where_that_leaves_blocks_for_all(
    stored_rows: int, is_wide: bool
) -> None:
    assert Geometry(132).has_wide_blocks(stored_rows) == is_wide
    assert Geometry(132, least_wide_blocks=1).has_wide_blocks(stored_rows)


@pytest.mark.parametrize(
    ("stored_rows", "block_size", "threads"),
    [(28672, 256, 64), (28672, 32, 128), (6144, 256, 128), (4096, 256, 256), (32, 32, 256)],
)
def test_blocks_of_int8_products_have_waves_that_fill_the_device(
    stored_rows: int, block_size: int, threads: int
) -> None:
    assert Geometry(132).matrix_threads(stored_rows, block_size) == threads


def test_windows_keep_the_largest_tile_of_keys_that_a_kernel_takes() -> None:
    headers = Path(__file__).parents[3] / "kernels/include/rf"
    warpgroups = (headers / "attention/attention_warpgroup.h").read_text()
    others = (headers / "attention/online_softmax.h").read_text()
    of_heads = others[others.index("constexpr int attention_keys(") :].partition("\n}")[0]
    units = (headers / "attention/mma_attention.h").read_text()
    tiles = [
        *re.findall(r"kKeys = (\d+);", warpgroups),
        *re.findall(r"kLargeHeadKeys = (\d+)", units),
        *re.findall(r"\? (\d+) : (\d+);", of_heads)[0],
    ]
    assert len(tiles) > 3
    assert max(map(int, tiles)) == KEY_TILE
