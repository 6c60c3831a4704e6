"""`rocmforge pull`: fetches models from Hugging Face, or from the hub of HF_ENDPOINT."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from rich.console import Console

from rocmforge.commands.terminal.download import download_meter
from rocmforge.errors import ConfigurationError
from rocmforge.library.hub import Hub, fetch, find_in_hub
from rocmforge.library.hub_names import HubName, parse_hub_name
from rocmforge.settings import Settings

logger = logging.getLogger(__name__)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Fetches each model and prints where it is."""
    names = [(text, parse_hub_name(text)) for text in arguments.models]
    for text, name in names:
        if name is None:
            raise ConfigurationError(
                f"{text} is not the name of a model on a hub. Write it as ORGANISATION/MODEL or "
                "ORGANISATION/MODEL:QUANTISATION, such as ggml-org/Qwen3-0.6B-GGUF:Q8_0."
            )
    for _, name in names:
        if name is not None:
            print(pull(name, settings), flush=True)
    return 0


def pull(name: HubName, settings: Settings) -> Path:
    """Fetches a model from the hub, or what is missing of it, and shows how far it is.

    Raises:
        DownloadFailed: it cannot be fetched.
    """
    hub = Hub()
    model = find_in_hub(hub, name)
    logger.info("%s: %d files, %.2f GB", name, len(model.files), model.num_bytes / 1e9)
    with download_meter(Console(stderr=True), settings.log_format) as meter:
        return fetch(hub, model, meter)
