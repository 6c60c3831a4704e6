"""A runner whose steps take as long as a test says, whatever the machine is like."""

from __future__ import annotations

from dataclasses import replace

from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import StepOutput


class Timed:
    """Wraps a runner; all steps take `device_ns` nanoseconds. If they take none, drafting pays."""

    def __init__(self, runner: Runner, device_ns: int = 0) -> None:
        self._runner = runner
        self._device_ns = device_ns
        self.info = runner.info
        self.submit = runner.submit
        self.close = runner.close

    def collect(self) -> StepOutput:
        """Waits for the oldest step."""
        return replace(self._runner.collect(), device_ns=self._device_ns)
