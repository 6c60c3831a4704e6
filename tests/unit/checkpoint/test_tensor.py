"""Parts of tensors share the memory of the whole, along any axis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Joined, Tensor
from rocmforge.errors import UnsupportedTensor


def random_tensor(format_name: str, *shape: int) -> Tensor:
    format = FORMATS[format_name]
    stored = (*shape[:-1], format.row_bytes(shape[-1]))
    data = np.random.default_rng(7).integers(0, 60, stored, np.uint8)  # scales that are finite
    data.flags.writeable = False
    return Tensor("w", shape, format, data)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Tensor, int, int, int]:
    """A tensor of one to four axes, and what to take of one of them."""
    format = draw(st.sampled_from(["f32", "i32", "q8_0", "q4_k"]))
    *outer, blocks = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    block = FORMATS[format].block_size
    shape = (*outer, blocks * block)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    unit = block if axis % len(shape) == len(shape) - 1 else 1
    start = draw(st.integers(0, shape[axis] // unit - 1))
    stop = draw(st.integers(start + 1, shape[axis] // unit))
    return random_tensor(format, *shape), axis, start * unit, stop * unit


@given(cuts())
def test_a_slice_has_the_values_of_the_whole_and_shares_its_memory(
    cut: tuple[Tensor, int, int, int],
) -> None:
    whole, axis, start, stop = cut
    part = whole.slice(axis, start, stop)

    expected = np.take(whole.to_float32(), range(start, stop), axis)
    assert part.shape == expected.shape
    assert np.shares_memory(part.data, whole.data)
    assert not part.data.flags.writeable
    np.testing.assert_array_equal(part.to_float32(), expected)


def test_a_slice_says_in_its_name_what_it_is_of() -> None:
    experts = random_tensor("q8_0", 4, 6, 64)
    assert experts.slice(0, 2, 3).name == "w[2:3]"
    assert experts.slice(1, 2, 3).name == "w[:, 2:3]"
    assert experts.slice(2, 32, 64).name == "w[..., 32:64]"
    assert experts.slice(0, 2, 3).slice(-1, 0, 32).name == "w[2:3][..., 0:32]"


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (3, 3), (4, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_do_not_exist_are_refused(axis: int, start: int, stop: int) -> None:
    tensor = random_tensor("q8_0", 6, 6, 32)
    with pytest.raises(
        UnsupportedTensor, match=rf"'w': {start}:{stop} of axis {axis} .*\(6, 6, 32\)"
    ):
        tensor.slice(axis, start, stop)


@pytest.mark.parametrize(("start", "stop"), [(-256, 256), (0, 1024), (256, 256), (128, 256)])
def test_elements_that_are_not_there_or_not_whole_blocks_are_refused(start: int, stop: int) -> None:
    tensor = random_tensor("q4_k", 6, 768)
    with pytest.raises(UnsupportedTensor, match=rf"{start}:{stop} .*\(6, 768\) in blocks of 256"):
        tensor.slice(-1, start, stop)


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_is_not_there_is_refused(axis: int) -> None:
    with pytest.raises(UnsupportedTensor, match=f"no axis {axis}"):
        random_tensor("f32", 2, 2).slice(axis, 0, 1)


@given(cuts(), st.data())
def test_what_is_joined_of_slices_has_the_values_of_each(
    cut: tuple[Tensor, int, int, int], data: st.DataObject
) -> None:
    whole, axis, start, stop = cut
    unit = (
        FORMATS[whole.format.name].block_size
        if axis % len(whole.shape) + 1 == len(whole.shape)
        else 1
    )
    first = whole.slice(axis, 0, unit)
    joined = Joined("two", [whole.slice(axis, start, stop), first, whole], axis)
    places = [*range(start, stop), *range(unit), *range(whole.shape[axis])]
    expected = np.take(whole.to_float32(), places, axis)
    assert joined.shape == expected.shape
    assert joined.nbytes == joined.data.nbytes
    np.testing.assert_array_equal(joined.to_float32(), expected)
    for other, size in enumerate(joined.shape):
        step = whole.format.block_size if other == len(joined.shape) - 1 else 1
        low = data.draw(st.integers(0, size // step - 1))
        high = data.draw(st.integers(low + 1, size // step))
        part = joined.slice(other, low * step, high * step)
        of_part = np.take(expected, range(low * step, high * step), other)
        assert part.shape == of_part.shape
        np.testing.assert_array_equal(part.to_float32(), of_part)


@pytest.mark.parametrize(("axis", "start", "stop"), [(0, 0, 13), (0, 3, 3), (2, 0, 1), (1, 0, 16)])
def test_slices_that_a_joined_tensor_has_not_are_refused(axis: int, start: int, stop: int) -> None:
    joined = Joined("both", [random_tensor("q8_0", 6, 32)] * 2, 0)
    with pytest.raises(UnsupportedTensor, match=f"{start}:{stop} of axis"):
        joined.slice(axis, start, stop)
