"""How several models divide the memory of a device, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocmforge.api.fleet.slot import ModelPolicy
from rocmforge.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a model needs of a device's memory."""

    name: str
    weights: int  # bytes
    policy: ModelPolicy
    share: float | None = None  # 0..1, if the operator has decided


def memory_shares(wishes: Sequence[Wish], max_loaded: int | None = None) -> tuple[float, ...]:
    """The share of its device that each model gets, 0..1.

    What the operator has given away is taken off first. The rest is divided by the size of the
    weights, so that everything fits that could be in memory together: of the models that may share
    a device with this one, the largest, as many as may be loaded besides.

    Raises:
        ConfigurationError: more than a whole device has been given away.
    """
    return tuple(_share(wish, _rivals(wish, wishes, max_loaded)) for wish in wishes)


def _rivals(wish: Wish, wishes: Sequence[Wish], max_loaded: int | None) -> list[Wish]:
    rivals = [w for w in wishes if w is not wish and w.policy.shares_device(wish.policy)]
    rivals.sort(key=lambda w: (w.share or 0.0, w.weights), reverse=True)
    return rivals if max_loaded is None else rivals[: max_loaded - 1]


def _share(wish: Wish, rivals: list[Wish]) -> float:
    given = sum(rival.share or 0.0 for rival in rivals)
    if given + (wish.share or 0.0) > 1 + 1e-9 or (wish.share is None and given >= 1):
        names = ", ".join(w.name for w in (wish, *rivals) if w.share is not None or w is wish)
        raise ConfigurationError(
            f"The memory shares of {names} leave nothing for {wish.name}. Lower memory_share, "
            "give the models devices of their own, or lower --max-loaded-models."
            if wish.share is None
            else f"The memory shares of {names} are more than a whole device. Lower them, give "
            "the models devices of their own, or lower --max-loaded-models."
        )
    if wish.share is not None:
        return wish.share
    others = sum(rival.weights for rival in rivals if rival.share is None)
    return (1 - given) * wish.weights / max(1, wish.weights + others)
