"""A model as one request has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rocmforge.api.http.origin import Origin
from rocmforge.api.metrics.request_log import RequestLog
from rocmforge.api.metrics.requests import Metrics
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.fleet.model import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedModel:
    """The model of a request, under the name it was asked for, and who asks."""

    served: ServedModel
    adapter: int = NO_ADAPTER
    origin: Origin = field(default_factory=Origin)
    metrics: Metrics  # of the model
    request_log: RequestLog = field(default_factory=RequestLog)

    @property
    def answers_as(self) -> str:
        """The name that the answer carries."""
        return self.served.answers_as(self.adapter)
