"""ROCmForge on any Ray cluster: a Ray Serve application of an ingress and of replicas.

`rocmforge.ray:app` is what `serve run` and a Serve config import. It is looked up on first use,
so that the autoscaling policy and the router cost their processes no more than they need.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rocmforge.errors import ConfigurationError


def __getattr__(name: str) -> Any:
    """Returns `app`, the builder of the application.

    Raises:
        ConfigurationError: Ray Serve is not installed.
    """
    if name != "app":
        raise AttributeError(name)
    try:
        import_module("ray.serve")
    except ImportError as error:
        raise ConfigurationError(
            "rocmforge.ray needs Ray Serve: pip install 'rocmforge[ray]'."
        ) from error
    return import_module("rocmforge.ray.application").app
