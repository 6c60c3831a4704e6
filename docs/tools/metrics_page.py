"""The page of all metrics: an exposition of a server that has everything, made into a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from docs.tools.markdown import code, table
from rocmforge.api.metrics.fleet import FleetMetrics
from rocmforge.engine.ipc.status import EngineStats, EngineStatus, ProofStatus
from rocmforge.engine.ipc.totals import Totals
from rocmforge.fleet.fleet import Fleet
from rocmforge.sensors.watch import DeviceWatch
from tests.api.fake_engine import RUNNER, FakeEngine, make_model
from tests.support.files.device_tree import DeviceTree

_HEAD = """# Metrics

All families of `/metrics`, as the server exports them; [monitoring.md](../monitoring.md) says
what to do with them. Families with a dot are exported as `vllm:...`, too, with `--metrics-compat
vllm`. A family whose numbers a backend or driver does not tell is missing, never 0. The families
`process_...` of Prometheus' client library stand beside them.

This page is made of the code by `just reference`.
"""
_DEVICE = "0000:03:00.0"
_SUFFIX = {"counter": "_total", "info": "_info"}


class _Engine(FakeEngine):
    """Tells everything that an engine can tell."""

    @property
    def status(self) -> EngineStatus:
        return replace(
            super().status,
            stats=EngineStats(totals=Totals(launches=1)),
            proof=ProofStatus(is_running=True, problem=None, dropped=(("queue", 1),)),
        )


def text() -> str:
    """Returns the page."""
    families = list(_families())
    vllm = {f.name.removeprefix("vllm:") for f in families if f.name.startswith("vllm:")}
    rows = []
    for family in sorted(families, key=lambda family: family.name):
        if not family.name.startswith("rocmforge_"):
            continue
        name = family.name.removeprefix("rocmforge_")
        labels = dict.fromkeys(key for sample in family.samples for key in sample.labels)
        shown = ", ".join(code(label) for label in labels if label not in ("le", "engine"))
        suffix = _SUFFIX.get(family.type, "")
        mark = "•" if name in vllm else ""
        kind = "info" if family.name.endswith("_info") else family.type
        rows.append((code(family.name + suffix), mark, kind, shown, family.documentation))
    return f"{_HEAD}\n{table(('family', '', 'kind', 'labels', 'what it tells'), rows)}\n"


def _families() -> Iterator[Metric]:
    with TemporaryDirectory() as folder:
        DeviceTree(Path(folder), _DEVICE)
        watch = DeviceWatch(Path(folder), interval_s=0.01)
        watch.follow(frozenset({_DEVICE}))
        engine = _Engine(
            runner=replace(RUNNER, copy_bandwidth=1.0, bus_ids=(_DEVICE,), state_slots=1)
        )
        fleet = Fleet([make_model(engine)], watch=watch)
        metrics = FleetMetrics(fleet)
        of_model = metrics.of(fleet.models[0])
        of_model.name_key(1, "alice")
        of_model.used("alice", prompt_tokens=1, completion_tokens=1)
        of_model.finished("stop")
        of_model.refused(400)
        while not watch.sight.idle_power_w:
            watch.look_soon(1.0)
        watch.stop()
        exposition, _ = metrics.render("", vllm_names=True)
        yield from text_string_to_metric_families(exposition.decode())
