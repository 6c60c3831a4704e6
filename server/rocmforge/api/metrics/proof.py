"""Metrics of answers that were computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from rocmforge.engine.ipc.status import ProofStatus

_COUNTERS = (
    ("verify_samples", "Sequences that were computed again.", "samples"),
    ("verify_tokens", "Tokens that were computed again.", "tokens"),
    ("verify_agreeing_tokens", "Of these, where both find the same most probable.", "agreeing"),
    ("verify_kl_nats", "Sum of the KL divergences of all tokens.", "kl_sum"),
    ("verify_seconds", "Time that the verifier computed.", "seconds"),
    ("verify_alarms", "Samples that were found wrong.", "alarms"),
)
_GAUGES = (
    ("verify_error", "Relative error of the latest tokens.", "error"),
    ("verify_expected_error", "The part of it that rounding explains.", "expected"),
    ("verify_worst_nats", "Largest difference of a log-probability.", "worst"),
    ("verify_running", "Whether a verifier has the model loaded.", "is_running"),
)
_DROPPED = "verify_dropped_samples"
FAMILIES = (*(name for name, _, _ in (*_COUNTERS, *_GAUGES)), _DROPPED, "verify_alarm")


def proof_families(
    status: ProofStatus, prefix: str, labels: Sequence[str], values: Sequence[str]
) -> Iterator[Metric]:
    """Yields all families of a model that is verified."""
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(prefix + name, text, labels=labels)
        counter.add_metric(values, getattr(status, field))
        yield counter
    for name, text, field in _GAUGES:
        gauge = GaugeMetricFamily(prefix + name, text, labels=labels)
        gauge.add_metric(values, float(getattr(status, field)))
        yield gauge
    alarm = GaugeMetricFamily(
        prefix + "verify_alarm", "Whether a result was wrong since loading.", labels=labels
    )
    alarm.add_metric(values, float(status.alarm is not None))
    yield alarm
    dropped = CounterMetricFamily(
        prefix + _DROPPED,
        "Samples that were not computed again, by reason.",
        labels=(*labels, "reason"),
    )
    for reason, count in status.dropped:
        dropped.add_metric((*values, reason), count)
    yield dropped
