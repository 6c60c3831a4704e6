"""Keys share the engine: bounded difference of service, no starvation, no idling, order within."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams, Share
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.engine.schedule.fairness import OUTPUT_COST, PROMPT_COST
from rocmforge.engine.schedule.scheduler import Scheduler
from tests.support.fakes.fake_backend import FakeConfig, FakeRunner
from tests.unit.engine.helpers import limits, request
from tests.unit.engine.schedule.test_scheduler import answer

pytestmark = pytest.mark.slow

SLOTS = 4
BUDGET = 32
MAX_PROMPT = 20
MAX_OUTPUT = 10
LARGEST_GAP = PROMPT_COST * MAX_PROMPT + OUTPUT_COST * SLOTS * MAX_OUTPUT
"""What one key can be charged after the other was last charged more: Theorem 4.4 of the paper."""


@dataclass(frozen=True)
class Job:
    """A request of a key."""

    key: int
    num_prompt: int
    max_tokens: int
    weight: float = 1.0


def jobs(key: int, weight: float = 1.0, *, least: int = 0) -> st.SearchStrategy[list[Job]]:
    """Some requests of one key."""
    prompts, outputs = st.integers(1, MAX_PROMPT), st.integers(1, MAX_OUTPUT)
    job = st.builds(Job, st.just(key), prompts, outputs, st.just(weight))
    return st.lists(job, min_size=least, max_size=least + 30)


class World:
    """A scheduler, and what it gave to whom."""

    def __init__(self, num_blocks: int = 1000) -> None:
        config = FakeConfig(block_size=4, num_blocks=num_blocks, max_context=40)
        info = FakeRunner(config, 40, SLOTS, BUDGET).info
        self.scheduler = Scheduler(info, limits(SLOTS, BUDGET, max_waiting=5000), Totals())
        self.first_served: dict[int, list[int]] = defaultdict(list)  # request ids, by key
        self.cost: dict[int, float] = defaultdict(float)  # by key, over its weight
        self.ended: set[int] = set()
        self._count = 0

    def add(self, job: Job) -> int:
        """Submits a job; no two share a prefix."""
        number, self._count = self._count, self._count + 1
        prompt = range(100 * number, 100 * number + job.num_prompt)
        sampling = SamplingParams(max_tokens=job.max_tokens)
        made = structs.replace(
            request(number, prompt, sampling), share=Share(key=job.key, weight=job.weight)
        )
        self.scheduler.add(made, 0)
        return number

    @property
    def waiting(self) -> dict[int, int]:
        """Sequences that wait, by key."""
        return dict(self.scheduler.stats().waiting_by_key)

    def step(self) -> list[Chunk]:
        """One step, with the books kept."""
        chunks = self.scheduler.schedule(1)
        for chunk in chunks:
            made: GenerateRequest = chunk.sequence.request
            served = self.first_served[made.share.key]
            if made.request_id not in served:
                served.append(made.request_id)
                self.cost[made.share.key] += len(made.prompt) * PROMPT_COST / made.share.weight
            if chunk.samples:
                self.cost[made.share.key] += OUTPUT_COST / made.share.weight
        answer(self.scheduler, chunks)
        self.ended |= {
            chunk.sequence.request.request_id
            for chunk in chunks
            if chunk.sequence.num_known == chunk.sequence.max_length
        }
        self.scheduler.check_integrity()
        return chunks

    def finish(self) -> None:
        """Steps until nothing is left."""
        while self.scheduler.has_work:
            self.step()


def test_one_request_does_not_wait_for_a_flood_of_another_key() -> None:
    world = World()
    for _ in range(1000):
        world.add(Job(key=1, num_prompt=8, max_tokens=10))
    for _ in range(50):
        world.step()
    alone = world.add(Job(key=2, num_prompt=8, max_tokens=10))
    waited = 0
    while not world.first_served[2]:
        world.step()
        waited += 1
    assert world.first_served[2] == [alone]
    assert waited <= 10, "the first place that became free was not theirs"
    assert world.waiting[1] > 900


def test_without_keys_it_is_first_come_first_served() -> None:
    world = World()
    numbers = [world.add(Job(0, 1 + i * 7 % MAX_PROMPT, 1 + i % MAX_OUTPUT)) for i in range(100)]
    world.finish()
    assert world.first_served[0] == numbers


@settings(deadline=None, max_examples=60)
@given(
    flood=jobs(1, least=40),
    other=jobs(2, least=40),
    weights=st.tuples(*[st.sampled_from((0.5, 1.0, 2.0, 4.0))] * 2),
    num_blocks=st.sampled_from((14, 30, 1000)),
)
def test_keys_that_wait_are_served_alike_by_weight(
    flood: list[Job], other: list[Job], weights: tuple[float, float], num_blocks: int
) -> None:
    world = World(num_blocks)
    for job in (*flood, *other):
        weight = weights[job.key - 1]
        world.add(Job(job.key, job.num_prompt, job.max_tokens, weight))
    while len(world.waiting) == 2:
        gap = abs(world.cost[1] - world.cost[2])
        assert gap <= LARGEST_GAP / min(weights)
        world.step()


def test_a_key_that_was_away_is_not_paid_back() -> None:
    world = World()
    for _ in range(400):
        world.add(Job(key=1, num_prompt=8, max_tokens=10))
    while world.waiting[1] > 200:
        world.step()
    before = world.cost[1]
    for _ in range(200):
        world.add(Job(key=2, num_prompt=8, max_tokens=10))
    while len(world.waiting) == 2:
        assert abs(world.cost[1] - before - world.cost[2]) <= LARGEST_GAP
        world.step()
    assert before > 10 * LARGEST_GAP, "the flood was served too little for the test to mean much"


def test_nor_is_one_whose_requests_never_wait() -> None:
    world = World()
    for _ in range(100):
        world.add(Job(key=1, num_prompt=8, max_tokens=10))
        while world.scheduler.has_work:
            world.step()
    for key in (2, 1):
        for _ in range(50):
            world.add(Job(key, num_prompt=8, max_tokens=10))
    before = world.cost[1]
    while len(world.waiting) == 2:
        assert abs(world.cost[1] - before - world.cost[2]) <= LARGEST_GAP
        world.step()


@settings(deadline=None, max_examples=60)
@given(arrivals=st.lists(st.one_of(jobs(1), jobs(2), jobs(3)), max_size=20))
def test_no_place_stays_free_while_anybody_waits(arrivals: list[list[Job]]) -> None:
    world = World()
    for group in arrivals:
        for job in group:
            world.add(job)
        chunks = world.step()
        if world.waiting:
            is_full = len(chunks) >= SLOTS
            assert is_full or sum(chunk.num_tokens for chunk in chunks) == BUDGET


@settings(deadline=None, max_examples=60)
@given(
    arrivals=st.lists(st.one_of(jobs(1), jobs(2), jobs(3)), max_size=12),
    num_blocks=st.sampled_from((10, 14, 30)),
    data=st.data(),
)
def test_everything_ends_in_order_within_its_key(
    arrivals: list[list[Job]], num_blocks: int, data: st.DataObject
) -> None:
    """Also with so few blocks that sequences are preempted, and when some are cancelled."""
    world = World(num_blocks)
    added = []
    cancelled: set[int] = set()
    for group in arrivals:
        added += [world.add(job) for job in group]
        world.step()
        alive = sorted(set(added) - world.ended - cancelled)
        if number := data.draw(st.sampled_from([None, *alive])):
            assert world.scheduler.cancel(number, 0) is not None
            cancelled.add(number)
    world.finish()
    assert world.ended | cancelled == set(added)
    for served in world.first_served.values():
        assert served == sorted(served)


def test_the_newest_of_the_key_served_most_gives_way() -> None:
    world = World(num_blocks=12)
    greedy = [world.add(Job(key=1, num_prompt=10, max_tokens=10)) for _ in range(2)]
    world.step()
    modest = world.add(Job(key=2, num_prompt=7, max_tokens=10))
    while not world.scheduler.stats().totals.preemptions:
        chunks = world.step()
    assert {chunk.sequence.request.request_id for chunk in chunks} == {greedy[0], modest}
    assert world.waiting == {1: 1}


@pytest.mark.parametrize("cancel_first", [True, False])
def test_waiting_is_told_by_key(cancel_first: bool) -> None:
    world = World()
    numbers = [world.add(Job(key, 4, 4)) for key in (1, 1, 2)]
    assert world.waiting == {1: 2, 2: 1}
    world.scheduler.cancel(numbers[0 if cancel_first else 2], 0)
    assert world.waiting == ({1: 1, 2: 1} if cancel_first else {1: 2})
    world.step()
    assert world.waiting == {}
