"""What /metrics says of devices: all that backend and driver tell, and nothing made up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from litestar.testing import TestClient
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rocmforge.api.app import build_app
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.metrics.fleet import FleetMetrics
from rocmforge.api.metrics.requests import Metrics
from rocmforge.engine.ipc.status import EngineStats, EngineStatus, ProofStatus
from rocmforge.engine.ipc.totals import Totals, families
from rocmforge.fleet.fleet import Fleet
from rocmforge.sensors.watch import DeviceWatch, Sight
from tests.api.fake_engine import RUNNER, FakeEngine, make_model
from tests.api.metrics.test_metrics import value
from tests.support.files.device_tree import DeviceTree

DEVICES = ("0000:03:00.0", "0000:43:00.0")
COSTS = EngineStats(totals=Totals(launches=70, read_bytes=6_000_000, gap_ns=1_500_000, device_ns=3))


@pytest.fixture
def sight(tmp_path: Path) -> Sight:
    """Two devices, of which one tells little, after they were looked at twice."""
    DeviceTree(tmp_path, DEVICES[0])
    folder = tmp_path / "sys/bus/pci/devices" / DEVICES[1] / "hwmon/hwmon5"
    folder.mkdir(parents=True)
    (folder / "power1_input").write_text("80000000\n")
    watch = DeviceWatch(tmp_path, interval_s=60.0)
    watch.follow(frozenset(DEVICES))
    while not watch.sight.idle_power_w:
        watch.look_soon(5.0)
    watch.stop()
    return watch.sight


def samples(status: EngineStatus, sight: Sight) -> list[Sample]:
    metrics = Metrics("tiny", lambda: status, lambda: sight)
    return [sample for family in metrics.registry.collect() for sample in family.samples]


def test_what_a_backend_counts_is_exported(sight: Sight) -> None:
    runner = replace(RUNNER, copy_bandwidth=8.5e11, bus_ids=DEVICES)
    found = samples(replace(FakeEngine(runner=runner).status, stats=COSTS), sight)
    assert value(found, "rocmforge_engine_read_bytes_total") == 6_000_000
    assert value(found, "rocmforge_engine_kernel_launches_total") == 70
    assert value(found, "rocmforge_engine_step_gap_seconds_total") == pytest.approx(0.0015)
    assert value(found, "rocmforge_device_copy_bytes_per_second") == 8.5e11


def test_power_and_energy_are_told_for_each_device_that_tells_them(sight: Sight) -> None:
    runner = replace(RUNNER, bus_ids=(*DEVICES, "0000:63:00.0"))
    found = samples(FakeEngine(runner=runner).status, sight)
    power = {s.labels["device"]: s.value for s in found if s.name == "rocmforge_device_power_watts"}
    assert power == {DEVICES[0]: 15.0, DEVICES[1]: 80.0}
    energy = [s for s in found if s.name == "rocmforge_device_energy_joules_total"]
    assert [(s.labels["device"], s.value) for s in energy] == [(DEVICES[0], 9.0)]


def test_what_is_not_known_is_left_out(sight: Sight) -> None:
    names = {sample.name for sample in samples(FakeEngine().status, sight)}
    assert "rocmforge_engine_steps_total" in names
    told = ("rocmforge_device_", "rocmforge_engine_read_", "rocmforge_engine_kernel_")
    assert not [name for name in names if name.startswith(told)]


def test_each_counter_is_exported_as_it_is_declared(sight: Sight) -> None:
    fields = Totals.__struct_fields__
    counted = {name: number for number, name in enumerate(fields, start=1)}
    status = replace(FakeEngine().status, stats=EngineStats(totals=Totals(**counted)))
    found = {
        (sample.name, sample.labels.get("method", "")): sample.value
        for sample in samples(status, sight)
    }
    told = families()
    assert {*fields} - {*told} == {"prefill_tokens", "decode_tokens"}, "requests count these"
    for field, family in told.items():
        value = found[f"rocmforge_{family.name}_total", family.method]
        assert value == pytest.approx(counted[field] * family.unit)


class CostlyEngine(FakeEngine):
    """Tells what its steps cost."""

    @property
    def status(self) -> EngineStatus:
        proof = ProofStatus(is_running=True, problem=None, dropped=(("queue", 1),))
        return replace(super().status, stats=COSTS, proof=proof)


def test_the_documentation_has_every_family_and_no_other(sight: Sight) -> None:
    told = replace(RUNNER, copy_bandwidth=1.0, bus_ids=DEVICES, state_slots=1, state_bytes=1)
    engine = CostlyEngine(runner=told)
    watch = DeviceWatch()
    watch.sight = sight
    fleet = Fleet([make_model(engine)], watch=watch)
    metrics = FleetMetrics(fleet)
    metrics.of(fleet.models[0]).name_key(1, "alice")
    with TestClient(build_app(fleet, ApiSettings(), metrics=metrics)) as client:
        exported = {
            family.name.removeprefix("rocmforge_")
            for family in text_string_to_metric_families(client.get("/metrics").text)
            if family.name.startswith("rocmforge_")
        }
    folder = Path(__file__).parents[3] / "docs"
    rows = re.findall(
        r"^\| (`.*?`) \|", (folder / "monitoring.md").read_text("utf-8"), re.MULTILINE
    )
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == exported
    texts = [page.read_text(encoding="utf-8") for page in folder.glob("*.md")]
    elsewhere = {name for text in texts for name in re.findall(r"`rocmforge_([a-z]\w+)", text)}
    assert {name.removesuffix("_total") for name in elsewhere} <= exported
