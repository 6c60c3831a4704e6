"""The memory of a device, shared by a model and its draft model."""

from __future__ import annotations

from dataclasses import replace

from rocmforge.backend.optional import MemoryEstimate
from rocmforge.backend.protocol import LoadOptions
from rocmforge.errors import OutOfMemory


def draft_options(options: LoadOptions) -> LoadOptions:
    """Returns the options of a draft model: whole, on the first device, without adapters."""
    device = None if options.device is None else options.device.split(",")[0].strip()
    return replace(
        options,
        device=device,
        tensor_parallel=1,
        adapters=(),
        draft_tokens=0,
        device_experts=None,
        state_snapshots=0,
        releases_windows=False,
    )


def both(model: MemoryEstimate, draft: MemoryEstimate) -> MemoryEstimate:
    """Adds the estimates of a model and its draft model; a block is as many tokens of each."""
    return replace(
        model,
        weights=model.weights + draft.weights,
        activations=model.activations + draft.activations,
        kv_block=model.kv_block + _blocks_in_one(model, draft) * draft.kv_block,
    )


def share_memory(
    model: MemoryEstimate, draft: MemoryEstimate, options: LoadOptions
) -> tuple[LoadOptions, LoadOptions]:
    """Returns the options of a model and its draft model, so that both have room for as much.

    Where layers release what their window has left behind, the model's cache gets all that the
    other one leaves, as what a sequence takes of it depends on its length.

    Raises:
        OutOfMemory: as `shared_blocks`.
    """
    blocks = shared_blocks(model, draft, options)
    # The plan has left out what may not be used, of the memory that was free before the first.
    for_draft = replace(
        draft_options(options),
        kv_blocks=draft_blocks(blocks * _blocks_in_one(model, draft), draft, options),
        memory_utilization=1.0,
    )
    if not model.window_groups:
        return replace(options, kv_blocks=blocks), for_draft
    of_draft = draft.weights + draft.activations
    of_draft += blocks * _blocks_in_one(model, draft) * draft.kv_block
    left = options.memory_utilization * (model.allowed - of_draft) / model.allowed
    return replace(options, memory_utilization=left), for_draft


def shared_blocks(model: MemoryEstimate, draft: MemoryEstimate, options: LoadOptions) -> int:
    """Returns the model's blocks, so that there is room for their tokens in both caches.

    Where the model's layers release blocks, they are those of a context, in layers without a
    window.

    Args:
        model: what it would take with these options.
        draft: what it would take with its `draft_options`, of the same memory.
        options: of the model.

    Raises:
        OutOfMemory: both together do not fit with one sequence of full length, or with the blocks
            that were asked for.
    """
    together = both(model, draft)
    of_draft = together.kv_block - model.kv_block
    per_sequence = -(-model.context // model.block_size)
    least_bytes = together.kv_sequence
    fitting = max(together.left_for_kv, 0) * per_sequence // least_bytes
    if options.kv_blocks is not None and model.window_groups:  # which are of all layers
        of_model = (1 + model.window_groups) * model.kv_block
        fitting = max(together.left_for_kv + together.kv_step, 0) // (of_model + of_draft)
    if options.kv_blocks is not None:
        blocks = least = options.kv_blocks
    else:
        blocks = min(fitting, options.max_sequences * per_sequence)
        least = per_sequence
    if blocks < least or blocks > fitting:
        raise OutOfMemory(
            f"The model and its draft model need {_mib(model.weights)} and {_mib(draft.weights)} "
            f"for weights, {_mib(model.activations)} and {_mib(draft.activations)} for a step, and "
            f"{_mib(least * model.kv_block)} and {_mib(least * of_draft)} for caches of "
            f"{least * model.block_size} tokens, but only {_mib(model.allowed)} may be used. Lower "
            "max_context, max_batched_tokens, max_sequences or kv_blocks, or take a smaller draft "
            "model or none."
        )
    return blocks


def draft_blocks(blocks: int, draft: MemoryEstimate, options: LoadOptions) -> int:
    """Returns how many of so many blocks a draft model with a shorter context can use."""
    return min(blocks, options.max_sequences * -(-draft.context // draft.block_size))


def _blocks_in_one(model: MemoryEstimate, draft: MemoryEstimate) -> int:
    """Returns how many of the draft model's blocks have the tokens of one of the model's."""
    assert model.block_size % draft.block_size == 0, "one backend has one size of own blocks"
    return model.block_size // draft.block_size


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
