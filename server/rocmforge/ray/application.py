"""Builds the application for Ray Serve out of the settings of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ray import serve
from ray.serve import Application

from rocmforge.ray.ingress import Ingress, IngressLimits
from rocmforge.ray.replica import Replica
from rocmforge.ray.serve_args import read_settings
from rocmforge.served_models import served_models

STATS_PERIOD_S: Final = 1.0
"""From one publication of a replica's prefixes to the next."""
_INGRESS_REQUESTS: Final = 4096
_GRACE_S: Final = 10.0


def app(args: Mapping[str, Any]) -> Application:
    """Builds the application; Ray Serve calls it with the `args` of a Serve config.

    Args:
        args: settings, named as in the file of `--config`; `config` is the path of such a file.

    Raises:
        ConfigurationError: one of them is none, does not fit, or is Ray Serve's to decide.
    """
    settings = read_settings(args)
    models = [model.settings for model in served_models((), settings)]
    devices = max(model.tensor_parallel for model in models)
    needs_gpu = any(model.backend != "reference" for model in models)
    at_once = sum(model.max_sequences for model in models)
    replica = serve.deployment(
        name="Replica",
        ray_actor_options={"num_cpus": 1, "num_gpus": devices if needs_gpu else 0},
        # As many again wait in the engine, where keys take turns; the rest waits in the ingress.
        max_ongoing_requests=2 * at_once,
        max_queued_requests=settings.max_waiting,
        request_router_config={
            "request_router_class": "rocmforge.ray.router.PrefixRouter",
            "request_routing_stats_period_s": STATS_PERIOD_S,
        },
        graceful_shutdown_timeout_s=settings.drain_timeout + _GRACE_S,
    )(Replica)
    ingress = serve.deployment(name="Ingress", max_ongoing_requests=_INGRESS_REQUESTS)(
        serve.ingress()(Ingress)
    )
    bound = ingress.bind(
        replica.bind(settings),
        IngressLimits(
            max_body_bytes=settings.max_body_bytes,
            receive_timeout_s=settings.receive_timeout,
            has_keys=bool(settings.api_key or settings.keys_file),
        ),
    )
    assert isinstance(bound, Application)
    return bound
