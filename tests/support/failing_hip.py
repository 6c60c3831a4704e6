"""The HIP backend on a device that fails. For `--backend`:

tests.support.failing_hip:create_hanging   a step that the device never finishes
tests.support.failing_hip:create_faulting  a step that reads memory that is not there
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, Final

import numpy as np
from hip import hip as _hip

from rocmforge.backend.protocol import LoadOptions, ProgressCallback, StepInput
from rocmforge.models.checkpoint import Checkpoint
from rocmforge_hip.backend import HipBackend
from rocmforge_hip.run.runner import HipRunner

FAILING_STEP: Final = 8
"""Counted from 0, in each life of the engine process."""

hip: Any = _hip  # without types


class FailingBackend(HipBackend):
    """Its runners fail at one step."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> HipRunner:
        """A runner whose step FAILING_STEP fails on the device."""
        runner = super().load(checkpoint, options, progress)
        assert isinstance(runner, HipRunner)
        submit = runner.submit

        def submit_or_fail(step: StepInput) -> None:
            if step.step_id != FAILING_STEP:
                submit(step)
            elif self._kind == "hanging":
                stop_stream(runner.driver.device, runner._device.stream)
                submit(step)
            else:
                submit(replace(step, block_table=np.full_like(step.block_table, 1 << 20)))

        runner.submit = submit_or_fail  # type: ignore[method-assign]
        return runner


def stop_stream(device: int, stream: int) -> None:
    """Lets the stream wait for ever: pause(2) returns when a signal comes."""
    pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p)
    (status,) = hip.hipLaunchHostFunc(stream, pause, None)
    assert status == hip.hipError_t.hipSuccess, (device, status)


def create_hanging() -> FailingBackend:
    """Entry point."""
    return FailingBackend("hanging")


def create_faulting() -> FailingBackend:
    """Entry point."""
    return FailingBackend("faulting")
