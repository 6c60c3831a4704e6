"""Traces of requests for OpenTelemetry, sent over OTLP/HTTP. Needs the extra `otel`."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any, Final

from rocmforge import __version__
from rocmforge.api.http.origin import Origin
from rocmforge.api.metrics.request_log import RequestRecord
from rocmforge.errors import ConfigurationError

_FAILURES: Final = {"error", "died", "deadline"}


class Tracer:
    """Makes a span of each request that has ended, as part of the client's trace if it has one.

    Attributes have the names of OpenTelemetry's conventions for generative AI
    (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/).

    Args:
        endpoint: the collector's address, with path: http://localhost:4318/v1/traces.
        exporter: where spans go instead; for tests.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        try:
            sdk = import_module("opentelemetry.sdk.trace")
            export = import_module("opentelemetry.sdk.trace.export")
            resources = import_module("opentelemetry.sdk.resources")
            otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            propagation = import_module("opentelemetry.trace.propagation.tracecontext")
            self._trace: Any = import_module("opentelemetry.trace")
        except ImportError as error:
            raise ConfigurationError(
                "--otlp-endpoint needs OpenTelemetry: pip install 'rocmforge[otel]'."
            ) from error
        facts = {"service.name": "rocmforge", "service.version": __version__}
        provider = sdk.TracerProvider(resource=resources.Resource.create(facts))
        processor = export.BatchSpanProcessor(exporter or otlp.OTLPSpanExporter(endpoint))
        provider.add_span_processor(processor)
        self._provider = provider
        self._tracer = provider.get_tracer("rocmforge")
        self._propagator = propagation.TraceContextTextMapPropagator()

    def __call__(self, record: RequestRecord, origin: Origin, end_ns: int) -> None:
        """Hands the span over to a thread that sends it.

        Args:
            record: the request.
            origin: with the client's trace.
            end_ns: when it ended, on time.monotonic_ns()'s clock.
        """
        carrier = {} if origin.traceparent is None else {"traceparent": origin.traceparent}
        end = time.time_ns() - (time.monotonic_ns() - end_ns)
        begin = end - int(record.total_s * 1e9)
        span = self._tracer.start_span(
            f"generate {record.path}",
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            start_time=begin,
            attributes={
                "gen_ai.operation.name": "chat" if "chat" in record.path else "text_completion",
                "gen_ai.response.id": record.request_id,
                "gen_ai.response.finish_reasons": record.finish_reason.split(","),
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.output_tokens,
                "rocmforge.cached_tokens": record.cached_tokens,
                "rocmforge.resumed": record.resumed,
                **({} if record.given_id is None else {"rocmforge.given_id": record.given_id}),
            },
        )
        for name, seconds in (
            ("scheduled", record.scheduled_s),
            ("first token", record.first_token_s),
        ):
            if seconds is not None:
                span.add_event(name, timestamp=begin + int(seconds * 1e9))
        if _FAILURES & {*record.finish_reason.split(",")}:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(end_time=end)

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()
