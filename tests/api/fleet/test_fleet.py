"""Loading, unloading and making room, with engines that only take time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine.ipc.status import EngineState
from rocmforge.errors import (
    CapacityError,
    ConfigurationError,
    DeadlineExceeded,
    Draining,
    EngineDied,
    InvalidParameter,
    ModelNotFound,
    ModelUnavailable,
    NotReady,
    OutOfMemory,
    QueueFull,
    UnsupportedArchitecture,
)
from rocmforge.fleet.entry import ModelPolicy
from rocmforge.fleet.fleet import Fleet
from tests.api.fleet.timed_fleet import LAZY, LOAD_S, Device, TimedEngine, settle, spawn, world
from tests.support.fakes.virtual_time import run_virtual

# --- names ---


def test_names_must_differ() -> None:
    models = world().fleet.models
    with pytest.raises(ConfigurationError, match="called 'a'"):
        Fleet([models[0], models[0]])


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(ModelNotFound, match="Available: a, b, c"):
        world().fleet.find("d")


def test_no_name_is_enough_for_one_model_only() -> None:
    assert world([LAZY]).fleet.find(None).entry.name == "a"
    with pytest.raises(InvalidParameter, match="one of: a, b, c"):
        world().fleet.find(None)


# --- loading ---


def test_requests_that_come_together_cause_one_load() -> None:
    here = world()

    async def main() -> None:
        assert await settle(*spawn(*[here.use("a", 1.0) for _ in range(5)])) == [None] * 5
        assert here.device.loads == ["a"]
        assert here.states() == "ruu"

    run_virtual(main())


def test_loads_take_turns() -> None:  # `Device` insists
    here = world()

    async def main() -> None:
        await settle(*spawn(here.use("a", 1.0), here.use("b", 1.0), here.use("c", 1.0)))
        assert here.device.loads == ["a", "b", "c"]

    run_virtual(main())


def test_a_failed_load_is_told_to_all_who_wait_and_tried_again_later() -> None:
    here = world(device=Device(errors=[UnsupportedArchitecture("x", ("y",))]))

    async def main() -> None:
        outcomes = await settle(*spawn(here.use("a", 1.0), here.use("a", 1.0)))
        assert [type(outcome) for outcome in outcomes] == [ModelUnavailable] * 2
        assert here.states() == "fuu"
        (again,) = await settle(*spawn(here.use("a", 1.0)))
        assert isinstance(again, ModelUnavailable)
        assert here.device.loads == ["a"]  # not so soon
        await asyncio.sleep(6.0)
        await here.use("a", 1.0)
        assert here.device.loads == ["a", "a"]
        assert here.states() == "ruu"

    run_virtual(main())


def test_a_deadline_ends_the_wait_and_the_load_goes_on() -> None:
    here = world()

    async def main() -> None:
        (outcome,) = await settle(*spawn(here.use("a", 1.0, timeout_s=2.0)))
        assert isinstance(outcome, DeadlineExceeded)
        await asyncio.sleep(LOAD_S)
        assert here.states() == "ruu"

    run_virtual(main())


def test_the_operators_limit_ends_the_wait_too() -> None:
    here = world(load_timeout_s=3.0)

    async def main() -> None:
        (outcome,) = await settle(*spawn(here.use("a", 1.0, timeout_s=50.0)))
        assert isinstance(outcome, ModelUnavailable)
        assert "3 s" in outcome.message

    run_virtual(main())


def test_so_many_may_wait_and_no_more() -> None:
    policy = ModelPolicy(at_start=False, max_waiting=2)
    here = world([policy])

    async def main() -> None:
        outcomes = await settle(*spawn(*[here.use("a", 1.0) for _ in range(3)]))
        assert [type(outcome) for outcome in outcomes] == [type(None), type(None), QueueFull]

    run_virtual(main())


def test_the_models_of_the_start_are_refused_until_they_are_there() -> None:
    here = world([ModelPolicy(), LAZY])

    async def main() -> None:
        assert not here.fleet.is_ready
        loading = asyncio.ensure_future(here.fleet.load_first(here.entry("a")))
        await asyncio.sleep(1.0)
        (outcome,) = await settle(*spawn(here.use("a", 1.0)))
        assert isinstance(outcome, NotReady)
        await loading
        assert here.fleet.is_ready
        await here.use("a", 1.0)

    run_virtual(main())


def test_a_start_that_fails_raises_the_reason() -> None:
    here = world([ModelPolicy()], device=Device(errors=[UnsupportedArchitecture("x", ("y",))]))

    async def main() -> None:
        with pytest.raises(UnsupportedArchitecture):
            await here.fleet.load_first(here.entry("a"))
        assert here.device.alive == []

    run_virtual(main())


def test_nothing_is_unloaded_at_the_start_to_make_another_fit() -> None:
    here = world([ModelPolicy(), ModelPolicy()], sizes=[60, 60])

    async def main() -> None:
        await here.fleet.load_first(here.entry("a"))
        with pytest.raises(OutOfMemory):
            await here.fleet.load_first(here.entry("b"))
        assert here.states() == "rf"

    run_virtual(main())


# --- room ---


def test_the_least_recently_used_model_makes_room() -> None:
    here = world(max_loaded=2)

    async def main() -> None:
        for name in "abac":
            await here.use(name, 1.0)
        assert here.states() == "rur"
        assert here.entry("b").counts["unload_room"] == 1

    run_virtual(main())


def test_a_model_in_use_is_waited_for() -> None:
    here = world(max_loaded=1)

    async def main() -> None:
        long = asyncio.ensure_future(here.use("a", 50.0))
        await asyncio.sleep(LOAD_S + 1.0)
        began = asyncio.get_running_loop().time()
        await here.use("b", 1.0)
        assert asyncio.get_running_loop().time() - began > 40.0
        assert await settle(long) == [None]
        assert here.device.most_alive == 1
        assert here.device.cut_off == 0

    run_virtual(main())


def test_nothing_is_unloaded_for_somebody_who_has_left() -> None:
    here = world(max_loaded=1)

    async def main() -> None:
        long = asyncio.ensure_future(here.use("a", 50.0))
        await asyncio.sleep(LOAD_S + 1.0)
        (outcome,) = await settle(*spawn(here.use("b", 1.0, timeout_s=5.0)))
        assert isinstance(outcome, DeadlineExceeded)
        await long
        await asyncio.sleep(100.0)
        assert here.states() == "ruu"
        assert here.device.loads == ["a"]

    run_virtual(main())


def test_what_has_been_loaded_is_used_before_it_makes_room_again() -> None:
    here = world(max_loaded=1)

    async def main() -> None:
        outcomes = await settle(*spawn(*[here.use(name, 3.0) for name in "abcabc"]))
        assert outcomes == [None] * 6
        assert here.device.loads == ["a", "b", "c"]

    run_virtual(main())


def test_a_pinned_model_makes_no_room() -> None:
    pinned = ModelPolicy(at_start=False, pinned=True)
    here = world([pinned, LAZY], max_loaded=1)

    async def main() -> None:
        await here.use("a", 1.0)
        (outcome,) = await settle(*spawn(here.use("b", 1.0)))
        assert isinstance(outcome, ModelUnavailable)
        assert "pinned" in outcome.message
        assert here.states() == "rf"

    run_virtual(main())


def test_memory_that_does_not_suffice_is_freed() -> None:
    here = world(sizes=[50, 40, 50])

    async def main() -> None:
        for name in "abc":
            await here.use(name, 1.0)
        assert here.states() == "urr"
        assert here.device.loads == ["a", "b", "c", "c"]
        assert here.entry("a").counts["unload_memory"] == 1

    run_virtual(main())


def test_a_model_that_does_not_fit_alone_fails_after_the_others_have_gone() -> None:
    here = world(sizes=[50, 40, 500])

    async def main() -> None:
        for name in "ab":
            await here.use(name, 1.0)
        (outcome,) = await settle(*spawn(here.use("c", 1.0)))
        assert isinstance(outcome, ModelUnavailable)
        assert here.device.alive == []

    run_virtual(main())


def test_nothing_is_unloaded_twice_for_a_model_that_does_not_fit_alone() -> None:
    here = world(sizes=[50, 40, 500])

    async def main() -> None:
        for name in "acac":
            await settle(*spawn(here.use(name, 1.0)))
            await asyncio.sleep(10.0)
        assert here.states() == "ruf"
        assert here.entry("a").counts["unload_memory"] == 1

    run_virtual(main())


def test_models_of_other_devices_stay_where_they_are() -> None:
    first, second = (ModelPolicy(at_start=False, devices=frozenset(d)) for d in "01")
    here = world([first, second], sizes=[60, 60])

    async def main() -> None:
        await here.use("a", 1.0)
        (outcome,) = await settle(*spawn(here.use("b", 1.0)))
        assert isinstance(outcome, ModelUnavailable)
        assert here.states() == "rf"

    run_virtual(main())


# --- unloading ---


def test_an_idle_model_is_unloaded_after_its_time_and_comes_back() -> None:
    here = world([ModelPolicy(at_start=False, idle_unload_s=30.0)])

    async def main() -> None:
        for _ in range(5):
            await here.use("a", 20.0)
            await asyncio.sleep(20.0)
        assert here.device.loads == ["a"]
        await asyncio.sleep(40.0)
        assert here.states() == "u"
        await here.use("a", 1.0)
        assert here.device.loads == ["a", "a"]

    run_virtual(main())


def test_unloading_lets_requests_end() -> None:
    here = world()

    async def main() -> None:
        running = asyncio.ensure_future(here.use("a", 15.0))
        await asyncio.sleep(LOAD_S + 1.0)
        unloading = asyncio.ensure_future(here.fleet.unload(here.entry("a")))
        await asyncio.sleep(1.0)
        assert here.states() == "duu"
        later = asyncio.ensure_future(here.use("a", 1.0))
        await unloading
        assert running.done()
        assert await settle(running, later) == [None, None]
        assert here.device.loads == ["a", "a"]
        assert here.device.cut_off == 0

    run_virtual(main())


def test_unloading_has_a_bound() -> None:
    here = world()

    async def main() -> None:
        running = asyncio.ensure_future(here.use("a", 500.0))
        await asyncio.sleep(LOAD_S + 1.0)
        await here.fleet.unload(here.entry("a"))
        assert here.states() == "uuu"
        assert here.device.cut_off == 1
        running.cancel()
        await settle(running)

    run_virtual(main())


def test_unloading_stops_a_load() -> None:
    here = world()

    async def main() -> None:
        waiting = asyncio.ensure_future(here.use("a", 1.0))
        await asyncio.sleep(1.0)
        await here.fleet.unload(here.entry("a"))
        (outcome,) = await settle(waiting)
        assert isinstance(outcome, NotReady)
        assert here.states() == "uuu"
        assert here.device.alive == []

    run_virtual(main())


def test_who_comes_while_a_load_is_being_stopped_gets_another() -> None:
    here = world()

    async def main() -> None:
        first = asyncio.ensure_future(here.use("a", 1.0))
        await asyncio.sleep(1.0)
        unloading = spawn(*[here.fleet.unload(here.entry("a")) for _ in range(2)])
        await asyncio.sleep(0.2)  # stopping takes half a second
        second = asyncio.ensure_future(here.use("a", 1.0))
        await settle(*unloading)
        outcomes = await settle(first, second)
        assert [type(outcome) for outcome in outcomes] == [NotReady, type(None)]

    run_virtual(main())


def test_unloading_twice_is_unloading_once() -> None:
    here = world()

    async def main() -> None:
        await here.use("a", 1.0)
        await settle(*spawn(*[here.fleet.unload(here.entry("a")) for _ in range(3)]))
        await here.fleet.unload(here.entry("a"))
        assert here.states() == "uuu"
        assert here.entry("a").counts["unload_request"] == 1

    run_virtual(main())


def test_counters_go_on_in_the_next_engine_and_gauges_do_not_stay() -> None:
    here = world()

    async def main() -> None:
        await here.use("a", 1.0)
        await here.fleet.unload(here.entry("a"))
        stats = here.entry("a").status.stats
        assert (stats.totals.steps, stats.running, stats.blocks_used) == (1, 0, 0)
        await here.use("a", 1.0)
        assert here.entry("a").status.stats.totals.steps == 2

    run_virtual(main())


# --- moments that timers do not meet ---


def test_who_leaves_in_the_moment_of_being_let_in_does_not_count_for_ever() -> None:
    entry = world().entry("a")
    entry.open()

    async def main() -> None:
        waiting = asyncio.ensure_future(entry.wait())
        await asyncio.sleep(0)
        entry.admit_waiters()
        waiting.cancel()
        await settle(waiting)
        assert entry.users == 0
        assert entry.unused.is_set()

    run_virtual(main())


def test_who_comes_in_the_moment_that_a_load_is_given_up_gets_another() -> None:
    here = world(max_loaded=1)

    async def main() -> None:
        long = asyncio.ensure_future(here.use("a", 50.0))
        await asyncio.sleep(LOAD_S + 1.0)
        first = asyncio.ensure_future(here.use("b", 1.0))
        await asyncio.sleep(1.0)
        first.cancel()
        await asyncio.sleep(0)  # the load has been told, and not yet heard of it
        await here.use("b", 1.0)
        assert await settle(long) == [None]

    run_virtual(main())


def test_an_engine_that_is_just_being_stopped_is_stopped_to_the_end() -> None:
    here = world(device=Device(errors=[EngineDied("planted")]))

    async def main() -> None:
        waiting = asyncio.ensure_future(here.use("a", 1.0))
        await asyncio.sleep(LOAD_S + 0.2)  # stopping takes half a second
        await here.fleet.stop()
        await settle(waiting)
        assert here.device.alive == []
        assert here.entry("a").engine is None

    run_virtual(main())


# --- the end ---


def test_the_end_waits_for_what_runs_and_refuses_what_waits() -> None:
    here = world()

    async def main() -> None:
        running = asyncio.ensure_future(here.use("a", 15.0))
        await asyncio.sleep(LOAD_S + 1.0)
        waiting = asyncio.ensure_future(here.use("b", 1.0))
        await asyncio.sleep(1.0)
        assert await here.fleet.drain(30.0)
        await here.fleet.stop()
        ran, refused = await settle(running, waiting)
        assert ran is None
        assert isinstance(refused, Draining)
        assert here.device.alive == []

    run_virtual(main())


def test_nothing_is_unloaded_anew_while_the_server_ends() -> None:
    here = world()

    async def main() -> None:
        await here.use("a", 1.0)
        ending = asyncio.ensure_future(here.fleet.stop())
        await asyncio.sleep(0.25)  # stopping takes half a second
        with pytest.raises(Draining):
            await here.fleet.unload(here.entry("a"))
        await ending
        assert here.device.alive == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


# --- all of it at once ---

seconds = st.integers(0, 240).map(lambda quarters: quarters / 4)
requests = st.tuples(
    st.just("use"),
    st.sampled_from("abc"),
    seconds,
    st.tuples(st.integers(0, 30).map(float), st.none() | seconds, st.none() | seconds),
)
others = st.tuples(
    st.sampled_from(["load", "unload", "crash", "fail"]),
    st.sampled_from("abc"),
    seconds,
    st.none(),
)
policies = st.builds(
    ModelPolicy,
    at_start=st.just(False),
    pinned=st.booleans(),
    idle_unload_s=st.none() | st.integers(1, 30).map(float),
    devices=st.sampled_from([frozenset(), frozenset("0"), frozenset("1")]),
    max_waiting=st.integers(1, 5),
)


@given(
    events=st.lists(st.one_of(requests, requests, others), max_size=25),
    policies=st.tuples(policies, policies, policies),
    max_loaded=st.none() | st.integers(1, 3),
    sizes=st.lists(st.integers(10, 60), min_size=3, max_size=3),
    end_s=seconds,
)
def test_whatever_happens_nobody_hangs_and_nothing_is_left(
    events: list[tuple[str, str, float, tuple[float, float | None, float | None] | None]],
    policies: tuple[ModelPolicy, ...],
    max_loaded: int | None,
    sizes: list[int],
    end_s: float,
) -> None:
    here = world(policies, sizes=sizes, max_loaded=max_loaded)

    async def happen(
        kind: str,
        name: str,
        at_s: float,
        request: tuple[float, float | None, float | None] | None,
    ) -> None:
        await asyncio.sleep(at_s)
        entry = here.entry(name)
        match kind:
            case "use":
                assert request is not None
                hold_s, timeout_s, leaves_after_s = request
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(leaves_after_s):
                        await here.use(name, hold_s, timeout_s)
            case "load":
                await here.fleet.acquire(entry)
                entry.leave()
            case "unload":
                await here.fleet.unload(entry)
            case "crash":
                engine = entry.engine
                if isinstance(engine, TimedEngine) and engine.state is EngineState.READY:
                    engine.state = EngineState.RESTARTING
                    await asyncio.sleep(5.0)
                    if engine.state is EngineState.RESTARTING:
                        engine.state = EngineState.READY
            case "fail":
                here.device.errors.append(EngineDied("planted"))

    async def main() -> None:
        running = [asyncio.ensure_future(happen(*event)) for event in events]
        await asyncio.sleep(end_s)
        assert here.device.most_alive <= (max_loaded or 3)
        await here.fleet.drain(30.0)
        if "unload" not in [event[0] for event in events]:
            assert here.device.cut_off == 0
        await here.fleet.stop()
        for task in running:
            task.cancel()
        for outcome in await settle(*running):
            assert outcome is None or isinstance(outcome, CapacityError | asyncio.CancelledError), (
                outcome
            )
            assert "was stopped" not in str(outcome), "somebody else stopped what it waited for"
        assert here.device.alive == []
        assert [entry.users for entry in map(here.entry, "abc")] == [0, 0, 0]
        assert [entry.num_waiting for entry in map(here.entry, "abc")] == [0, 0, 0]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
