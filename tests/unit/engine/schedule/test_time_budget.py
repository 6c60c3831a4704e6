"""How a step's time is shared where prices are known, on staircases of all kinds."""

from __future__ import annotations

from itertools import product
from random import Random

from rocmforge.engine.schedule.step_costs import Prices, StepCosts, StepWork, pairs_of
from rocmforge.engine.schedule.time_budget import TimeBudget

STALL_NS = 30_000_000


class Known(StepCosts):
    """What costs are, without having been learnt."""

    def __init__(self, prices: Prices) -> None:
        super().__init__()
        self._known = prices

    @property
    def prices(self) -> Prices:
        return self._known

    @property
    def most_tokens(self) -> int:
        return 4096


def prices(tile: int, pair: float = 8.0, token: float = 55e3) -> Prices:
    """Prices of a device whose steps end at multiples of `tile` tokens."""
    of = {size: token if size == tile else 0.0 for size in (1, 64, 128, 256)}
    return Prices(3e6, of[1], of[64], of[128], of[256], 0.0, pair, 0.0)


def budget_of(known: Prices, decodes: int, stall_ns: int = STALL_NS) -> TimeBudget:
    return TimeBudget(Known(known), StepWork(tokens=decodes), stall_ns)


def test_the_first_prompt_in_order_keeps_half_of_the_tokens_that_it_has_room_for() -> None:
    """However much others take before it, and wherever tiles end."""
    random = Random(2)
    for tile, start, decodes in product((1, 64, 128, 256), (0, 3000, 20_000), (1, 17, 100)):
        known = prices(tile, token=random.uniform(20e3, 90e3))
        alone = budget_of(known, decodes).room(start)
        budget = budget_of(known, decodes)
        budget.reserve_half(start, 10_000)
        while (room := budget.room(0)) > 0:
            budget.take(0, random.randint(1, room), 0)
        budget.give_back()
        assert budget.room(start) >= alone // 2


def test_others_get_half_of_the_time_at_most() -> None:
    """Where most of it is attention, half of the tokens of a first part take a quarter of it."""
    for tile in (1, 64, 128, 256):
        known = prices(tile, pair=800.0, token=10e3)
        budget = budget_of(known, 4)
        budget.reserve_half(0, 10_000)
        taken = budget.room(0)
        took = known.filled * taken + known.pair * pairs_of(0, taken)
        assert 0 < took <= (STALL_NS - known.fixed) / 2


def test_a_prompt_alone_ends_where_a_tile_does_but_not_for_others() -> None:
    known = prices(128, pair=8.0)
    alone = budget_of(known, 4)
    assert alone.room(8000) == 124, "few more would begin a tile, and attend to as much as these"
    shared = budget_of(known, 4)
    shared.take(0, 1, 0)
    assert shared.room(8000) > 128


def test_decodes_do_not_double_a_step_with_a_tile_that_they_do_not_fill() -> None:
    """They take 35 ms with it, and 8 without: prompts get 8, and what fills the tile."""
    known = prices(256, pair=0.0, token=125e3)
    budget = budget_of(known, 40)
    assert budget.room(0) == 256 - 40
