"""How kernels are told to choose the experts of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge_hip.device.memory import DeviceArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertChoice:
    """How experts are chosen by a router's logits, and where they are written to.

    `RouteRule` in kernels/include/rf/experts/route.h says what each means.
    """

    bias: DeviceArray | None  # float32 [experts], as the next two
    selection_bias: DeviceArray | None
    weight_scale: DeviceArray | None
    chosen: DeviceArray  # int32 [tokens, num_chosen + num_shared]
    weights: DeviceArray  # float32, alike
    experts: int
    num_chosen: int
    function: int
    groups: int
    kept_groups: int
    normalised: bool
    factor: float  # of all weights
    first_own: int
    num_own: int
    num_shared: int
    weighs_shared: int
