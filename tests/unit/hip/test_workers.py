"""The worker processes of other ranks, when one of them ends."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from threading import Event, Thread
from traceback import walk_tb

import pytest

from rocmforge_hip.parallel.messages import Order
from rocmforge_hip.parallel.processes import RankFailed, Workers
from tests.support.processes.children import RANK, children

LONG_S = 60.0


class _Group:
    """Workers whose group takes as long to be aborted as the test likes."""

    def __init__(self) -> None:
        self.can_be_aborted = Event()
        self.workers = Workers([0])
        self.workers.watch(self._abort)

    def _abort(self) -> None:
        self.can_be_aborted.wait(LONG_S)

    def close(self) -> None:
        self.can_be_aborted.set()
        self.workers.kill()


def _send_until_it_fails(workers: Workers, seen: list[RankFailed]) -> None:
    while True:
        try:
            workers.send(Order.COLLECT)
        except RankFailed as failure:
            seen.append(failure)
            return
        time.sleep(0.01)


@pytest.mark.slow
def test_who_sends_to_a_worker_that_was_killed_need_not_wait_until_its_group_is_aborted() -> None:
    with closing(_Group()) as group:
        (pid,) = children(os.getpid(), RANK)
        os.kill(pid, signal.SIGKILL)
        seen: list[RankFailed] = []
        sender = Thread(target=_send_until_it_fails, args=(group.workers, seen), daemon=True)
        sender.start()
        sender.join(LONG_S / 2)
        assert [failure.rank for failure in seen] == [1]
        with pytest.raises(RankFailed):
            group.workers.wait_loaded()
        # Workers keep the failure, and its frames keep the workers. Python 3.13 complains of a
        # buffer that is lent to a view when it collects both in one such circle.
        frames = [frame for frame, _ in walk_tb(seen[0].__traceback__)]
        kept = [value for frame in frames for value in frame.f_locals.values()]
        assert not any(isinstance(value, memoryview) for value in kept)
