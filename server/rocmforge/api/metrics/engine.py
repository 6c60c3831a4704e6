"""Metrics of what happens inside an engine process, read from its status when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rocmforge import __version__
from rocmforge.api.metrics.proof import proof_families
from rocmforge.engine.ipc.status import EngineState, EngineStats, EngineStatus
from rocmforge.engine.ipc.totals import Totals, families
from rocmforge.errors import Fault

PREFIX = "rocmforge_"
LABELS = ("model_name", "engine")
ENGINE = "0"  # vLLM numbers its engines; there is one for each model


class EngineCollector(Collector):
    """Turns the engine's own numbers into families at scrape time."""

    def __init__(
        self, model: str, status: Callable[[], EngineStatus], key_names: Mapping[int, str]
    ) -> None:
        self._labels = (model, ENGINE)
        self._status = status
        self._key_names = key_names

    def describe(self) -> Iterator[Metric]:
        """Yields nothing: the registry would otherwise collect once at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yields all families that the engine has numbers for."""
        status = self._status()
        stats = status.stats
        usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        ready = status.state is EngineState.READY
        yield self._gauge("num_requests_running", "Sequences being computed.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences waiting.", stats.waiting)
        if self._key_names:
            yield self._waiting_by_key(stats)
        yield self._gauge("kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", usage)
        yield self._gauge("engine_ready", "Whether requests are taken.", int(ready))
        yield self._gauge(
            "engine_silence_seconds",
            "Since the engine gave news although requests are there.",
            status.silence_s,
        )
        yield from self._totals(stats.totals)
        yield self._counter("engine_restarts", "Restarts of the engine process.", status.restarts)
        yield self._faults(status)
        if status.proof is not None:
            yield from proof_families(status.proof, PREFIX, LABELS, self._labels)
        yield self._info("build", "The program and its backend.", _build_facts(status))
        if status.runner is not None:
            runner = status.runner
            yield self._gauge(
                "weights_bytes", "Size of the weights on the device.", runner.weights_bytes
            )
            yield self._gauge(
                "kv_cache_bytes", "Size of the KV cache on the device.", runner.kv_bytes
            )
            if runner.state_slots:
                yield self._gauge(
                    "state_bytes", "Size of the states on the device.", runner.state_bytes
                )
                yield self._gauge(
                    "state_slots",
                    "Sequences and snapshots there is room for the states of.",
                    runner.state_slots,
                )
                yield self._gauge(
                    "state_slots_used", "Sequences that hold states now.", stats.slots_used
                )
                yield self._gauge(
                    "state_snapshots",
                    "Snapshots of states that prompts to come can go on from.",
                    stats.snapshots,
                )
            facts = {
                "block_size": str(status.runner.block_size),
                "num_gpu_blocks": str(status.runner.num_blocks),
                "cache_dtype": status.runner.kv_dtype,
                "enable_prefix_caching": str(bool(runner.snapshots) or not runner.state_slots),
            }
            yield self._info("cache_config", "How the KV cache is laid out.", facts)
            graphs = {"state": runner.graphs}
            yield self._info("decode_graphs", "Whether decode steps are captured graphs.", graphs)

    def _faults(self, status: EngineStatus) -> Metric:
        text = "Ends of the engine process, by what kind of fault it was."
        family = CounterMetricFamily(PREFIX + "engine_faults", text, labels=(*LABELS, "fault"))
        for fault in Fault:
            family.add_metric((*self._labels, fault), status.faults.get(fault, 0))
        return family

    def _waiting_by_key(self, stats: EngineStats) -> Metric:
        """Makes the family of keys that have sent anything; as many as somebody gave out."""
        waiting = dict(stats.waiting_by_key)
        text = "Sequences waiting, by API key."
        family = GaugeMetricFamily(PREFIX + "key_requests_waiting", text, labels=(*LABELS, "key"))
        for index, name in self._key_names.items():
            family.add_metric((*self._labels, name), waiting.get(index, 0))
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _totals(self, totals: Totals) -> Iterable[Metric]:
        """Makes the families that the counters are declared with."""
        found: dict[str, CounterMetricFamily] = {}
        for field, told in families().items():
            if told.is_cost and not totals.launches:
                continue
            labels = (*LABELS, "method") if told.method else LABELS
            values = (*self._labels, told.method) if told.method else self._labels
            if told.name not in found:
                found[told.name] = CounterMetricFamily(PREFIX + told.name, told.text, labels=labels)
            found[told.name].add_metric(values, getattr(totals, field) * told.unit)
        return found.values()

    def _info(self, name: str, text: str, facts: Mapping[str, str]) -> Metric:
        family = InfoMetricFamily(PREFIX + name, text, labels=LABELS)
        family.add_metric(self._labels, dict(facts))
        return family


def _build_facts(status: EngineStatus) -> dict[str, str]:
    runner = status.runner
    return {
        "version": __version__,
        "backend": "" if runner is None else runner.backend,
        "device": "" if runner is None else runner.device.name,
        "target": "" if runner is None else runner.device.target,
        "fallback": str(status.is_fallback).lower(),
    }
