"""One thread that looks after the GPUs in use: their sensors, and what the kernel says of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocmforge.sensors.kernel_log import KernelEvent, KernelLog, KernelRecord
from rocmforge.sensors.memory import MemoryHolder, all_holders
from rocmforge.sensors.reading import DeviceReading, ErrorCounts, read_device, remarks
from rocmforge.sensors.throttling import Throttle

logger = logging.getLogger(__name__)

WATCH_S: Final = 5.0
ENDS: Final = frozenset({KernelEvent.RESET, KernelEvent.LOST, KernelEvent.RESET_FAILED})
"""After these, nothing that a process had on the device is to be trusted."""

_ERRORS_EVERY: Final = 12  # looks: asking for counts of errors is asking the hardware
_MOST_RECORDS: Final = 2000  # of the kernel's log at a look
_MOST_EVENTS: Final = 32
_IDLE_LOOKS: Final = 2  # in which a device did nothing, before its power counts as idle power
_GIB: Final = 1 << 30
_NAMED_HOLDERS: Final = 5
_TOLD: Final = 3  # of the kernel's lines in a message
_LEAST_HELD: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    """Words of the kernel about a device that is in use."""

    at: float  # seconds since 1970
    device: str
    event: KernelEvent
    text: str  # of the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The knowledge of all devices after a look; never changes."""

    readings: Mapping[str, DeviceReading]
    idle_power_w: Mapping[str, float]
    events: tuple[DeviceEvent, ...]  # the last ones
    event_counts: Mapping[tuple[str, KernelEvent], int]
    throttled_s: Mapping[tuple[str, Throttle], float]
    hears: bool  # whether the kernel's log can be read

    def counts_of(self, device: str) -> list[tuple[KernelEvent, int]]:
        """Returns how often the kernel told of what; nothing if it cannot be heard."""
        kinds = KernelEvent if self.hears else ()
        return [(event, self.event_counts.get((device, event), 0)) for event in kinds]


NO_SIGHT: Final = Sight(
    readings=MappingProxyType({}),
    idle_power_w=MappingProxyType({}),
    events=(),
    event_counts=MappingProxyType({}),
    throttled_s=MappingProxyType({}),
    hears=False,
)


