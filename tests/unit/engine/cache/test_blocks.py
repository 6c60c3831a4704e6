"""No sequence of operations loses a block, miscounts one, or finds content that is not there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocmforge.engine.cache.blocks import BlockAllocator
from rocmforge.engine.sequence.block_keys import ROOT, BlockKey, chain_key

NUM_BLOCKS = 6


def keys_of(content: tuple[int, ...]) -> list[BlockKey]:
    keys = [ROOT]
    for token in content:
        keys.append(chain_key(keys[-1], np.array([token], np.int32)))
    return keys[1:]


class AllocatorMachine(RuleBasedStateMachine):
    """Sequences with blocks of one token each come, grow, publish and go."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(NUM_BLOCKS)
        self.tables: list[tuple[tuple[int, ...], list[int]]] = []
        self.memory: list[tuple[int, ...]] = [()] * NUM_BLOCKS  # the prefix each block was given

    @rule(content=st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple))
    def admit(self, content: tuple[int, ...]) -> None:
        table: list[int] = []
        for end, key in enumerate(keys_of(content), 1):
            block = self.allocator.find(key)
            if block is None:
                break
            assert self.memory[block] == content[:end], "found content that was overwritten"
            table.append(block)
        self.allocator.share(table)
        if self.allocator.num_free < len(content) - len(table):
            self.allocator.release(table)
            return
        while len(table) < len(content):
            block = self.allocator.allocate()
            self.memory[block] = content[: len(table) + 1]
            table.append(block)
        self.tables.append((content, table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        content, table = data.draw(st.sampled_from(self.tables))
        for block, key in zip(table, keys_of(content), strict=True):
            self.allocator.publish(block, key)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        _, table = data.draw(st.sampled_from(self.tables))
        for block in table:
            self.allocator.forget(block)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.tables) - 1))
        self.allocator.release(self.tables.pop(i)[1])

    @invariant()
    def books_balance(self) -> None:
        tables = [table for _, table in self.tables]
        self.allocator.check_integrity(tables)
        used = {block for table in tables for block in table}
        assert self.allocator.num_used == len(used)
        assert self.allocator.num_free == NUM_BLOCKS - len(used)


TestAllocatorMachine = pytest.mark.slow(AllocatorMachine.TestCase)
TestAllocatorMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_released_prefix_can_be_found_until_its_block_is_needed() -> None:
    allocator = BlockAllocator(2)
    (key,) = keys_of((7,))
    block = allocator.allocate()
    allocator.publish(block, key)
    allocator.release([block])
    assert allocator.find(key) == block
    other = allocator.allocate()
    assert other != block, "an empty block goes first"
    assert allocator.allocate() == block
    assert allocator.find(key) is None


def test_a_prefix_loses_its_tail_first() -> None:
    allocator = BlockAllocator(3)
    keys = keys_of((1, 2, 3))
    table = [allocator.allocate() for _ in keys]
    for block, key in zip(table, keys, strict=True):
        allocator.publish(block, key)
    allocator.release(table)
    allocator.allocate()
    assert [allocator.find(key) is not None for key in keys] == [True, True, False]


def test_the_prefix_used_last_is_evicted_last() -> None:
    allocator = BlockAllocator(2)
    (old,), (new,) = keys_of((1,)), keys_of((2,))
    blocks = [allocator.allocate(), allocator.allocate()]
    allocator.publish(blocks[0], old)
    allocator.publish(blocks[1], new)
    allocator.release([blocks[0]])
    allocator.release([blocks[1]])
    allocator.share(blocks[:1])
    allocator.release([blocks[0]])
    allocator.allocate()
    assert allocator.find(old) == blocks[0]
    assert allocator.find(new) is None


def test_the_integrity_check_notices_a_leak() -> None:
    allocator = BlockAllocator(2)
    allocator.allocate()
    with pytest.raises(AssertionError, match="block 0: 1 != 0"):
        allocator.check_integrity([])
