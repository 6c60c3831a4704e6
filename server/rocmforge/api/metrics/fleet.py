"""Metrics of the server and of its models' comings and goings; those of each model are its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from rocmforge.api.metrics.engine import PREFIX
from rocmforge.api.metrics.requests import Metrics, error_counter, render
from rocmforge.engine.ipc.status import EngineStatus
from rocmforge.fleet.entry import ModelState
from rocmforge.fleet.fleet import Fleet
from rocmforge.fleet.model import ServedModel

_UNLOADS = ("request", "idle", "room", "memory")


class FleetMetrics:
    """The metrics of all models.

    Args:
        fleet: the models, and what looks after their devices.
    """

    def __init__(self, fleet: Fleet) -> None:
        watch = fleet.watch
        self._of = {
            model: Metrics(model.name, partial(_status, model), lambda: watch.sight)
            for model in fleet.models
        }
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_FleetCollector(fleet))
        self._errors = error_counter(self._registry)

    def refused(self, status: int) -> None:
        """Counts an answer with an error status to a request that has named no model."""
        self._errors.labels("", "", str(status)).inc()

    def of(self, model: ServedModel) -> Metrics:
        """Returns the metrics of one model."""
        return self._of[model]

    def render(self, accept: str, *, vllm_names: bool) -> tuple[bytes, str]:
        """Renders the exposition as the Accept header asks for; returns it and its content type."""
        models = [metrics.registry for metrics in self._of.values()]
        return render((self._registry, *models), accept, vllm_names=vllm_names)


class _FleetCollector(Collector):
    """Reads the entries at scrape time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def describe(self) -> Iterator[Metric]:
        """Yields nothing: the registry would otherwise collect once at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """States and counts of all models."""
        state = GaugeMetricFamily(
            PREFIX + "model_state", "1 for the state a model is in.", labels=("model_name", "state")
        )
        waiting = GaugeMetricFamily(
            PREFIX + "model_requests_waiting",
            "Requests that wait for the model to be loaded.",
            labels=("model_name",),
        )
        loads = CounterMetricFamily(
            PREFIX + "model_loads", "Times a model was loaded.", labels=("model_name",)
        )
        failures = CounterMetricFamily(
            PREFIX + "model_load_failures",
            "Times a model could not be loaded.",
            labels=("model_name",),
        )
        unloads = CounterMetricFamily(
            PREFIX + "model_unloads",
            "Times a model was unloaded: on request, idle, or to make room or free memory.",
            labels=("model_name", "reason"),
        )
        for model in self._fleet.models:
            entry, name = model.entry, model.name
            for each in ModelState:
                state.add_metric((name, each), int(entry.state is each))
            waiting.add_metric((name,), entry.num_waiting)
            loads.add_metric((name,), entry.counts["load"])
            failures.add_metric((name,), entry.counts["load_failed"])
            for reason in _UNLOADS:
                unloads.add_metric((name, reason), entry.counts[f"unload_{reason}"])
        yield from (state, waiting, loads, failures, unloads)


def _status(model: ServedModel) -> EngineStatus:
    return model.entry.status
