"""The parts that runners of decoders and of encoders have in common."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from rocmforge.backend.protocol import RunnerInfo
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.run.pipeline import Pipeline


class DeviceModel(Protocol):
    """A model on the device."""

    @property
    def inputs(self) -> DeviceArray:
        """The array of a step's inputs, in bytes."""
        ...


M = TypeVar("M", bound=DeviceModel)
T = TypeVar("T")


class BaseRunner(Generic[M, T]):
    """A model, and its steps in flight; `T` is what must be known of one.

    Args:
        device: Owned from now on.
        model: What computes.
        limits: Of a step, as planned at load.
        info: What is said of it.
        output_bytes: Of the largest step's results.
    """

    def __init__(
        self, device: Device, model: M, limits: StepLimits, info: RunnerInfo, output_bytes: int
    ) -> None:
        self._device = device
        self._open_model: M | None = model
        self._limits = limits
        self._info = info
        self._pipeline: Pipeline[T] = Pipeline(device, model.inputs.nbytes, output_bytes)

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def driver(self) -> Driver:
        """The driver, for its counters."""
        return self._device.driver

    def close(self) -> None:
        if self._open_model is not None:
            self._open_model = None
            self._pipeline.close(self._free)

    @property
    def _model(self) -> M:
        assert self._open_model is not None, "the runner is closed"
        return self._open_model

    def _free(self) -> None:
        """Gives back what was made beside the model. Nothing is running any more."""
