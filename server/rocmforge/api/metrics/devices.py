"""The abilities and needs of devices, where backends and drivers tell.

A family whose numbers are not known is left out, so that no dashboard shows a made-up zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.ipc.status import EngineStatus
from rocmforge.sensors.power import energy_j, power_w

SYSFS: Final = Path("/sys")
FAMILIES: Final = (
    "device_copy_bytes_per_second",
    "device_power_watts",
    "device_energy_joules",
)


Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


class DeviceCollector(Collector):
    """Reads sensors of the engine's devices when somebody scrapes.

    Args:
        prefix: of all names.
        labels: names and values of those that every sample has.
        status: of the engine.
        sysfs: where the kernel shows devices.
    """

    def __init__(
        self,
        prefix: str,
        labels: Mapping[str, str],
        status: Callable[[], EngineStatus],
        sysfs: Path = SYSFS,
    ) -> None:
        self._prefix = prefix
        self._labels = tuple(labels)
        self._values = tuple(labels.values())
        self._status = status
        self._devices = sysfs / "bus/pci/devices"

    def describe(self) -> Iterator[Metric]:
        """Yields nothing: the registry would otherwise collect once at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields all families that there are numbers for."""
        status = self._status()
        if status.runner is not None:
            yield from self._device(status.runner)

    def _device(self, runner: RunnerInfo) -> Iterator[Metric]:
        if runner.copy_bandwidth:
            yield self._one(
                GaugeMetricFamily,
                "device_copy_bytes_per_second",
                "Bytes that the device read and wrote in a second of copying, measured at load.",
                runner.copy_bandwidth,
            )
        for kind, name, text, read in (
            (GaugeMetricFamily, "device_power_watts", "Power that the device draws.", power_w),
            (
                CounterMetricFamily,
                "device_energy_joules",
                "Energy that the device has used since its driver was loaded.",
                energy_j,
            ),
        ):
            family = kind(self._prefix + name, text, labels=(*self._labels, "device"))
            for bus_id in runner.bus_ids:
                value = read(self._devices / bus_id)
                if value is not None:
                    family.add_metric((*self._values, bus_id), value)
            if family.samples:
                yield family

    def _one(self, kind: Family, name: str, text: str, value: float) -> Metric:
        family = kind(self._prefix + name, text, labels=self._labels)
        family.add_metric(self._values, value)
        return family
