"""Prometheus metrics: vLLM's families under our prefix, and on request under its own names too.

Requests are measured here, where clients see them; what happens inside the engine process is read
from `EngineStatus` when somebody scrapes. Each registry belongs to one model, or to the server;
`render` makes one exposition of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import structs
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    Metric,
)

from rocmforge.api.metrics.devices import FAMILIES, DeviceCollector
from rocmforge.api.metrics.engine import ENGINE, LABELS, PREFIX, EngineCollector
from rocmforge.api.metrics.proof import FAMILIES as PROOF_FAMILIES
from rocmforge.engine.ipc.params import FinishReason, RequestTiming
from rocmforge.engine.ipc.status import EngineStatus
from rocmforge.engine.ipc.totals import families
from rocmforge.sensors.watch import NO_SIGHT, Sight

VLLM_PREFIX = "vllm:"

# Bucket edges of vLLM (vllm/v1/metrics/loggers.py), in seconds, so that its dashboards fit.
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(20, 40, 80, 160, 640, 2560),
)
_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40),
    80,
)
_REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
    7680,
)
# Below 10 ms a fast card's tokens would all fall into the first of vLLM's buckets.
_FINE_TOKEN_BUCKETS = tuple(
    sorted(
        {0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.015, 0.02}
        | {0.03, 0.04, *_TOKEN_BUCKETS}
    )
)
_LENGTH_BUCKETS = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))
_CHOICES_BUCKETS = (1, 2, 5, 10, 20)

# Families that vLLM does not have, or has with coarser buckets.
_OURS_ONLY = {
    *("build", "decode_graphs", "engine_restarts", "engine_faults", "engine_ready"),
    *("model_state", "model_loads", "model_load_failures", "model_unloads"),
    *("model_requests_waiting", "request_errors", "weights_bytes", "kv_cache_bytes"),
    *("state_bytes", "state_slots", "state_slots_used", "state_snapshots"),
    *("images", "image_tokens", "image_read_seconds"),
    *("key_tokens", "key_requests_waiting", "engine_silence_seconds", *FAMILIES),
    *PROOF_FAMILIES,
    *(family.name for family in families().values() if not family.is_vllms),
}
_COARSER_IN_VLLM = {"inter_token_latency_seconds", "request_time_per_output_token_seconds"}


class Metrics:
    """All metrics of one served model.

    Args:
        model: its name.
        status: of its engine.
        sight: the last look at the devices.
    """

    def __init__(
        self,
        model: str,
        status: Callable[[], EngineStatus],
        sight: Callable[[], Sight] = lambda: NO_SIGHT,
    ) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._key_names: dict[int, str] = {}
        self.registry.register(EngineCollector(model, status, self._key_names))
        labels = dict(zip(LABELS, (model, ENGINE), strict=True))
        self.registry.register(DeviceCollector(PREFIX, labels, status, sight))

        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens taken in.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._finished = _counter(
            self.registry, "request_success", "Sequences that ended, by how.", "finished_reason"
        )
        self._errors = error_counter(self.registry)
        text = "Tokens used with each API key, of prompts and completions."
        self._key_tokens = _counter(self.registry, "key_tokens", text, "key", "kind")
        self._images = self._counter("images", "Images of requests that were read.")
        self._image_tokens = self._counter("image_tokens", "Tokens of prompts that images took.")
        self._image_read = self._histogram(
            "image_read_seconds",
            "Fetching, decoding and scaling the images of a request.",
            _TTFT_BUCKETS,
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            _TTFT_BUCKETS,
        )
        self.inter_token = self._histogram(
            "inter_token_latency_seconds",
            "Between two tokens of a sequence, as delivered.",
            _FINE_TOKEN_BUCKETS,
        )
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "A sequence's decode time divided by its tokens after the first.",
            _FINE_TOKEN_BUCKETS,
        )
        self.end_to_end = self._request_time("e2e_request_latency", "From arrival to the end.")
        self.queue = self._request_time("request_queue_time", "Waiting to be scheduled.")
        self.inference = self._request_time("request_inference_time", "From scheduled to the end.")
        self.prefill = self._request_time("request_prefill_time", "From scheduled to first token.")
        self.decode = self._request_time("request_decode_time", "From first token to the end.")
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt length of a sequence.", _LENGTH_BUCKETS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Tokens generated for a sequence.", _LENGTH_BUCKETS
        )
        self.request_max_tokens = self._histogram(
            "request_params_max_tokens", "Tokens a sequence may generate.", _LENGTH_BUCKETS
        )
        self.request_n = self._histogram(
            "request_params_n", "Choices asked for by a request.", _CHOICES_BUCKETS
        )

    def finished(self, reason: str) -> None:
        """Counts a sequence that ended: stop, length, abort or error."""
        self._finished.labels(self._model, ENGINE, reason).inc()

    def refused(self, status: int) -> None:
        """Counts an answer with an error status."""
        self._errors.labels(self._model, ENGINE, str(status)).inc()

    def read_images(self, tokens: Sequence[int], seconds: float) -> None:
        """Counts the images of a request, each with the tokens that it takes."""
        self._images.inc(len(tokens))
        self._image_tokens.inc(sum(tokens))
        self._image_read.observe(seconds)

    def name_key(self, index: int, name: str) -> None:
        """Tells what a key is called that the engine knows by its index."""
        self._key_names[index] = name

    def used(self, key: str, *, prompt_tokens: int, completion_tokens: int) -> None:
        """Counts what a request of the key with this name has used."""
        for kind, count in (("prompt", prompt_tokens), ("completion", completion_tokens)):
            self._key_tokens.labels(self._model, ENGINE, key, kind).inc(count)

    def _counter(self, name: str, text: str) -> Counter:
        return _counter(self.registry, name, text).labels(self._model, ENGINE)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(PREFIX + name, text, LABELS, buckets=buckets, registry=self.registry)
        return histogram.labels(self._model, ENGINE)

    def _request_time(self, name: str, text: str) -> Histogram:
        return self._histogram(f"{name}_seconds", text, _REQUEST_BUCKETS)


def error_counter(registry: CollectorRegistry) -> Counter:
    """Returns the counter of answers with an error status, of a model or of the server."""
    text = "Requests answered with an error status."
    return _counter(registry, "request_errors", text, "status")


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(PREFIX + name, text, (*LABELS, *labels), registry=registry)


def render(
    registries: Iterable[CollectorRegistry], accept: str, *, vllm_names: bool
) -> tuple[bytes, str]:
    """Renders the exposition as the Accept header asks for; returns it and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_Exported(registries, vllm_names)), content_type


