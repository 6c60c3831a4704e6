"""The arrays, kernels and facts that the operations of a model work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rocmforge.models.config import ModelConfig
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import ActivationArrays
from rocmforge_hip.ops.attention.cached import DeviceRopeTable, LayerCache
from rocmforge_hip.ops.attention.full import UnturnedRows
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.lora import DeviceAdapters
from rocmforge_hip.weights.formats import Matrix, Weight


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resources:
    """The things that the operations of a model work with."""

    config: ModelConfig
    library: KernelLibrary
    geometry: Geometry
    arena: ActivationArrays[DeviceArray]
    # Of each layer the number of its block table; none, if all have the same.
    window_groups: tuple[int, ...]
    caches: tuple[LayerCache[DeviceArray], ...]  # by layer; none of a model that is not causal
    states: tuple[tuple[DeviceArray, ...], ...] = ()  # of each layer, [slots, ...] each
    hidden: DeviceArray | None = None  # states kept for the predictor, [slots, hidden_size]
    tables: Mapping[bool, DeviceRopeTable]  # by whether they are for `local_rope`
    query_gains: DeviceArray | None = None  # as `RopeTables.query_gains`
    slopes: DeviceArray | None  # what scores of each head lose for a token of distance
    unturned: UnturnedRows | None = None  # for norms of values in an encoder
    formats: frozenset[str]  # stored types of the matrices
    expert_formats: frozenset[str]  # of those of experts
    adapters: Mapping[Matrix, DeviceAdapters]
    slices: int  # of int8 activations: see `LinearKernels`
    rank: int = 0  # of this device among those that share the model
    add_up: Callable[[DeviceArray], None] | None = None  # an array of theirs, in place
    hosted_routers: Sequence[Weight] = ()  # of layers whose experts are hosted, in their order
