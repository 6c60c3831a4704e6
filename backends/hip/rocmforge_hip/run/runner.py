"""Executes steps on the device: one copy up, kernels or a graph of them, one copy down.

Masks may be an exception: they are copied when the forward pass runs already, and sampling waits.
Rows of embeddings are another: each run of them is copied to its place behind the table's rows.

Two steps may be in flight (`pipeline`), and a step may read the tokens that the one before it
sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from rocmforge.backend.arrays import Int32Array, UInt8Array, UInt32Array
from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import StepCost, StepInput, StepOutput
from rocmforge.backend.windows import WindowGroups, in_own_blocks
from rocmforge.choices import Switch
from rocmforge.errors import OutOfMemory
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.model import (
    hidden_states,
    logits,
    predicted_logits,
    predicted_states,
    prepare_predictor,
    sums,
)
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.graphs import GraphCache
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.activations import MAX_TOP_LOGPROBS, Activation, ActivationArrays, StepLimits
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.ops.operands import empty, f32_of
from rocmforge_hip.ops.sampling.sampler import Sampler
from rocmforge_hip.ops.step.arrays import StepArrays
from rocmforge_hip.ops.step.device_step import DeviceStep, StagedInputs
from rocmforge_hip.ops.step.layout import StepLayout
from rocmforge_hip.ops.step.needs import NO_LISTS, ListSizes, SamplingNeeds
from rocmforge_hip.ops.step.output import OutputLayout
from rocmforge_hip.ops.step.shape import PredictorUse, StepShape
from rocmforge_hip.ops.step.variants import PLAIN
from rocmforge_hip.run.axes import AxisRows
from rocmforge_hip.run.block_copies import BlockCopies, Stored
from rocmforge_hip.run.checked_drafts import as_decodes
from rocmforge_hip.run.embeddings import RowStaging
from rocmforge_hip.run.expert_cache import open_expert_cache
from rocmforge_hip.run.pipeline import Lane, Pipeline
from rocmforge_hip.run.shapes import StepShapes
from rocmforge_hip.run.teams import TeamFinder, Teams
from rocmforge_hip.run.traffic import StepReads
from rocmforge_hip.run.variant_choice import StepVariants
from rocmforge_hip.weights.formats import Weight
from rocmforge_hip.weights.hosting import HostedLayer
from rocmforge_hip.weights.products import Product


@dataclass(frozen=True, slots=True)
class Model:
    """The model on the device."""

    config: ModelConfig
    weights: ModelWeights[Weight]
    ops: HipOps
    sampler: Sampler | None  # None: it is not causal
    arena: ActivationArrays[DeviceArray]
    inputs: DeviceArray  # bytes
    axes: AxisRows | None = None  # of a model whose positions have several
    hosted: tuple[HostedLayer, ...] = ()


class _Forward(NamedTuple):
    """The results of a forward pass for the end of its step."""

    logits: Activation | None  # None: there are none
    sums: Activation | None  # of hidden states; right before the tokens, if there are any
    is_sampled: bool = False


@dataclass(frozen=True, slots=True)
class _Unmasked:
    """A step that waits for its masks before it samples."""

    lane: Lane
    ended: int
    layout: StepLayout
    step: DeviceStep
    forward: _Forward
    output: OutputLayout


@dataclass(frozen=True, slots=True)
class _InFlight:
    bytes_read: int
    step_id: int
    rows: int
    output: OutputLayout
    host_rows: int


class HipRunner:
    """Implements `MasksLate` and `CopiesBlocks`.

    Args:
        device: Owned from now on.
        model: What computes.
        limits: Of a step, as planned at load.
        info: What is said of it.
        reads: Bytes of a step.
        replays: Whether graphs are used.
        windows: Groups of layers that release blocks.
        shared_prefix: As `LoadOptions.shared_prefix`.
    """

    def __init__(
        self,
        device: Device,
        model: Model,
        limits: StepLimits,
        info: RunnerInfo,
        reads: StepReads,
        *,
        replays: bool,
        windows: WindowGroups | None = None,
        shared_prefix: Switch = "off",
    ) -> None:
        self._device = device
        self._open_model: Model | None = model
        self._limits = limits
        self._shapes = StepShapes(
            limits, predicts=model.config.predicts, has_axes=model.axes is not None
        )
        self._info = info
        self._windows = windows
        self._teams = TeamFinder(shared_prefix, model.ops.most_of_team)
        self.has_teams = True
        """Whether sequences may read together what they share, if `shared_prefix` allows it."""
        self.replays = replays
        """Whether steps of decodes are replayed from graphs, or launched as others are."""
        self.pads_prompts = replays
        """Whether short prompts, too, are computed in the shapes of graphs."""
        self.variants = StepVariants.always("plain")
        """The variants of such steps."""
        sampling = model.arena.sampling
        if sampling is None:
            output_bytes = limits.sums * model.config.output_size * 4
        else:
            output_bytes = sampling.output.nbytes
        self._pipeline: Pipeline[_InFlight] = Pipeline(device, model.inputs.nbytes, output_bytes)
        self._graphs = GraphCache(device.driver, device.stream)
        self._reads = reads
        config = model.config
        self._rows = RowStaging(
            device, limits.tokens, config.hidden_size, parts=1 + config.deepstack
        )
        self._patches = RowStaging(device, limits.tokens, config.patch_features, np.float16)
        self._layouts: dict[StepShape, tuple[StepLayout, StepArrays[DeviceArray]]] = {}
        self._unmasked: _Unmasked | None = None
        self._experts = open_expert_cache(device, model.hosted, model.arena.experts)
        self._copies: BlockCopies | None = None

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def driver(self) -> Driver:
        """The driver, for its counters."""
        return self._device.driver

    def decide(
        self, info: RunnerInfo, *, replays: bool, variants: StepVariants | None = None
    ) -> None:
        """Says anew what is said of the model and how steps of decodes run, between steps.

        Args:
            info: What is said.
            replays: Whether graphs are used.
            variants: If these change.
        """
        self._info = info
        self.replays = self.pads_prompts = replays
        self.variants = variants or self.variants
        if not replays:
            self._graphs.close()
        self._pipeline.forget_last()

    def close(self) -> None:
        if self._open_model is not None:
            self._open_model = None
            self._pipeline.close(self._close_own)

    def _close_own(self) -> None:
        self._graphs.close()
        if self._experts is not None:
            self._experts.close()
        if self._copies is not None:
            self._copies.close()

    @property
    def _model(self) -> Model:
        assert self._open_model is not None, "the runner is closed"
        return self._open_model

    def reads_together(self, step: StepInput) -> bool:
        """Returns whether some sequences with one new token would read what they share once."""
        return self._teams_of(in_own_blocks(step, self._windows)) is not None

    def _teams_of(self, step: StepInput) -> Teams | None:
        if not (self._teams.may_find and self.has_teams) or step.predicts:
            return None
        decodes = np.flatnonzero(step.new_tokens == 1)
        return self._teams.of(step.block_table[decodes], step.context_len[decodes])

    def submit(self, step: StepInput) -> None:
        assert self._unmasked is None, "the step before waits for its masks"
        assert len(step.window_tables) == self._info.window_groups, "a table for each group"
        self._pipeline.submit(partial(self._start, step))

    def constrain(self, allowed: UInt32Array) -> None:
        assert self._unmasked is not None, "no step waits for masks"
        waiting, self._unmasked = self._unmasked, None
        driver, stream = self._device.driver, self._device.stream
        section = waiting.layout.masks
        # Rows beyond those of the step are padding, and keep the masks that they have.
        target = waiting.lane.inputs.bytes[section.offset : section.stop].view(np.uint32)
        target[: allowed.size] = allowed.reshape(-1)
        with self._pipeline.guarded():
            driver.copy_to_device(
                waiting.step.inputs.allowed.address,
                waiting.lane.inputs.address + section.offset,
                section.stop - section.offset,
                stream,
            )
            self._finish(waiting.lane, waiting.ended, waiting.step, waiting.forward, waiting.output)

    def open_host_blocks(self, count: int) -> UInt8Array:
        assert self._copies is None, "there is memory for blocks already"
        info = self._info
        arrays = [  # whose own blocks may be parts of one
            array.first(info.num_blocks, prod(array.shape) // info.num_blocks)
            for array in self._model.ops.cache_arrays
        ]
        with self._pipeline.guarded():
            self._copies = BlockCopies(self._device, arrays, info.block_size, count)
        assert self._copies.blocks.nbytes == self._info.block_bytes, "all of a block is copied"
        return self._copies.blocks.slots

    def open_host_states(self, count: int) -> UInt8Array:
        with self._pipeline.guarded():
            slots = self._opened_copies.open_states(self._model.ops.state_arrays, count)
        assert slots.shape[1] == self._info.slot_bytes, "all states of a sequence are copied"
        return slots

    def save_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        self._copy(self._opened_copies.blocks, blocks, slots, is_restore=False)

    def restore_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        self._copy(self._opened_copies.blocks, blocks, slots, is_restore=True)

    def save_states(self, states: Int32Array, slots: Int32Array) -> None:
        self._copy(self._opened_copies.states, states, slots, is_restore=False)

    def restore_states(self, states: Int32Array, slots: Int32Array) -> None:
        self._copy(self._opened_copies.states, states, slots, is_restore=True)

    def finished_copies(self) -> list[int]:
        with self._pipeline.guarded():
            return self._opened_copies.finished()

    @property
    def _opened_copies(self) -> BlockCopies:
        assert self._copies is not None, "there is no memory for blocks"
        return self._copies

    def _copy(
        self, of: Stored | None, places: Int32Array, slots: Int32Array, *, is_restore: bool
    ) -> None:
        assert of is not None, "there is no memory for states"
        with self._pipeline.guarded():
            self._opened_copies.start(of, places, slots, is_restore=is_restore)

    def collect(self) -> StepOutput:
        room = self._pipeline.oldest.output.make_room()  # while the device computes
        lane, done, timing = self._pipeline.collect()
        hidden = None
        if room is not None:
            hidden = done.output.read_hidden(lane.outputs.bytes, room, self._device.memory.copies)
        experts = None if self._experts is None else self._experts.collect()
        tokens, logprobs, top_ids, top_logprobs = done.output.read(lane.outputs.bytes, done.rows)
        return StepOutput(
            step_id=done.step_id,
            token_ids=tokens,
            logprobs=logprobs,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            device_ns=timing.device_ns,
            hidden=hidden,
            host_processed_rows=done.host_rows,
            cost=StepCost(
                bytes_read=done.bytes_read,
                launches=timing.launches,
                gap_ns=timing.gap_ns,
                expert_reads=0 if experts is None else experts.reads.all,
                host_expert_reads=0 if experts is None else experts.reads.host,
                expert_swaps=0 if experts is None else experts.swaps,
            ),
        )

    def _start(self, step: StepInput, lane: Lane, ended: int) -> _InFlight:
        model, driver, stream = self._model, self._device.driver, self._device.stream
        if self._copies is not None:
            self._copies.before_step(step)
        step = in_own_blocks(step, self._windows)
        whole, step = step, as_decodes(step, self._limits.sequences)
        needs = SamplingNeeds.of(step.sampling)
        bucket = self._shapes.of_graph(step, whole, prompts=self.pads_prompts)
        shape = bucket or self._shapes.exact(step)
        teams = self._teams_of(step)
        shape = replace(shape, has_teams=teams is not None)
        bytes_read = self._reads.of(whole, _saved_tokens(step, whole, teams))
        layout, arrays = self._layout(shape, step, model, is_bucket=bucket is not None)
        self._check_size(step, layout, needs, model)
        rope_rows = None if model.axes is None else model.axes.stage(step, lane)
        layout.pack(
            step, lane.inputs.bytes, whole, rope_rows, None if teams is None else teams.rows
        )
        driver.record_event(lane.started, stream)
        is_masked_later = step.sampling.is_masked_later
        size = layout.masks.offset if is_masked_later else layout.nbytes
        variant = self.variants.of(shape) if bucket and not shape.prefills else PLAIN
        # Where one launch does all, it takes a token's index for what it rotates by.
        if variant.fuses_attention and (
            step is not whole or len(step.axis_positions) or _reads_new_keys(step)
        ):
            variant = replace(variant, fuses_attention=False)
        embeddings = self._rows.stage(step.embedding_rows, step.embedding_tokens, lane)
        places = np.arange(len(step.patches), dtype=np.int32)
        patches = self._patches.stage((step.patches,), places, lane)
        on_device = DeviceStep(shape, arrays, needs, variant, step, embeddings, patches)
        if self._experts is not None:
            leaves_out = model.ops.leaves_rows_out(on_device)
            last_tokens = len(step.logit_rows) if leaves_out else step.num_tokens
            self._experts.begin(shape.tokens, step.num_tokens, last_tokens)
        if model.sampler is None:
            driver.copy_to_device(model.inputs.address, lane.inputs.address, size, stream)
        else:
            # Not in the graph, whose launches have the same arguments in every replay, and no copy:
            # one right before a replay is what ROCm/hip#3902 (gfx950) and the program in #3887
            # (gfx1201) have in common, where the kernels of the graph read what the replay before
            # was given.
            model.sampler.begin(on_device, StagedInputs(lane.inputs, model.inputs, size))
        forward = self._compute(on_device, model, is_bucket=bucket is not None)
        output = OutputLayout(
            *(shape.rows, needs.logprobs, needs.num_top, shape.sums, model.config.output_size),
            parts=model.config.row_parts,
        )
        if is_masked_later:
            assert not forward.is_sampled, "masks keep sampling out of graphs"
            self._unmasked = _Unmasked(lane, ended, layout, on_device, forward, output)
        else:
            self._finish(lane, ended, on_device, forward, output)
        processors = step.sampling.processors
        host_rows = 0
        if processors and model.sampler is not None:
            host_rows = model.sampler.processors.host_rows(processors)
        return _InFlight(
            bytes_read,
            step.step_id,
            len(step.logit_rows),
            output,
            host_rows,
        )

    def _finish(
        self,
        lane: Lane,
        ended: int,
        step: DeviceStep,
        forward: _Forward,
        output: OutputLayout,
    ) -> None:
        """Samples, unless that was done with the forward pass, and brings the results."""
        driver, stream, sampler = self._device.driver, self._device.stream, self._model.sampler
        if forward.logits is not None and sampler is not None:
            if not forward.is_sampled:
                sampler.sample(step, forward.logits)
            sampler.take_logprobs(step, forward.logits)
        if output.nbytes:
            source = None if forward.sums is None else f32_of(forward.sums)
            if source is None and sampler is not None:
                source = sampler.tokens
            assert source is not None
            driver.copy_to_host(lane.outputs.address, source.address, output.nbytes, stream)
        if self._experts is not None:
            self._experts.end()
        driver.record_event(ended, stream)

    def _compute(self, step: DeviceStep, model: Model, *, is_bucket: bool) -> _Forward:
        if not is_bucket:
            return self._forward(step, model)
        needs, arena = step.needs, model.arena
        # Penalties, biases, masks and processors come with arrays whose sizes are not the shape's.
        # Behind a prompt, a few launches more are not worth a graph for each kind of sampling.
        is_sampled = not (needs.adjusts or step.shape.prefills)

        def launch() -> None:
            rows = self._forward(step, model).logits
            if is_sampled and rows is not None and model.sampler is not None:
                model.sampler.sample(step, rows)

        if self.replays:
            sampling = (needs.draws, needs.filters) if is_sampled else None
            key = (step.shape, step.variant, sampling)
            self._graphs.launch(key, launch)
        else:
            launch()
        rows, vocab = step.shape.rows, model.config.vocab_size
        return _Forward(
            empty(arena.product(Product.LOGITS), rows, vocab, half=False), None, is_sampled
        )

    def _forward(self, step: DeviceStep, model: Model) -> _Forward:
        config, weights, ops = model.config, model.weights, model.ops
        if step.shape.predictor is PredictorUse.DRAFT:
            hidden = predicted_states(config, weights, ops, step)
            return _Forward(predicted_logits(config, weights, ops, step, hidden), None)
        hidden = hidden_states(config, weights, ops, step)
        forward = _Forward(
            logits=logits(config, weights, ops, step, hidden) if config.causal else None,
            sums=sums(config, weights, ops, step, hidden) if step.shape.sums else None,
        )
        prepare_predictor(config, weights, ops, step, hidden)  # writes to the place of these
        return forward

    def _layout(
        self, shape: StepShape, step: StepInput, model: Model, *, is_bucket: bool
    ) -> tuple[StepLayout, StepArrays[DeviceArray]]:
        """Returns the layout of a step and its arrays; those of buckets are kept."""
        lists = ListSizes.of(step.sampling)
        if is_bucket and lists == NO_LISTS and shape in self._layouts:
            return self._layouts[shape]
        layout = StepLayout(shape, lists)
        found = layout, layout.arrays(model.inputs.address)
        if is_bucket and lists == NO_LISTS:
            self._layouts[shape] = found
        return found

    def _check_size(
        self, step: StepInput, layout: StepLayout, needs: SamplingNeeds, model: Model
    ) -> None:
        limits = self._limits
        if (
            step.num_tokens > limits.tokens
            or step.num_sequences > limits.sequences
            or len(step.logit_rows) > limits.rows
            or len(step.hidden_ranges) > limits.sums
            or int(step.context_len.max()) > limits.context
            or layout.nbytes > model.inputs.nbytes
            or needs.num_top > MAX_TOP_LOGPROBS
        ):
            raise OutOfMemory(
                f"A step of {step.num_tokens} tokens, {step.num_sequences} sequences, "
                f"{len(step.hidden_ranges)} sums of hidden states, {len(step.logit_rows)} rows of "
                f"logits with {needs.num_top} top_logprobs and {layout.nbytes:,} bytes of "
                f"input exceeds what was planned at load: {limits.tokens} tokens, "
                f"{limits.sequences} sequences, {limits.rows} rows, "
                f"{MAX_TOP_LOGPROBS} top_logprobs, {model.inputs.nbytes:,} bytes."
            )


def _reads_new_keys(step: StepInput) -> bool:
    """Returns whether a sequence of a step of decodes sees the new token of another.

    Where one launch stores keys and attends to them, nobody else may read them yet. Sequences only
    share full blocks, so it must be the last token of its block. (Rows of `as_decodes` share any.)
    """
    rows = np.flatnonzero(step.slot_mapping % BLOCK_TOKENS == BLOCK_TOKENS - 1)
    if not len(rows):
        return False
    columns = step.positions[rows] // BLOCK_TOKENS
    tables = zip(
        (step.block_table, *step.window_tables),
        (step.slot_mapping, *step.window_slots),
        strict=True,
    )
    return any(
        bool(((table[:, columns] == slots[rows] // BLOCK_TOKENS).sum(axis=0) > 1).any())
        for table, slots in tables
    )


def _saved_tokens(step: StepInput, whole: StepInput, teams: Teams | None) -> int:
    """Returns how many tokens of the cache a step reads less than each of its sequences once.

    Args:
        step: The step.
        whole: What it was before `as_decodes`.
        teams: Of the step.
    """
    if teams is None:
        return 0
    read = int(step.context_len.sum(dtype=np.int64)) - teams.saved
    return max(int(whole.context_len.sum(dtype=np.int64)) - read, 0)
