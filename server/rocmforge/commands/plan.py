"""`rocmforge inspect --plan`: what a model will take of a device, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from rocmforge.backend import registry
from rocmforge.backend.optional import MemoryEstimate, Planning
from rocmforge.backend.protocol import LoadOptions
from rocmforge.commands.terminal.output import fact_table, output_console
from rocmforge.engine.context import most_sequences, settle_context
from rocmforge.engine.draft.draft_memory import both, draft_options
from rocmforge.engine.loading import tower_options
from rocmforge.engine.predictor_memory import PREDICTOR_LEFT_OUT, predictor_has_room, predictor_part
from rocmforge.engine_options import load_options, tier_options
from rocmforge.errors import ConfigurationError, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.library.finding import find_model
from rocmforge.model_front import find_draft, open_model, warn_of_context
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.opening import open_checkpoint
from rocmforge.settings import AUTO, NO_DRAFT_MODEL, Settings
from rocmforge.sizes import parse_size

_ROOM_CONTEXTS: Final = (4096, 16384, 32768)
_MOST_SEQUENCES: Final = 512
"""That the room for sequences of these contexts is told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """Everything that is shown, so that --json shows the same. Sizes in bytes."""

    backend: str
    estimate: MemoryEstimate  # with a draft model and a tower: of all together
    draft: MemoryEstimate | None  # its part of that, or the predictor's
    tower: MemoryEstimate | None  # the same of what reads images
    sequences: int  # asked for
    kv_bytes: int  # of that many sequences, or of the blocks that were asked for
    fits: bool  # with a cache for all of them; the engine can do with less
    most_sequences: int  # of that context; 0 = not even one fits
    longest_context: int  # of one sequence, within the model's own limit
    trained_context: int  # that limit
    # Sequences that fit if --max-sequences lets them all run, by their tokens; 512 at most.
    room: Mapping[int, int] = field(default_factory=dict)
    predicts: bool = False  # the model's predictor drafts
    lacks_room_for_predictor: bool = False  # it has one, which drafts only if it is asked for


def show_plan(model: Path, settings: Settings, memory: str | None, as_json: bool) -> int:
    """Prints the plan; exit status 1 if not even one sequence fits; raises as `plan_model`."""
    plan = plan_model(model, settings, None if memory is None else parse_size(memory))
    if as_json:
        print(msgspec.json.encode(plan).decode())
    else:
        _print(output_console(), plan, settings)
    return 0 if plan.most_sequences else 1


def plan_model(model: Path, settings: Settings, stated: int | None) -> PlanReport:
    """Plans a model; reads no weights.

    Args:
        model: its file or folder.
        settings: with which it would be served.
        stated: free bytes of a device that is not here; None = look at the one that is.

    Raises:
        ConfigurationError: There is no device, and no memory was stated; or a draft model does not
            fit the model.
        ModelLoadError: The model cannot be served.
    """
    with ExitStack() as opened:
        checkpoint = opened.enter_context(open_model(model, settings))
        trained = checkpoint.config.max_context
        warn_of_context(settings, trained, model.stem)
        backend = _choose(settings.backend, device_is_here=stated is None)
        drafting, alone = None, None
        has_drafter = settings.other_draft_model is not None or checkpoint.config.predicts
        options = load_options(
            settings,
            trained,
            causal=checkpoint.config.causal,
            has_drafter=has_drafter,
            vision=checkpoint.vision,
        )
        if checkpoint.config.predicts:
            changed = msgspec.structs.replace(settings, draft_model=NO_DRAFT_MODEL)
            alone = opened.enter_context(open_model(model, changed))
        if settings.other_draft_model is not None:
            # Of a model that is not here, files without a tokenizer may be all there is.
            path = find_draft(checkpoint, settings) if checkpoint.has_tokenizer else None
            path = path or find_model(settings.other_draft_model)
            drafting = opened.enter_context(open_checkpoint(path))

        tower: MemoryEstimate | None = None
        if checkpoint.tower is not None:
            own = tower_options(options, checkpoint.tower.config)
            with suppress(UnsupportedArchitecture, UnsupportedTensor):  # it would be left out
                tower = backend.estimate(checkpoint.tower, own, stated)

        def estimate_of(each: Checkpoint, options: LoadOptions) -> MemoryEstimate:
            own = backend.estimate(each, options, stated)
            return own if tower is None else both(own, tower)

        without, is_left_out = settings.prompt_lookup_tokens, False
        if alone is not None and settings.draft_model == AUTO:
            is_left_out = not predictor_has_room(alone, checkpoint, options, without, estimate_of)
        if alone is not None and is_left_out:
            checkpoint, alone, options = alone, None, replace(options, draft_tokens=without)

        def parts(options: LoadOptions) -> tuple[MemoryEstimate, MemoryEstimate | None]:
            own = estimate_of(checkpoint, options)
            if alone is not None:
                other = estimate_of(alone, replace(options, draft_tokens=without))
                return own, predictor_part(other, own)
            if drafting is None:
                return own, None
            draft = backend.estimate(drafting, draft_options(options), stated)
            return both(own, draft), draft

        options = settle_context(options, lambda changed: parts(changed)[0])
        estimate, draft = parts(options)
        room = {}
        if estimate.kv_block and estimate.hosted is None and settings.kv_blocks is None:
            room = {
                context: _room(replace(options, max_context=context), lambda each: parts(each)[0])
                for context in _ROOM_CONTEXTS
                if context <= trained
            }
    plan = _plan(backend.name, estimate, draft, settings, trained)
    return replace(
        plan,
        tower=tower,
        room=room,
        predicts=alone is not None,
        lacks_room_for_predictor=is_left_out,
    )


