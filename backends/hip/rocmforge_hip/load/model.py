"""Brings one model onto a device: weights, caches, activations, tables and kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.backend.protocol import ProgressCallback
from rocmforge.backend.windows import WindowGroups
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.checkpoint import Locate
from rocmforge.models.config import ModelConfig, alibi_slopes
from rocmforge.models.families import FAMILIES
from rocmforge.models.lora import Adapter
from rocmforge.models.rope import RopeTables
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec
from rocmforge_hip.device.opening import Device
from rocmforge_hip.device.records import allocate, mapped
from rocmforge_hip.jit.compiler import NO_KERNELS, ProcessorKernels
from rocmforge_hip.load.memory_budget import MemoryPlan, cache_arrays
from rocmforge_hip.ops.activations import ActivationArrays
from rocmforge_hip.ops.attention.cached import DeviceRopeTable, LayerCache
from rocmforge_hip.ops.attention.full import UnturnedRows
from rocmforge_hip.ops.collective import Communicator
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.lora import DeviceAdapters
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.ops.recurrent.layers import on_device
from rocmforge_hip.ops.resources import Resources
from rocmforge_hip.ops.sampling.processors import (
    CompiledProcessors,
    HostProcessors,
    Processors,
    scratch_spec,
    staging_bytes,
)
from rocmforge_hip.ops.sampling.sampler import Sampler
from rocmforge_hip.ops.sharded import ShardedOps, gather_orders, warm_up
from rocmforge_hip.run.axes import AxisRows
from rocmforge_hip.run.runner import Model
from rocmforge_hip.weights.adapters import AdapterArrays, pack_stack, plan_adapters
from rocmforge_hip.weights.formats import Matrix, Weight
from rocmforge_hip.weights.hosting import hosted_layers
from rocmforge_hip.weights.placement import Planned, PlannedMatrix, storages
from rocmforge_hip.weights.upload import WeightLoader


class ModelLoading:
    """Brings one model onto a device."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        plan: MemoryPlan,
        geometry: Geometry,
        progress: ProgressCallback,
        kernels: ProcessorKernels = NO_KERNELS,
        group: Communicator | None = None,
        locate: Locate | None = None,
    ) -> None:
        self._device = device
        self._config = config
        self._plan = plan
        self._geometry = geometry
        self._kernels = kernels
        self._progress = progress
        self._group = group
        self._locate = locate

    def load(
        self,
        planned: ModelWeights[Planned],
        tables: RopeTables | None,
        adapters: Sequence[Adapter] = (),
    ) -> Model:
        """Loads the model; returns it once everything is on the device."""
        device, config, plan = self._device, self._config, self._plan
        self._progress("loading kernels", 0.0)
        arena: ActivationArrays[DeviceArray] = allocate(
            device.memory, plan.activations, device.stream
        )
        make_ops = self._make_ops(arena)
        weights = self._load_weights(planned)
        hosted = hosted_layers(weights)
        resources = Resources(
            config=config,
            library=device.library,
            geometry=self._geometry,
            arena=arena,
            caches=self._new_caches(),
            window_groups=() if plan.windows is None else plan.windows.group_of,
            states=self._new_states(),
            hidden=self._new_hidden(),
            tables={} if tables is None else self._upload_tables(tables),
            query_gains=self._load_gains(tables),
            slopes=self._load_slopes(),
            unturned=self._load_unturned(),
            formats=_formats(planned, of_experts=False),
            expert_formats=_formats(planned, of_experts=True),
            adapters=self._load_adapters(weights, adapters),
            slices=plan.activation_slices,
            rank=0 if self._group is None else self._group.shard.rank,
            add_up=None if self._group is None else self._group.all_reduce,
            hosted_routers=[layer.router for layer in hosted],
        )
        ops = make_ops(resources)
        sampler = None
        if config.causal:
            sampler = Sampler(device.library, self._geometry, arena, self._load_processors())
        inputs = device.memory.device(spec((plan.input_bytes,), "u1"), "inputs of a step")
        axes = None
        if tables is not None and tables.by_axes is not None:
            # Tokens of a tower have no other rows.
            first = len(tables.table.cos) if config.causal else 0
            table, most = resources.tables[False], plan.limits.tokens
            axes = AxisRows(device, tables.by_axes, table, first, most)
        return Model(config, weights, ops, sampler, arena, inputs.array, axes, hosted)

    def _upload_tables(self, tables: RopeTables) -> dict[bool, DeviceRopeTable]:
        """Uploads the tables; returns them by whether they are the local one.

        Where positions have axes, there is room for the rows of a step: see `AxisRows`.
        """
        found = {False: tables.table}
        if tables.local_table is not None:
            found[True] = tables.local_table
        has_room = tables.by_axes is not None and self._config.causal
        room = ((0, self._plan.limits.tokens if has_room else 0), (0, 0))

        def uploaded(values: npt.NDArray[np.float32]) -> DeviceArray:
            return upload(self._device, np.pad(values, room), "rope table")

        return {
            is_local: DeviceRopeTable(uploaded(table.cos), uploaded(table.sin))
            for is_local, table in found.items()
        }

    def _load_processors(self) -> Processors:
        device, vocab = self._device, self._config.vocab_size
        if self._kernels.made is None:
            staging = device.memory.pinned(staging_bytes(vocab), "a row for logits processors")
            return HostProcessors(device.driver, device.stream, self._kernels.processors, staging)
        what = scratch_spec(vocab, self._plan.limits.sequences)
        scratch = device.memory.device(what, "scratch of logits processors")
        return CompiledProcessors(device.library, self._kernels.made, scratch.array)

    def _make_ops(self, arena: ActivationArrays[DeviceArray]) -> Callable[[Resources], HipOps]:
        """Returns what makes the operations of this device alone, or those of a rank."""
        if self._group is None:
            return HipOps
        warm_up(self._group, arena)
        orders = gather_orders(self._group.shard.size, self._plan.limits.rows)
        return partial(ShardedOps, self._group, upload(self._device, orders, "orders of logits"))

    def _load_weights(self, planned: ModelWeights[Planned]) -> ModelWeights[Weight]:
        device = self._device
        loader = WeightLoader(
            device.driver, device.library, device.stream, device.memory, self._locate
        )
        try:
            return loader.load(planned, lambda share: self._progress("loading weights", share))
        finally:
            loader.close()

    def _load_adapters(
        self, weights: ModelWeights[Weight], adapters: Sequence[Adapter]
    ) -> dict[Matrix, DeviceAdapters]:
        """Loads all adapters; returns them by the matrix that they change."""
        loaded = {}
        stacks = plan_adapters(weights, adapters)
        for number, stack in enumerate(stacks):
            self._progress("loading adapters", number / len(stacks))
            arrays: AdapterArrays[DeviceArray] = mapped(
                pack_stack(stack), np.ndarray, partial(self._upload_adapter, stack.name)
            )
            loaded[stack.matrix] = DeviceAdapters(
                arrays=arrays,
                parts=len(stack.parts),
                ranks=stack.ranks,
                output_tiles=max(part.tiles for part in stack.parts),
            )
        return loaded

    def _upload_adapter(self, stack: str, name: str, values: npt.NDArray[Any]) -> DeviceArray:
        return upload(self._device, values, f"{name} of {stack}")

    def _load_gains(self, tables: RopeTables | None) -> DeviceArray | None:
        if tables is None or tables.query_gains is None:
            return None
        return upload(self._device, tables.query_gains, "gains of queries")

    def _load_slopes(self) -> DeviceArray | None:
        if not self._config.has_alibi:
            return None
        slopes = np.array(alibi_slopes(self._config.layers[0].num_heads), np.float32)
        return upload(self._device, slopes, "slopes")

    def _load_unturned(self) -> UnturnedRows | None:
        if "attention.v_norm" not in FAMILIES[self._config.architecture].has:
            return None
        pairs, tokens = self._config.layers[0].value_dim // 2, self._plan.limits.tokens
        cos, sin, positions = (
            upload(self._device, values, "a rotation by nothing")
            for values in (
                np.ones((1, pairs), np.float32),
                np.zeros((1, pairs), np.float32),
                np.zeros(tokens, np.int32),
            )
        )
        return UnturnedRows(DeviceRopeTable(cos, sin), positions)

    def _new_caches(self) -> tuple[LayerCache[DeviceArray], ...]:
        if not self._config.causal:
            return ()
        windows, layers = self._plan.windows, self._config.layers
        of_layer = [
            index if layer.cache_of is None else layer.cache_of
            for index, layer in enumerate(layers)
        ]
        owners = of_layer if windows is None else windows.cache_of
        own = {layer: self._new_cache(layer) for layer in sorted(set(owners))}
        if windows is None or windows.is_even:
            return tuple(own[layer] for layer in owners)
        room = {layer: self._with_scales(layer, cache) for layer, cache in own.items()}
        caches = {
            layer: self._cache_in(windows, room[windows.cache_of[layer]], layer)
            if windows.group_of[layer]
            else own[layer]
            for layer in set(of_layer)
        }
        return tuple(caches[layer] for layer in of_layer)

    def _with_scales(self, layer: int, cache: LayerCache[DeviceArray]) -> LayerCache[DeviceArray]:
        """Returns the cache of a layer, with the scales that those with a window have there."""
        block = self._plan.window_scales
        if block is None:
            return cache
        what = spec((self._plan.num_blocks * block.shape[0], *block.shape[1:]), block.dtype)
        name = f"scales of windows of layer {layer}"
        key_scale, value_scale = (self._new_blocks(name, what) for _ in range(2))
        return replace(cache, key_scale=key_scale, value_scale=value_scale)

    def _cache_in(
        self, windows: WindowGroups, cache: LayerCache[DeviceArray], layer: int
    ) -> LayerCache[DeviceArray]:
        """Returns the cache of a layer with a window in that of one without."""
        block, part = self._plan.cache_blocks[layer], windows.part_of[layer]
        count = self._plan.num_blocks * windows.sharing

        def seen(array: DeviceArray | None, what: ArraySpec | None) -> DeviceArray:
            assert array is not None
            assert what is not None
            return array.first(count, *what.shape).rows(part, count)

        keys, values = seen(cache.keys, block.keys), seen(cache.values, block.values)
        if block.key_scale is None:
            return LayerCache(keys, values)
        scales = (cache.key_scale, block.key_scale), (cache.value_scale, block.value_scale)
        return LayerCache(keys, values, *(seen(*pair) for pair in scales))

    def _new_states(self) -> tuple[tuple[DeviceArray, ...], ...]:
        """Makes room for states; nobody reads what it holds before they have been written."""
        slots = self._plan.state_slots
        return tuple(
            tuple(
                self._device.memory.device(
                    spec((slots, *on_device(shape)), "f4"), f"states of layer {index}"
                ).array
                for shape in layer.state_shapes
            )
            for index, layer in enumerate(self._config.layers)
        )

    def _new_hidden(self) -> DeviceArray | None:
        block = self._plan.hidden_block
        if block is None:
            return None
        tokens, features = block.shape
        what = spec((self._plan.num_blocks * tokens, features), block.dtype)
        return self._device.memory.device(what, "hidden states").array

    def _new_cache(self, layer: int) -> LayerCache[DeviceArray]:
        def new(name: str, what: ArraySpec) -> DeviceArray:
            return self._new_blocks(f"{name} of layer {layer}", what)

        cache: LayerCache[DeviceArray] = mapped(cache_arrays(self._plan, layer), ArraySpec, new)
        return cache

    def _new_blocks(self, name: str, what: ArraySpec) -> DeviceArray:
        """Makes room for blocks.

        With groups of layers, some leave a part of each block as it is, and tiers copy all of it.
        """
        buffer = self._device.memory.device(what, name)
        if self._plan.windows is not None:
            buffer.fill(0, self._device.stream)
        return buffer.array


def _formats(planned: ModelWeights[Planned], *, of_experts: bool) -> frozenset[str]:
    """Returns the stored types of the matrices, of experts or not."""
    return frozenset(
        storage.format.name
        for storage in storages(planned)
        if isinstance(storage, PlannedMatrix) and bool(storage.num_experts) is of_experts
    )


def upload(device: Device, values: npt.NDArray[Any], name: str) -> DeviceArray:
    """Uploads values; they are in a new array of the device when this returns."""
    array = device.memory.device(spec(values.shape, values.dtype), name).array
    device.driver.copy_to_device(array.address, values.ctypes.data, values.nbytes, device.stream)
    device.driver.synchronize_stream(device.stream)
    return array
