"""How many experts stay on the device where a model is larger than its memory."""

from __future__ import annotations

from collections.abc import Sequence

from rocmforge.backend.optional import HostedEstimate
from rocmforge.backend.protocol import LoadOptions
from rocmforge.errors import ConfigurationError, OutOfMemory
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import Adapter
from rocmforge_hip.load.memory_budget import measure, mib, needed_blocks
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.weights.placement import Planned
from rocmforge_hip.weights.seats import (
    expert_matrices,
    host_bytes,
    hosted_matrices,
    with_seats,
)


def seat_experts(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    options: LoadOptions,
    geometry: Geometry,
    memory: tuple[int, int],
    adapters: Sequence[Adapter] = (),
) -> ModelWeights[Planned]:
    """Returns the plan of the weights with as many experts on the device as it may hold.

    That is all of them if the model fits an empty device with the least cache: then it is what
    else is there that has to go. If not, the cache is the least, and experts have the rest.

    Args:
        config: Of the model.
        weights: Planned as if all were to be on the device.
        options: The limits.
        geometry: Of the device.
        memory: Bytes of the device that are free, and that there are.
        adapters: Of the model.

    Raises:
        ConfigurationError: A share of the experts was asked for, and there are none.
    """
    matrices, share = expert_matrices(weights), options.device_experts
    free, total = memory
    if share == 1:
        return weights
    if share is not None:
        if not matrices:
            raise ConfigurationError(
                f"The model has no experts; leave device_experts at auto, not {share:g}."
            )
        return with_seats(weights, lambda matrix: int(share * matrix.num_experts + 1e-6))

    def room(plan: ModelWeights[Planned], memory: int) -> int:
        needs = measure(config, plan, options, geometry, memory, adapters)
        cache = needed_blocks(needs, options) * needs.block_bytes
        return needs.allowed - needs.fixed_bytes - cache

    if not matrices or room(weights, total) >= 0:
        return weights
    one_each = sum(matrix.storage.nbytes // matrix.num_experts for matrix in matrices)
    without = room(with_seats(weights, lambda _: 0), free)
    return with_seats(weights, lambda _: max(0, without) // one_each)


def estimate_hosted(
    config: ModelConfig, weights: ModelWeights[Planned], host_free: int | None
) -> HostedEstimate | None:
    """Returns what is on the host and what a token reads from there; None if nothing is.

    Args:
        config: Of the model.
        weights: With the seats that its experts have.
        host_free: Bytes that the host can give; None if it is not the one at hand.
    """
    hosted = hosted_matrices(weights)
    if not hosted:
        return None
    rules = [layer.experts for layer in config.layers if layer.experts is not None]
    share_read = rules[0].num_chosen / rules[0].num_experts
    token_bytes = sum(
        share_read * matrix.storage.nbytes * (1 - (matrix.seats or 0) / matrix.num_experts)
        for matrix in hosted
    )
    return HostedEstimate(
        seats=hosted[0].seats or 0,
        experts=hosted[0].num_experts,
        host=host_bytes(weights),
        token_bytes=round(token_bytes),
        host_free=host_free,
    )


def check_host_memory(hosted: HostedEstimate) -> None:
    """Refuses to pin more than the host has: a system without memory kills whatever it likes.

    Raises:
        OutOfMemory: There is too little.
    """
    if hosted.host_missing:
        raise OutOfMemory(
            f"The device has room for {hosted.seats} of the {hosted.experts} experts of each "
            f"layer, so all of them are kept in the host's memory. They take {mib(hosted.host)} "
            f"there, {mib(hosted.host_missing)} more than can be had. Free as much, or take a "
            "smaller model or file."
        )