def _room(options: LoadOptions, estimate_of: Callable[[LoadOptions], MemoryEstimate]) -> int:
    """Returns how many sequences of full length fit where as many may run."""

    def spare(count: int) -> int:
        estimate = estimate_of(
            replace(
                options,
                max_sequences=count,
                max_batched_tokens=max(options.max_batched_tokens, count),
            )
        )
        return estimate.left_for_kv - count * estimate.kv_sequence

    return most_sequences(spare, _MOST_SEQUENCES)


def _choose(name: str, *, device_is_here: bool) -> Planning:
    if device_is_here:
        choice = registry.choose(name)
        if choice.is_fallback:
            raise ConfigurationError(
                f"There is no device to plan for ({choice.reason}). State the free memory of one "
                "that is not here with --memory, such as --memory 24GiB."
            )
        backend = choice.backend
    else:
        backend = registry.create(registry.names()[0] if name == "auto" else name)
    if not isinstance(backend, Planning):
        raise ConfigurationError(f"The backend {backend.name!r} does not plan its memory.")
    return backend


def _plan(
    backend: str,
    estimate: MemoryEstimate,
    draft: MemoryEstimate | None,
    settings: Settings,
    trained: int,
) -> PlanReport:
    sequences, left = settings.max_sequences, max(estimate.left_for_kv, 0)
    kv_bytes = sequences * estimate.kv_sequence
    if settings.kv_blocks is not None:
        # Those of a draft model are of all its layers.
        of_draft = 0 if draft is None else draft.kv_block * estimate.block_size // draft.block_size
        of_model = (estimate.kv_block - of_draft) * (1 + estimate.window_groups)
        kv_bytes = settings.kv_blocks * (of_model + of_draft) - estimate.kv_step
    if estimate.kv_block:
        most = left // estimate.kv_sequence
        longest = min(estimate.longest_context, trained)
    else:
        most, longest = (sequences, estimate.context) if estimate.left_for_kv >= 0 else (0, 0)
    if estimate.host_missing:
        most = longest = 0
    return PlanReport(
        backend=backend,
        estimate=estimate,
        draft=draft,
        tower=None,
        sequences=sequences,
        kv_bytes=kv_bytes,
        fits=kv_bytes <= estimate.left_for_kv and not estimate.host_missing,
        most_sequences=most,
        longest_context=longest,
        trained_context=trained,
    )