class DeviceWatch:
    """Looks at devices while somebody uses them.

    Files of a driver that hangs can keep a reader waiting for ever. So only this thread reads
    them, and everybody else reads `sight`; how old that is says whether the thread waits.

    Args:
        root: of the file system that has `dev`, `proc` and `sys`.
        interval_s: from one look to the next.
        pid: of the server: the memory of its children is not others'.

    Attributes:
        sight: the last look. Replaced by the thread, read by any.
        on_end: called by the thread with a device, and which of `ENDS` the kernel told of it.
    """

    def __init__(
        self, root: Path = Path("/"), *, interval_s: float = WATCH_S, pid: int | None = None
    ) -> None:
        self.sight = NO_SIGHT
        self.on_end: Callable[[str, KernelEvent], None] = lambda device, event: None
        self._root = root
        self._interval_s = interval_s
        self._ours = frozenset() if pid is None else frozenset({pid})
        self._wanted: frozenset[str] = frozenset()
        self._news = threading.Event()
        self._seen = threading.Condition()
        self._has_ended = False
        self._thread: threading.Thread | None = None
        # From here on the thread's own.
        self._begun = 0  # looks; changed with `_seen`, as is the next
        self._looks = 0  # that have ended
        self._looked_at: float | None = None
        self._errors: dict[str, ErrorCounts] = {}
        self._counted: set[str] = set()  # devices of which these are believed for a while
        self._idle: Counter[str] = Counter()
        self._idle_power: dict[str, float] = {}
        self._events: deque[DeviceEvent] = deque(maxlen=_MOST_EVENTS)
        self._counts: Counter[tuple[str, KernelEvent]] = Counter()
        self._throttled: dict[tuple[str, Throttle], float] = {}
        self._noted: dict[str, frozenset[Throttle]] = {}

    def follow(self, devices: frozenset[str]) -> None:
        """Says which devices are in use now, by PCI address; the thread looks at once."""
        self._wanted = devices
        if devices and self._thread is None and not self._has_ended:
            self._thread = threading.Thread(target=self._run, name="device watch", daemon=True)
            self._thread.start()
        self._news.set()

    def stop(self) -> None:
        """Ends the thread, unless it waits for a driver: then it is left behind. Idempotent."""
        self._has_ended = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def look_soon(self, timeout_s: float) -> None:
        """Has the thread look now, and waits until it has, but no longer than that."""
        if self._thread is None:
            return
        with self._seen:
            wanted = self._begun + 1  # a look under way may have missed what is asked for
            self._news.set()
            self._seen.wait_for(lambda: self._looks >= wanted or self._has_ended, timeout_s)

    def events(self, devices: tuple[str, ...], since: float) -> list[DeviceEvent]:
        """Returns what the kernel has said of devices since a time, in seconds since 1970."""
        return [e for e in self.sight.events if e.at >= since and e.device in devices]

    def account(self, devices: tuple[str, ...], since: float) -> str:
        """Returns what was seen of devices since a time, as the end of a message; maybe ""."""
        told = [event.text for event in self.events(devices, since)]
        if told:
            return f" The kernel says: {'; '.join(told[:_TOLD])}."
        found = [self.sight.readings[d] for d in devices if d in self.sight.readings]
        busy = [f"{r.busy:.0%}" for r in found if r.busy is not None and r.at >= since]
        return f" The device was {' and '.join(busy)} busy." if busy else ""

    def holders(self) -> str:
        """Returns who else holds memory of devices, as a sentence; "" if nobody does.

        It looks at files of all processes, but at none that waits for a device.
        """
        own = self._ours
        held = [h for h in all_holders(self._root) if h.nbytes >= _LEAST_HELD and h.pid not in own]
        if not held:
            return ""
        named = [_describe(holder) for holder in held[:_NAMED_HOLDERS]]
        rest = held[_NAMED_HOLDERS:]
        if rest:
            named.append(f"{len(rest)} more, {sum(h.nbytes for h in rest) / _GIB:.1f} GiB")
        return f" Memory of devices is held by {', '.join(named)}."

    def _run(self) -> None:
        log = KernelLog(self._root / "dev/kmsg", from_now=True)
        if log.problem is not None:
            logger.info(
                "the kernel's log cannot be read (%s): of a reset of a device, only the errors "
                "that follow will be seen",
                log.problem,
            )
        while not self._has_ended:
            with self._seen:  # or this look would be followed by one for those it serves already
                self._news.clear()
                self._begun += 1
            wanted = self._wanted
            self._look(wanted, log)
            self._news.wait(self._interval_s if wanted else None)
        log.close()

    def _look(self, wanted: frozenset[str], log: KernelLog) -> None:
        began = time.monotonic()
        passed_s = 0.0 if self._looked_at is None else began - self._looked_at
        self._looked_at = began if wanted else None
        for record in log.read(_MOST_RECORDS):
            self._note(record, wanted)
        readings = {device: self._read(device) for device in sorted(wanted)}
        for device, reading in readings.items():
            self._watch_throttling(reading, passed_s)
            self._watch_idleness(device, reading)
        sight = Sight(
            readings=MappingProxyType(readings),
            idle_power_w=MappingProxyType(dict(self._idle_power)),
            events=tuple(self._events),
            event_counts=MappingProxyType(dict(self._counts)),
            throttled_s=MappingProxyType(dict(self._throttled)),
            hears=log.problem is None,
        )
        with self._seen:
            self.sight = sight
            self._looks += 1
            self._seen.notify_all()

    def _read(self, device: str) -> DeviceReading:
        known = self._errors.get(device)
        if self._looks % _ERRORS_EVERY == 0:
            self._counted.discard(device)
        believed = known if device in self._counted else None
        self._counted.add(device)
        reading = read_device(self._root, device, self._ours, believed)
        if reading.errors is not None:
            if known is not None and reading.errors.uncorrected > known.uncorrected:
                logger.error(
                    "%s has counted %d more errors that ECC could not correct, %d in all: what "
                    "its memory holds may be wrong; see docs/troubleshooting.md",
                    device,
                    reading.errors.uncorrected - known.uncorrected,
                    reading.errors.uncorrected,
                )
            self._errors[device] = reading.errors
        return reading

    def _note(self, record: KernelRecord, wanted: frozenset[str]) -> None:
        # A line without an address is about the only device, if there is only one.
        devices = [record.device] if record.device is not None else sorted(wanted)
        if len(devices) > 1 or devices[0] not in wanted:
            return
        (device,) = devices
        self._counts[device, record.event] += 1
        self._events.append(
            DeviceEvent(at=time.time(), device=device, event=record.event, text=record.text)
        )
        is_good = record.event is KernelEvent.RECOVERED
        level = logging.WARNING if is_good else logging.ERROR
        logger.log(level, "the kernel says of %s (%s): %s", device, record.event, record.text)
        if record.event in ENDS:
            self.on_end(device, record.event)
        if record.event is KernelEvent.MEMORY_ERROR:
            self._counted.discard(device)

    def _watch_throttling(self, reading: DeviceReading, passed_s: float) -> None:
        if reading.throttled_by is None:
            return
        for reason in Throttle:
            key = reading.device, reason
            seconds = passed_s if reason in reading.throttled_by else 0.0
            self._throttled[key] = self._throttled.get(key, 0.0) + seconds
        # A card under load is at its power cap most of the time: that is no news.
        news = reading.throttled_by - {Throttle.POWER}
        if news != self._noted.get(reading.device, frozenset()):
            self._noted[reading.device] = news
            if news:
                logger.warning("%s: %s", reading.device, " ".join(remarks(reading)))
            else:
                logger.info("%s is not throttled any more", reading.device)

    def _watch_idleness(self, device: str, reading: DeviceReading) -> None:
        self._idle[device] = self._idle[device] + 1 if reading.busy == 0 else 0
        if self._idle[device] >= _IDLE_LOOKS and reading.power_w is not None:
            self._idle_power[device] = reading.power_w


def _describe(holder: MemoryHolder) -> str:
    who = f"process {holder.pid} outside this container" if holder.name is None else ""
    who = who or f"{holder.name} (process {holder.pid})"
    return f"{who}: {holder.nbytes / _GIB:.1f} GiB of {holder.device}"
