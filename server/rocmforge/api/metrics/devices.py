"""The abilities and needs of devices, where backends and drivers tell.

A family whose numbers are not known is left out, so that no dashboard shows a made-up zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rocmforge.engine.ipc.status import EngineStatus
from rocmforge.sensors.reading import DeviceReading
from rocmforge.sensors.watch import Sight

Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
Value = Callable[[DeviceReading], float | None]

_OF_READINGS: Final[tuple[tuple[Family, str, str, Value], ...]] = (
    (
        GaugeMetricFamily,
        "device_power_watts",
        "Power that the device draws.",
        lambda reading: reading.power_w,
    ),
    (
        GaugeMetricFamily,
        "device_power_cap_watts",
        "Power that the device's firmware keeps it below.",
        lambda reading: reading.power_cap_w,
    ),
    (
        GaugeMetricFamily,
        "device_power_cap_default_watts",
        "The cap that the device has if nobody sets another.",
        lambda reading: reading.default_cap_w,
    ),
    (
        CounterMetricFamily,
        "device_energy_joules",
        "Energy that the device has used since its driver was loaded.",
        lambda reading: reading.energy_j,
    ),
    (
        GaugeMetricFamily,
        "device_busy_ratio",
        "Share of its time that the device computed lately, 0 to 1.",
        lambda reading: reading.busy,
    ),
    (
        GaugeMetricFamily,
        "device_memory_total_bytes",
        "Memory of the device.",
        lambda reading: reading.memory_total,
    ),
    (
        GaugeMetricFamily,
        "device_memory_used_bytes",
        "Memory of the device that is in use, whoever uses it.",
        lambda reading: reading.memory_used,
    ),
    (
        GaugeMetricFamily,
        "device_memory_of_others_bytes",
        "Memory of the device that processes other than this server's hold.",
        lambda reading: reading.memory_of_others,
    ),
    (
        GaugeMetricFamily,
        "device_sensor_age_seconds",
        "Since the device's sensors were read; it grows while the driver does not answer.",
        lambda reading: max(time.time() - reading.at, 0.0),
    ),
)
FAMILIES: Final = (
    *("device_copy_bytes_per_second", "device_idle_power_watts", "device_temperature_celsius"),
    *("device_throttled_seconds", "device_ecc_errors", "device_events"),
    *(name for _, name, _, _ in _OF_READINGS),
)


class DeviceCollector(Collector):
    """Tells when somebody scrapes what was seen of the engine's devices last.

    Args:
        prefix: of all names.
        labels: names and values of those that every sample has.
        status: of the engine.
        sight: the last look at the devices.
    """

    def __init__(
        self,
        prefix: str,
        labels: Mapping[str, str],
        status: Callable[[], EngineStatus],
        sight: Callable[[], Sight],
    ) -> None:
        self._prefix = prefix
        self._labels = tuple(labels)
        self._values = tuple(labels.values())
        self._status = status
        self._sight = sight

    def describe(self) -> Iterator[Metric]:
        """Yields nothing: the registry would otherwise collect once at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields all families that there are numbers for."""
        runner, sight = self._status().runner, self._sight()
        if runner is None:
            return
        families = [self._copying(runner.copy_bandwidth)]
        families += self._readings(runner.bus_ids, sight)
        families += [self._throttling(runner.bus_ids, sight), self._events(runner.bus_ids, sight)]
        yield from (family for family in families if family.samples)

    def _copying(self, bandwidth: float) -> Metric:
        text = "Bytes that the device read and wrote in a second of copying, measured at load."
        family = GaugeMetricFamily(
            self._prefix + "device_copy_bytes_per_second", text, labels=self._labels
        )
        if bandwidth:
            family.add_metric(self._values, bandwidth)
        return family

    def _readings(self, devices: tuple[str, ...], sight: Sight) -> Iterator[Metric]:
        readings = {d: sight.readings[d] for d in devices if d in sight.readings}
        for kind, name, text, value_of in _OF_READINGS:
            family = self._family(kind, name, text)
            for device, reading in readings.items():
                value = value_of(reading)
                if value is not None:
                    family.add_metric((*self._values, device), value)
            yield family
        idle = self._family(
            GaugeMetricFamily,
            "device_idle_power_watts",
            "Power that the device drew when it last had nothing to do.",
        )
        heat = self._family(
            GaugeMetricFamily, "device_temperature_celsius", "Temperature of a sensor.", "sensor"
        )
        errors = self._family(
            CounterMetricFamily,
            "device_ecc_errors",
            "Errors of memory and caches since the driver was loaded.",
            "kind",
        )
        for device, reading in readings.items():
            if device in sight.idle_power_w:
                idle.add_metric((*self._values, device), sight.idle_power_w[device])
            for sensor, temperature in reading.temperatures.items():
                heat.add_metric((*self._values, device, sensor), temperature.now)
            if reading.errors is not None:
                for kind_of in ("corrected", "uncorrected"):
                    count = getattr(reading.errors, kind_of)
                    errors.add_metric((*self._values, device, kind_of), count)
        yield from (idle, heat, errors)

    def _throttling(self, devices: tuple[str, ...], sight: Sight) -> Metric:
        family = self._family(
            CounterMetricFamily,
            "device_throttled_seconds",
            "Time for which the device's clocks were held down, as seen in looks at it.",
            "reason",
        )
        for (device, reason), seconds in sight.throttled_s.items():
            if device in devices:
                family.add_metric((*self._values, device, reason), seconds)
        return family

    def _events(self, devices: tuple[str, ...], sight: Sight) -> Metric:
        family = self._family(
            CounterMetricFamily,
            "device_events",
            "What the kernel's log said of the device since it is in use.",
            "event",
        )
        for device in devices:
            for event, count in sight.counts_of(device):
                family.add_metric((*self._values, device, event), count)
        return family

    def _family(
        self, kind: Family, name: str, text: str, *labels: str
    ) -> CounterMetricFamily | GaugeMetricFamily:
        return kind(self._prefix + name, text, labels=(*self._labels, "device", *labels))
