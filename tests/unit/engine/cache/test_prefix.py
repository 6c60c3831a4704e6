"""Keys stand for whole prefixes; the index is a one-to-one map."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine.cache.prefix_index import PrefixIndex
from rocmforge.engine.sequence.block_keys import ROOT, BlockKey, chain_key

BLOCK = 2
PREFIXES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4)


def key_of(blocks: list[tuple[int, int]]) -> BlockKey:
    key = ROOT
    for block in blocks:
        key = chain_key(key, np.array(block, np.int32))
    return key


@given(PREFIXES, PREFIXES)
def test_keys_are_equal_exactly_when_all_tokens_so_far_are(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


def test_a_key_has_128_bits() -> None:
    assert len(key_of([(1, 2)])) == 16


@given(st.lists(st.tuples(st.sampled_from("ad"), st.integers(0, 3), st.integers(0, 3))))
def test_the_index_behaves_like_a_map_whose_first_entry_wins(
    operations: list[tuple[str, int, int]],
) -> None:
    index = PrefixIndex()
    model: dict[bytes, int] = {}
    for operation, content, block in operations:
        key = bytes([content])
        if operation == "a":
            if key not in model and block not in model.values():
                model[key] = block
            index.add(key, block)
        else:
            model = {k: b for k, b in model.items() if b != block}
            index.discard(block)
        index.check_integrity()
        assert len(index) == len(model)
        assert all(index.find(bytes([i])) == model.get(bytes([i])) for i in range(4))
        assert all((i in index) == (i in model.values()) for i in range(4))
