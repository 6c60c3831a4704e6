"""The division of a device's memory among models, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocmforge.errors import ConfigurationError
from rocmforge.fleet.entry import ModelPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The memory of a device that a model needs."""

    name: str
    weights: int  # bytes
    policy: ModelPolicy
    share: float | None = None  # 0..1, if the operator has decided


def memory_shares(wishes: Sequence[Wish], max_loaded: int | None = None) -> tuple[float, ...]:
    """Returns the share of its device that each model gets, 0..1.

    What the operator has given away is taken off first, and the rest is divided by the size of the
    weights: among this model and the largest that may be in memory besides on the same device.
    Then whatever may be loaded together has shares that add up to a device at most.

    Raises:
        ConfigurationError: more than a whole device has been given away.
    """
    return tuple(_share(wish, wishes, max_loaded or len(wishes)) for wish in wishes)


def _share(wish: Wish, wishes: Sequence[Wish], max_loaded: int) -> float:
    rivals = [w for w in wishes if w is not wish and w.policy.shares_device(wish.policy)]
    given = sum(
        sorted((w.share for w in rivals if w.share is not None), reverse=True)[: max_loaded - 1]
    )
    if given + (wish.share or 0.0) > 1 + 1e-9 or (wish.share is None and given >= 1):
        raise ConfigurationError(
            f"Next to the memory shares of other models ({given:.0%}) there is no room for "
            f"{wish.name}. Lower memory_share or --max-loaded-models, or give the models devices "
            "of their own."
        )
    if wish.share is not None:
        return wish.share
    largest = sorted((w.weights for w in rivals if w.share is None), reverse=True)
    return (1 - given) * wish.weights / (wish.weights + sum(largest[: max_loaded - 1]))