class SequenceMetrics:
    """The stopwatch of one sequence. All calls come from the event loop."""

    __slots__ = ("_arrival_ns", "_last_ns", "_metrics", "_prompt_tokens", "_tokens")

    def __init__(
        self, metrics: Metrics, *, arrival_ns: int, prompt_tokens: int, max_tokens: int
    ) -> None:
        self._metrics = metrics
        self._arrival_ns = arrival_ns
        self._prompt_tokens = prompt_tokens
        self._tokens = 0
        self._last_ns = 0
        metrics.prompt_tokens.inc(prompt_tokens)
        metrics.request_prompt_tokens.observe(prompt_tokens)
        metrics.request_max_tokens.observe(max_tokens)

    def delivered(self, count: int) -> None:
        """Counts `count` more tokens of one wake-up, which share the gap before them."""
        now = time.monotonic_ns()
        metrics = self._metrics
        metrics.generation_tokens.inc(count)
        if self._tokens == 0:
            metrics.first_token.observe((now - self._arrival_ns) * 1e-9)
        else:
            gap = (now - self._last_ns) * 1e-9 / count
            for _ in range(count):
                metrics.inter_token.observe(gap)
        self._tokens += count
        self._last_ns = now

    def finished(self, reason: FinishReason, timing: RequestTiming | None) -> None:
        """Counts the end of the sequence, as the engine tells it."""
        metrics = self._metrics
        completed = reason in {FinishReason.STOP, FinishReason.LENGTH}
        metrics.finished(reason.value if completed else "error")
        self._observe_end(timing)

    def stopped(self, timing: RequestTiming | None) -> None:
        """Counts an end by a stop string, which was found on this side.

        Args:
            timing: of the first token.
        """
        self._metrics.finished("stop")
        ended = timing and structs.replace(timing, finished_ns=time.monotonic_ns())
        self._observe_end(ended)

    def aborted(self) -> None:
        """Counts an end because nobody wants the rest."""
        self._metrics.finished("abort")

    def _observe_end(self, timing: RequestTiming | None) -> None:
        metrics = self._metrics
        metrics.request_generation_tokens.observe(self._tokens)
        metrics.end_to_end.observe((time.monotonic_ns() - self._arrival_ns) * 1e-9)
        if timing is None or not timing.scheduled_ns:
            return
        metrics.queue.observe((timing.scheduled_ns - timing.arrival_ns) * 1e-9)
        metrics.inference.observe((timing.finished_ns - timing.scheduled_ns) * 1e-9)
        if not timing.first_token_ns:
            return
        decode_s = (timing.finished_ns - timing.first_token_ns) * 1e-9
        metrics.prefill.observe((timing.first_token_ns - timing.scheduled_ns) * 1e-9)
        metrics.decode.observe(decode_s)
        if self._tokens > 1:
            metrics.per_token.observe(decode_s / (self._tokens - 1))


class _Exported(CollectorRegistry):
    """The registry of a scrape: no `_created` samples, and vLLM's names if wanted."""

    def __init__(self, inner: Iterable[CollectorRegistry], vllm_names: bool) -> None:
        super().__init__()
        self._inner = inner
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[Metric]:
        """Yields the families of all registries, joined, cleaned and doubled."""
        families: dict[str, Metric] = {}
        for family in (family for registry in self._inner for family in registry.collect()):
            samples = [s for s in family.samples if not s.name.endswith("_created")]
            if family.name in families:
                families[family.name].samples += samples
            else:
                family.samples = samples
                families[family.name] = family
        for family in families.values():
            yield family
            name = family.name.removeprefix(PREFIX)
            if self._vllm_names and name != family.name and name not in _OURS_ONLY:
                yield _as_vllm(family, name)


def _as_vllm(family: Metric, name: str) -> Metric:
    renamed = Metric(VLLM_PREFIX + name, family.documentation, family.type)
    edges = {str(float(edge)) for edge in _TOKEN_BUCKETS} | {"+Inf"}
    renamed.samples = [
        sample._replace(name=sample.name.replace(PREFIX, VLLM_PREFIX, 1))
        for sample in family.samples
        if name not in _COARSER_IN_VLLM or sample.labels.get("le", "+Inf") in edges
    ]
    return renamed
