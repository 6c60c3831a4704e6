"""`rocmforge pull`: fetches models from Hugging Face, or from the hub of HF_ENDPOINT."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Final

from rich.console import Console

from rocmforge.backend import registry
from rocmforge.backend.optional import Planning
from rocmforge.commands.plan import PlanReport, plan_model, size_text
from rocmforge.commands.terminal.download import download_meter
from rocmforge.errors import BadGguf, ConfigurationError, DownloadFailed, NotInHub
from rocmforge.library.catalogue import find_entry, hub_names
from rocmforge.library.finding import did_you_mean_model
from rocmforge.library.hub import HEADER_BYTES, Hub, HubModel, fetch, find_in_hub, preview
from rocmforge.opening import open_checkpoint
from rocmforge.settings import Settings

logger = logging.getLogger(__name__)

ROOMY: Final = 16384
"""Tokens of context for which a smaller quantisation of a short name is taken."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Fetches each model and prints where it is."""
    for name in arguments.models:
        if not hub_names(name):
            raise ConfigurationError(
                f"{name} is not the name of a model on a hub.{did_you_mean_model(name)} Write it "
                "as ORGANISATION/MODEL or ORGANISATION/MODEL:QUANTISATION, such as "
                "ggml-org/Qwen3-0.6B-GGUF:Q8_0. `rocmforge list --catalogue` shows short names."
            )
    for name in arguments.models:
        print(pull(name, settings, check_fits=not arguments.anyway), flush=True)
    return 0


def pull(name: str, settings: Settings, *, check_fits: bool = True) -> Path:
    """Fetches a model from the hub, or what is missing of it, and shows how far it is.

    Args:
        name: of the model, in a hub or in the catalogue.
        settings: with which it would be served.
        check_fits: whether a model that does not fit on the device of this machine is refused.

    Raises:
        DownloadFailed: it cannot be fetched, or would be of no use.
        ModelLoadError: it cannot be served; nothing has been fetched.
    """
    hub = Hub()
    model = choose(hub, name, settings, check_fits=check_fits)
    logger.info("%s: %d files, %.2f GB", model.name, len(model.files), model.num_bytes / 1e9)
    with download_meter(Console(stderr=True), settings.log_format) as meter:
        return fetch(hub, model, meter)


def choose(
    hub: Hub, name: str, settings: Settings, memory: int | None = None, *, check_fits: bool = True
) -> HubModel:
    """Finds a model in the hub; of the files that a short name stands for, the largest that fits.

    One beside which there is room for little context, or that leaves experts on the host, comes
    last. Where nothing has to fit, or no device is here to fit on, the smallest is taken.

    Args:
        hub: has it.
        name: of the model, in a hub or in the catalogue.
        settings: with which it would be served.
        memory: as for `preview_plan`.
        check_fits: whether it has to fit.

    Raises:
        DownloadFailed: there is no such model, or none of its files fits; says what would.
        ModelLoadError: it cannot be served.
    """
    names = hub_names(name)
    has_device = check_fits and _has_device(settings, memory)
    if not has_device:
        names = names[-1:]
    reason, cramped = f"{name} is not the name of a model.", None
    for candidate in names:
        try:
            model = find_in_hub(hub, candidate)
        except NotInHub as error:
            if find_entry(name) is None:
                raise
            raise NotInHub(
                f"{name} stands for {candidate.repository} in the catalogue. You can name another "
                "repository: ORGANISATION/MODEL or ORGANISATION/MODEL:QUANTISATION. "
                f"{error.message}"
            ) from error
        plan = None
        if check_fits:
            plan = preview_plan(hub, model, settings, memory, has_device=has_device)
        if plan is not None and not plan.most_sequences:
            reason = f"{model.name} was not fetched: {_what_fits(model, plan)}"
        elif plan is None or _fits_well(plan, settings):
            return model
        else:
            cramped = model
    if cramped is not None:
        return cramped
    raise DownloadFailed(reason)


def _fits_well(plan: PlanReport, settings: Settings) -> bool:
    """Returns whether a smaller file would be no better choice.

    It would be where experts have to stay on the host, or the context has to be short.
    """
    if plan.estimate.hosted is not None and settings.device_experts is None:
        return False
    roomy = min(plan.trained_context, ROOMY)
    return settings.max_context is not None or plan.estimate.context >= roomy


def preview_plan(
    hub: Hub, model: HubModel, settings: Settings, memory: int | None, *, has_device: bool
) -> PlanReport | None:
    """Plans a model before it is fetched, from the beginnings of its files.

    Args:
        hub: has it.
        model: the model.
        settings: with which it would be served.
        memory: free bytes of a device that is not here; None = of the one that is, if there is one.
        has_device: whether there is either.

    Returns:
        The plan; None if nobody knows.

    Raises:
        ModelLoadError: it cannot be served.
    """
    with preview(hub, model) as path:
        try:
            if not has_device:
                with open_checkpoint(path):  # refuses what no backend could serve
                    return None
            return plan_model(path, settings, memory)
        except BadGguf:
            if all(file.num_bytes <= HEADER_BYTES for file in model.files):
                raise
            logger.warning("%s: it cannot be planned before it is here", model.name)
            return None


def _has_device(settings: Settings, memory: int | None) -> bool:
    if memory is not None:
        return True
    choice = registry.choose(settings.backend)
    return not choice.is_fallback and isinstance(choice.backend, Planning)


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
