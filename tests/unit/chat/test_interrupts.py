"""^C during work, between two pieces of it, and when one has just ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from rocmforge.commands.terminal.interrupts import Interrupted, Interrupts


async def forever() -> None:
    await asyncio.Event().wait()


async def stubborn() -> str:
    """Ends with a result when it is cancelled, as what was about to end anyway does."""
    with contextlib.suppress(asyncio.CancelledError):
        await forever()
    return "result"


async def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(0.001)  # the loop learns of it from a socket


def test_an_interrupt_ends_what_runs_and_nothing_after_it() -> None:
    async def scenario() -> None:
        with Interrupts() as interrupts:
            interrupting = asyncio.create_task(interrupt())
            with pytest.raises(Interrupted):
                await interrupts.unless(forever())
            await interrupting
            assert await interrupts.unless(asyncio.sleep(0, "result")) == "result"

    asyncio.run(scenario())


def test_one_that_comes_between_ends_what_runs_next() -> None:
    async def scenario() -> None:
        with Interrupts() as interrupts:
            await interrupt()
            with pytest.raises(Interrupted):
                await interrupts.unless(forever())

    asyncio.run(scenario())


def test_what_ends_as_it_comes_keeps_its_result_and_what_runs_next_ends() -> None:
    async def scenario() -> None:
        with Interrupts() as interrupts:
            interrupting = asyncio.create_task(interrupt())
            assert await interrupts.unless(stubborn()) == "result"
            with pytest.raises(Interrupted):
                await interrupts.unless(forever())
            await interrupting

    asyncio.run(scenario())


def test_a_cancellation_from_elsewhere_is_none() -> None:
    async def scenario() -> None:
        with Interrupts() as interrupts:
            task = asyncio.create_task(interrupts.unless(forever()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())


def test_python_takes_signals_again_afterwards() -> None:
    async def scenario() -> None:
        with Interrupts():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    asyncio.run(scenario())
