"""`rocmforge pull`: fetches models from Hugging Face, or from the hub of HF_ENDPOINT."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from rich.console import Console

from rocmforge.backend import registry
from rocmforge.commands.plan import PlanReport, plan_model, size_text
from rocmforge.commands.terminal.download import download_meter
from rocmforge.errors import BadGguf, ConfigurationError, DownloadFailed
from rocmforge.library.hub import HEADER_BYTES, Hub, HubModel, fetch, find_in_hub, preview
from rocmforge.library.hub_names import HubName, parse_hub_name
from rocmforge.opening import open_checkpoint
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
            print(pull(name, settings, check_fits=not arguments.anyway), flush=True)
    return 0


def pull(name: HubName, settings: Settings, *, check_fits: bool = True) -> Path:
    """Fetches a model from the hub, or what is missing of it, and shows how far it is.

    Args:
        name: of the model.
        settings: with which it would be served.
        check_fits: whether a model that does not fit on the device of this machine is refused.

    Raises:
        DownloadFailed: it cannot be fetched, or would be of no use.
        ModelLoadError: it cannot be served; nothing has been fetched.
    """
    hub = Hub()
    model = find_in_hub(hub, name)
    if check_fits:
        refuse_unless_it_fits(hub, model, settings)
    logger.info("%s: %d files, %.2f GB", name, len(model.files), model.num_bytes / 1e9)
    with download_meter(Console(stderr=True), settings.log_format) as meter:
        return fetch(hub, model, meter)


def refuse_unless_it_fits(
    hub: Hub, model: HubModel, settings: Settings, memory: int | None = None
) -> None:
    """Plans a model before it is fetched, from the beginnings of its files.

    Args:
        hub: has it.
        model: the model.
        settings: with which it would be served.
        memory: free bytes of a device that is not here; None = of the one that is, if there is one.

    Raises:
        DownloadFailed: not even one sequence would fit; says what would.
        ModelLoadError: it cannot be served.
    """
    has_device = memory is not None or not registry.choose(settings.backend).is_fallback
    with preview(hub, model) as path:
        try:
            if not has_device:
                with open_checkpoint(path):  # refuses what no backend could serve
                    return
            plan = plan_model(path, settings, memory)
        except BadGguf:
            if all(file.num_bytes <= HEADER_BYTES for file in model.files):
                raise
            logger.warning("%s: it cannot be planned before it is here", model.name)
            return
    if not plan.most_sequences:
        raise DownloadFailed(f"{model.name} was not fetched: {_what_fits(model, plan)}")


def _what_fits(model: HubModel, plan: PlanReport) -> str:
    estimate = plan.estimate
    if plan.longest_context:
        return (
            f"a sequence of {estimate.context} tokens does not fit on the device. Say "
            f"--max-context {plan.longest_context} or less."
        )
    room = estimate.allowed - estimate.activations
    fitting = [
        (size, label)
        for label, size in model.others
        if estimate.weights * size / model.num_bytes + estimate.kv_block < room
    ]
    text = (
        f"its weights take {size_text(estimate.weights)}, and {size_text(max(room, 0))} of "
        f"{estimate.device} may be used. "
    )
    if fitting:
        return text + f"{model.name.repository}:{max(fitting)[1]} would fit."
    return text + "Fetch it for another machine with `rocmforge pull --anyway`."