def _print(console: Console, plan: PlanReport, settings: Settings) -> None:
    estimate = plan.estimate
    context = estimate.context
    cache = f"{plan.sequences} sequences of {context} tokens"
    if settings.kv_blocks is not None:
        cache = f"{settings.kv_blocks} blocks of {estimate.block_size} tokens"
    cache = f"{size_text(plan.kv_bytes)} in {estimate.kv_dtype} for {cache}"
    if not estimate.kv_block:
        cache = "none: the model keeps nothing of a prompt"
    snapshots = f" and {estimate.snapshots} snapshots" if estimate.snapshots else ""
    states = [("states", f"{size_text(estimate.states)} of all sequences{snapshots}")]
    windows = [
        (
            "windows",
            f"{size_text(estimate.kv_windows)} of a sequence: layers with a window of "
            f"{estimate.window} tokens release what it has left behind",
        )
    ]
    share = f"{settings.memory_utilization:.0%}"
    rows = [
        ("device", f"{estimate.device} with {size_text(estimate.free)} free ({plan.backend})"),
        ("may be used", f"{size_text(estimate.allowed)} ({share})"),
        ("context", _context(plan, settings)),
        ("weights", size_text(estimate.weights)),
        ("activations", size_text(estimate.activations)),
        *(states if estimate.states else []),
        ("KV cache", cache),
        *(windows if estimate.window_groups else []),
        *([("windows", f"keep all blocks: {estimate.kept_windows}")] * bool(estimate.kept_windows)),
        ("all of it fits", "yes" if plan.fits else _shortfall(plan)),
        ("at most", _most(plan)),
    ]
    if plan.room:
        told = ", ".join(
            f"{count} sequences of {context} tokens" for context, count in plan.room.items()
        )
        rows.append(("room for", f"{told}, if --max-sequences is as many"))
    if estimate.hosted is not None:
        rows.insert(4, ("experts", str(estimate.hosted)))
    if estimate.host_table:
        table = f"{size_text(estimate.host_table)} of the host: of each layer, read by rows"
        rows.insert(4, ("embeddings", table))
    tiers = tier_options(settings)
    if tiers.wanted and estimate.kv_block:
        blocks, kept = tiers.divide(estimate.kv_block, estimate.slot_bytes)
        tokens = f"{blocks:,} blocks, {blocks * estimate.block_size:,} tokens"
        if kept:
            tokens += f", {kept:,} snapshots of states"
        rows.append(("host cache", f"{size_text(tiers.pinned_bytes)} of the host: {tokens}"))
    if plan.tower is not None:
        weights, activations = size_text(plan.tower.weights), size_text(plan.tower.activations)
        rows.insert(-2, ("tower", f"of these: {weights} weights, {activations} activations"))
    if plan.draft is not None:
        name = "predictor" if plan.predicts else "draft model"
        rows.insert(-2, (name, _draft_part(plan.draft, estimate, settings)))
    if plan.lacks_room_for_predictor:
        rows.insert(-2, ("predictor", PREDICTOR_LEFT_OUT))
    console.print(fact_table(rows))


def _draft_part(draft: MemoryEstimate, estimate: MemoryEstimate, settings: Settings) -> str:
    where = ", on the first device alone" if settings.tensor_parallel > 1 else ""
    states = f"{size_text(draft.states)} states, " if draft.states > 0 else ""
    return (
        f"of these{where}: {size_text(draft.weights)} weights, {size_text(draft.activations)} "
        f"activations, {states}{draft.kv_block / estimate.kv_block:.0%} of the cache"
    )


def _context(plan: PlanReport, settings: Settings) -> str:
    context = plan.estimate.context
    if settings.max_context is not None or context == plan.trained_context:
        return f"{context} tokens"
    return f"{context} tokens, as many as fit; the model was trained for {plan.trained_context}"


def _shortfall(plan: PlanReport) -> str:
    if plan.estimate.host_missing:
        what = "embeddings" if plan.estimate.hosted is None else "experts"
        return f"no: the host lacks {size_text(plan.estimate.host_missing)} for the {what}"
    missing = size_text(plan.kv_bytes - plan.estimate.left_for_kv)
    if not plan.most_sequences:
        return f"no: {missing} are missing, and not even one sequence fits"
    return f"no: {missing} are missing; sequences beyond that would wait or be preempted"


def _most(plan: PlanReport) -> str:
    if plan.estimate.host_missing:
        return "nothing"
    if not plan.longest_context:
        return "nothing: weights and activations alone do not fit"
    return (
        f"{plan.most_sequences} sequences of {plan.estimate.context} tokens, "
        f"or one of {plan.longest_context}"
    )


def size_text(count: int) -> str:
    """Formats bytes for people."""
    if count < 2**20:
        return f"{count / 2**10:.1f} KiB"
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"
