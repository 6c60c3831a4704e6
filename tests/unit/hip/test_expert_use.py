"""Which experts get a seat: those chosen most of late."""

from __future__ import annotations

import numpy as np

from rocmforge_hip.run.expert_use import ExpertReads, ExpertUse, Swap


def choices(*layers: list[int]) -> np.ndarray:
    """A token for each choice, [L, tokens, 1]."""
    return np.array(layers, np.int32)[:, :, None]


def test_the_first_experts_of_each_layer_have_the_seats() -> None:
    use = ExpertUse([4, 3], [2, 1])
    np.testing.assert_array_equal(use.seated, [[1, 1, 0, 0], [1, 0, 0, 0]])


def test_each_expert_of_a_layer_is_read_once_in_a_step() -> None:
    use = ExpertUse([4, 4], [2, 2])
    found = use.add(choices([0, 0, 3, 2], [1, 1, 1, 1]), use.seated)
    assert found == ExpertReads(all=4, host=2)


def test_reads_are_counted_with_the_seats_that_their_step_saw() -> None:
    use = ExpertUse([4], [2])
    seen = use.seated
    swap = Swap(layer=0, seat=1, leaving=1, coming=3)
    use.leave(swap)
    use.come(swap)
    assert use.add(choices([3]), seen).host == 1
    assert use.add(choices([3]), use.seated).host == 0


def test_an_expert_chosen_more_often_takes_the_seat_of_the_one_chosen_least() -> None:
    use = ExpertUse([4, 4], [2, 2])
    use.add(choices([0, 3, 3, 3], [0, 1, 0, 1]), use.seated)
    assert use.choose_swaps(8) == (Swap(layer=0, seat=1, leaving=1, coming=3),)


def test_while_it_moves_an_expert_has_no_seat_and_is_chosen_no_second_time() -> None:
    use = ExpertUse([4], [2])
    use.add(choices([3, 3, 3, 2, 2, 2, 2]), use.seated)
    (first,) = use.choose_swaps(8)
    use.leave(first)
    assert use.seated.sum() == 1
    use.come(first)
    (second,) = use.choose_swaps(8)
    assert (first.coming, second.coming) == (2, 3)
    assert {first.seat, second.seat} == {0, 1}


def test_the_swap_that_gains_most_comes_first_and_no_more_than_may() -> None:
    use = ExpertUse([3, 3, 3], [1, 1, 1])
    use.add(choices([2, 2, 2, 0, 0], [2, 2, 2, 2, 2], [1, 1, 1, 1, 0]), use.seated)
    assert [swap.layer for swap in use.choose_swaps(2)] == [1, 2]


def test_experts_chosen_alike_stay_where_they_are() -> None:
    use = ExpertUse([8], [4])
    use.add(choices([number % 8 for number in range(402)]), use.seated)
    assert use.choose_swaps(8) == ()


def test_what_was_chosen_long_ago_counts_less() -> None:
    use = ExpertUse([3], [1])
    use.add(choices([0] * 20), use.seated)
    use.add(choices([1] * 10), use.seated)
    assert use.choose_swaps(1) == ()
    use.add(np.full((1, 2000, 1), 1, np.int32), use.seated)
    (swap,) = use.choose_swaps(1)
    assert swap == Swap(layer=0, seat=0, leaving=0, coming=1)


def test_experts_of_another_device_do_not_count() -> None:
    use = ExpertUse([3, 3], [1, 1])
    reads = use.add(choices([-1, 2, 2], [-1, -1, 0]), use.seated)
    assert (reads.all, reads.host) == (2, 1)
    assert [swap.layer for swap in use.choose_swaps(2)] == [0]


def test_without_seats_nothing_moves() -> None:
    use = ExpertUse([3], [0])
    use.add(choices([2] * 50), use.seated)
    assert use.choose_swaps(8) == ()
