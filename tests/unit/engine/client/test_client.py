"""The client and a real engine process over the fake backend."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import pytest
import uvloop

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.client.handle import GenerationHandle
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, Share
from rocmforge.engine.ipc.status import EngineState
from rocmforge.errors import Draining, InvalidParameter, QueueFull
from tests.support.engine.engine_client import (
    PROMPT,
    TIMEOUT_S,
    Engine,
    config,
    read,
    run,
    state,
    submit,
    tokens,
)
from tests.support.engine.requests import asked
from tests.support.fakes.fake_model import continuation

pytestmark = pytest.mark.slow
LONG = SamplingParams(max_tokens=1000)


# --- serving ---


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("variant", ["create", "create_pipelined"])
def test_concurrent_requests_get_their_own_tokens(
    variant: str, run_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def test() -> None:
        async with Engine(variant) as engine:
            prompts = [[i] * (1 + i % 7) for i in range(100)]
            handles = [submit(engine, 30, prompt) for prompt in prompts]
            for prompt, events in zip(
                prompts, await asyncio.gather(*map(read, handles)), strict=True
            ):
                assert tokens(events) == continuation(prompt, 30)
                assert events[-1].finish_reason is FinishReason.LENGTH

    run(test(), run_loop)


def test_the_status_describes_the_loaded_model() -> None:
    async def test() -> None:
        async with Engine() as engine:
            status = engine.status
            assert status.state is EngineState.READY
            assert status.runner is not None
            assert status.runner.device.target == "fake"
            assert status.restarts == 0
            assert not status.is_fallback
            assert status.last_error is None

    run(test())


def test_statistics_count_every_step_and_end_with_nothing_in_use() -> None:
    async def test() -> None:
        async with Engine() as engine:
            await read(submit(engine))
            stats = engine.status.stats
            assert stats.blocks_total == 4096
            assert (stats.totals.steps, stats.totals.prefill_tokens) == (20, len(PROMPT))
            assert (stats.totals.decode_tokens, stats.totals.device_ns) == (20, 20_000)
            assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)

    run(test())


def test_next_lets_other_tasks_run_even_when_events_are_waiting() -> None:
    async def test() -> None:
        async with Engine() as engine:
            handle = submit(engine, 1)
            assert await engine.drain(TIMEOUT_S)
            others: list[str] = []
            task = asyncio.create_task(asyncio.sleep(0))
            task.add_done_callback(lambda _: others.append("ran"))
            asyncio.get_running_loop().call_soon(others.append, "called")
            assert (await handle.next())[-1].finish_reason is not None
            assert "called" in others

    run(test())


def test_a_closed_handle_ends_and_its_blocks_are_freed() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            handle, witness = submit(engine, 4000), submit(engine, 5)
            await handle.next()
            handle.close()
            handle.close()
            events = await read(handle)
            assert events[-1].finish_reason is FinishReason.CANCELLED
            await read(witness)
            assert engine.status.stats.blocks_used == 0

    run(test())


def test_closing_wakes_a_reader() -> None:
    async def test() -> None:
        async with Engine("create_hanging_0") as engine:
            handle = submit(engine)
            reader = asyncio.create_task(handle.next())
            await asyncio.sleep(0)
            handle.close()
            (event,) = await reader
            assert event.finish_reason is FinishReason.CANCELLED
            os.kill(engine.pid or 0, signal.SIGKILL)

    run(test())


def test_two_hundred_random_closes_under_load_leave_no_block_in_use() -> None:
    async def client(engine: AsyncEngine, random: Random) -> None:
        prompt = [9] * random.randrange(40) + [random.randrange(1000)]
        handle = submit(engine, 2000, prompt)
        produced: list[int] = []
        for _ in range(random.randrange(4)):
            for event in await handle.next():
                produced.extend(event.token_ids)
        handle.close()
        assert produced == continuation(prompt, len(produced))

    async def test() -> None:
        async with Engine("create_pipelined") as engine:
            await asyncio.gather(*[client(engine, Random(i)) for i in range(200)])
            assert tokens(await read(submit(engine))) == continuation(PROMPT, 20)
            assert engine.status.stats.blocks_used == 0
            assert engine.status.stats.running == 0
            assert engine.status.stats.waiting == 0

    run(test())


def test_a_deadline_ends_a_request() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            deadline_ns = time.monotonic_ns() + 100_000_000
            long = asked(PROMPT, SamplingParams(max_tokens=4000), deadline_ns=deadline_ns)
            events = await read(engine.submit(long))
            assert events[-1].finish_reason is FinishReason.DEADLINE

    run(test())


def test_a_handle_that_nobody_reads_is_cancelled() -> None:
    async def test() -> None:
        async with Engine(replace(config("create_slow"), client_stall_s=0.1)) as engine:
            handle = submit(engine, 4000)
            assert await engine.drain(TIMEOUT_S)
            assert (await read(handle))[-1].finish_reason is FinishReason.CANCELLED

    run(test())


# --- what is refused ---


def test_what_cannot_be_computed_is_refused_before_it_is_sent() -> None:
    async def test() -> None:
        async with Engine() as engine:
            with pytest.raises(InvalidParameter, match="empty"):
                submit(engine, prompt=[])
            for bad in ([1000], [-1]):
                with pytest.raises(InvalidParameter, match=r"0\.\.999"):
                    submit(engine, prompt=bad)
            with pytest.raises(InvalidParameter) as invalid:
                engine.submit(
                    asked(PROMPT, SamplingParams(max_tokens=1, logit_bias=((5000, 1.0),)))
                )
            assert invalid.value.param == "logit_bias"
            assert await engine.drain(0.0), "nothing was admitted"

    run(test())


def test_what_cannot_be_sent_is_not_waited_for() -> None:
    async def test() -> None:
        async with Engine() as engine:
            with pytest.raises(OverflowError):
                engine.submit(asked(PROMPT, SamplingParams(max_tokens=2, seed=2**64)))
            assert await engine.drain(0.0), "nothing was admitted"

    run(test())


def test_the_queue_is_bounded_and_opens_again() -> None:
    async def test() -> None:
        chosen = replace(config("create_slow", max_sequences=2), max_waiting=1)
        async with Engine(chosen) as engine:
            handles = [submit(engine, 1000) for _ in range(3)]
            with pytest.raises(QueueFull) as caught:
                submit(engine)
            assert caught.value.retry_after_s > 0
            handles[0].close()
            handles.append(submit(engine, 1))
            for handle in handles:
                handle.close()

    run(test())


def test_a_key_that_fills_the_queue_leaves_places_to_others() -> None:
    def submit_as(engine: AsyncEngine, key: int) -> GenerationHandle:
        return engine.submit(asked(PROMPT, LONG, share=Share(key=key)))

    def fill(engine: AsyncEngine, key: int) -> list[GenerationHandle]:
        taken = []
        try:
            while True:
                taken.append(submit_as(engine, key))
        except QueueFull:
            return taken

    async def test() -> None:
        chosen = replace(config("create_slow", max_sequences=8), max_waiting=56)
        async with Engine(chosen) as engine:
            handles = [fill(engine, key) for key in (1, 2, 3)]
            assert [len(taken) for taken in handles] == [48, 12, 3]
            handles.append([submit_as(engine, 4)])
            for handle in chain(*handles):
                handle.close()

    run(test())


def test_a_queue_that_is_not_needed_is_for_whoever_comes() -> None:
    async def test() -> None:
        chosen = replace(config("create_slow", max_sequences=8), max_waiting=0)
        async with Engine(chosen) as engine:
            for _ in range(8):
                engine.submit(asked(PROMPT, LONG, share=Share(key=1)))
            with pytest.raises(QueueFull):
                engine.submit(asked(PROMPT, LONG, share=Share(key=1)))

    run(test())


def test_draining_refuses_new_requests_and_finishes_the_old() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            handle = submit(engine, 5)
            drain = asyncio.create_task(engine.drain(TIMEOUT_S))
            await asyncio.sleep(0)
            assert state(engine) is EngineState.DRAINING
            with pytest.raises(Draining):
                submit(engine)
            assert await drain
            assert tokens(await read(handle)) == continuation(PROMPT, 5)

    run(test())


def test_a_drain_that_takes_too_long_says_so() -> None:
    async def test() -> None:
        async with Engine("create_slow") as engine:
            handle = submit(engine, 4000)
            assert not await engine.drain(0.05)
            await engine.stop()
            assert (await read(handle))[-1].finish_reason is FinishReason.DIED

    run(test())


def test_a_full_queue_says_how_long_a_place_took_lately() -> None:
    async def test() -> None:
        chosen = replace(config("create_very_slow", max_sequences=1), max_waiting=0)
        async with Engine(chosen) as engine:
            for _ in range(2):
                await read(submit(engine, 3))  # three steps of 0.7 s
            handle = submit(engine, 100)
            with pytest.raises(QueueFull) as caught:
                submit(engine)
            assert caught.value.retry_after_s > 1
            handle.close()

    run(test())
