"""`rocmforge inspect`: what is in a model's file, and what it would need, without loading it."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rocmforge.backend.windows import plan_windows, why_windows_keep
from rocmforge.checkpoint.cache_types import CACHE_TYPES
from rocmforge.commands.plan import show_plan, size_text
from rocmforge.commands.terminal.output import fact_table, output_console
from rocmforge.engine_options import load_options
from rocmforge.errors import ConfigurationError
from rocmforge.library.finding import find_model
from rocmforge.model_front import warn_of_context
from rocmforge.models.checkpoint import Contents
from rocmforge.models.config import ModelConfig, without_predictor
from rocmforge.models.memory import kv_bytes_per_token, state_bytes
from rocmforge.models.sampling import UNRECOMMENDED, SamplingDefaults
from rocmforge.models.vision.config import VisionConfig
from rocmforge.opening import describe
from rocmforge.settings import Settings

_BLOCK: Final = 32  # tokens
_KEY_TILE: Final = 128  # tokens that kernels take at a time


@dataclass(frozen=True, slots=True)
class TypeShare:
    """The share of the file of one quantised type."""

    type: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectReport:
    """Everything that is shown, so that --json shows the same."""

    path: str
    file_bytes: int
    gguf_version: int | None  # None: it is a folder
    architecture: str
    name: str
    quantisation: tuple[TypeShare, ...]  # largest first
    weight_bytes: int
    config: ModelConfig | None  # None: not supported
    not_supported: str | None  # why
    kv_bytes: dict[str, int]  # for one sequence of `context` tokens, by type of the cache
    windows: str  # what layers with a window do with what it has left behind; empty: nothing
    predicts: bool  # it has a predictor
    state_bytes: int  # of one sequence, whatever its length
    context: int
    sampling: SamplingDefaults | None  # recommended by its maker
    vision: VisionConfig | None  # how it takes images; None: it takes none
    tower: ModelConfig | None
    tokenizer: str
    chat_template: str | None
    tensors: tuple[TensorRow, ...] | None  # None: they were not asked for


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints the report. A model that cannot be served is shown too, with the reason."""
    if arguments.plan:
        if arguments.tensors:
            raise ConfigurationError("--tensors changes nothing with --plan: leave one out.")
        return show_plan(find_model(arguments.model), settings, arguments.memory, arguments.json)
    if arguments.memory is not None:
        raise ConfigurationError("--memory needs --plan.")
    contents = describe(find_model(arguments.model))
    report = _report(contents, settings, with_tensors=arguments.tensors)
    if report.config is not None:
        warn_of_context(settings, report.config.max_context, report.name)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
        return 0
    console = output_console()
    _print(console, report)
    if report.tensors is not None:
        _print_tensors(console, report.tensors)
    return 0


def _report(contents: Contents, settings: Settings, *, with_tensors: bool) -> InspectReport:
    config, context, predicts = contents.config, 0, False
    tokens, windows = 0.0, ""
    if config is not None:
        config, predicts = without_predictor(config), config.predicts
        context = min(settings.max_context or config.max_context, config.max_context)
        tokens, windows = _kept_tokens(config, settings, context)
    return InspectReport(
        path=str(contents.path),
        file_bytes=contents.size_bytes,
        gguf_version=contents.gguf_version,
        architecture=contents.architecture,
        name=contents.name,
        quantisation=_quantisation(contents),
        weight_bytes=sum(tensor.nbytes for tensor in contents.tensors),
        config=config,
        not_supported=contents.refusal,
        kv_bytes={kind: int(tokens * kv_bytes_per_token(config, kind)) for kind in CACHE_TYPES}
        if config is not None and config.causal
        else {},
        windows=windows,
        predicts=predicts,
        state_bytes=0 if config is None else state_bytes(config),
        context=context,
        sampling=contents.sampling,
        vision=contents.vision,
        tower=contents.tower,
        tokenizer=contents.tokenizer,
        chat_template=contents.chat_template,
        tensors=tuple(
            TensorRow(tensor.name, tuple(tensor.shape), str(tensor.format), tensor.nbytes)
            for tensor in contents.tensors
        )
        if with_tensors
        else None,
    )


def _kept_tokens(config: ModelConfig, settings: Settings, context: int) -> tuple[float, str]:
    """Returns how many tokens the cache of one sequence keeps, if all layers had as many.

    And what layers with a window do, in words. Blocks are those of the HIP backend.
    """
    options = load_options(
        settings,
        config.max_context,
        causal=config.causal,
        has_drafter=settings.other_draft_model is not None,
    )
    groups = plan_windows(config, options, _BLOCK, _KEY_TILE)
    if groups is None:
        kept = why_windows_keep(config, options, _BLOCK, _KEY_TILE)
        return context, f"keep all blocks: {kept}" if kept else ""
    said = f"release what a window of {groups.window} tokens has left behind"
    tokens = context + groups.sequence_blocks * groups.block_size
    return tokens * groups.share_of(config), said


def _quantisation(contents: Contents) -> tuple[TypeShare, ...]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in contents.tensors:
        counts[str(tensor.format)] += 1
        sizes[str(tensor.format)] += tensor.nbytes
    return tuple(TypeShare(kind, counts[kind], size) for kind, size in sizes.most_common())


def _print(console: Console, report: InspectReport) -> None:
    rows = [
        ("size", f"{size_text(report.file_bytes)} ({_kind(report)})"),
        ("architecture", report.architecture),
        ("name", report.name),
        (
            "quantisation",
            ", ".join(
                f"{share.type} {100 * share.bytes / max(report.weight_bytes, 1):.1f}%"
                f" ({share.tensors} tensors)"
                for share in report.quantisation
            ),
        ),
        ("tokenizer", report.tokenizer),
    ]
    if report.config is not None:
        rows += _model_rows(report, report.config)
    table = fact_table(rows)
    reason = escape(report.not_supported or "")
    table.add_row("can be served", f"[red]no:[/red] {reason}" if reason else "yes")
    # A table would fold it, and half a path is of no use to who copies it.
    console.print(escape(report.path), highlight=False, soft_wrap=True)
    console.print(table)
    console.print("\n[bold]chat template[/bold]")
    console.print(escape(report.chat_template or "none"), highlight=False)


def _model_rows(report: InspectReport, config: ModelConfig) -> list[tuple[str, str]]:
    heads = f"{_each(config, 'num_heads')} heads of {_each(config, 'key_dim')}"
    if ranks := sorted({layer.latent_rank for layer in config.layers} - {0}):
        heads += f", latent vectors of {' or '.join(map(str, ranks))}"
    shape = f"{config.num_layers} layers, {config.hidden_size} wide, {_networks(config)}, {heads}"
    context = ("context", f"{config.max_context} tokens")
    weights = ("weights", f"{size_text(report.weight_bytes)} as stored")
    if config.causal:
        windows = sum(layer.window is not None for layer in config.layers)
        kv_heads = _each(config, "num_kv_heads")
        caches = ", ".join(f"{size_text(size)} in {kind}" for kind, size in report.kv_bytes.items())
        return [
            ("shape", f"{shape} ({kv_heads} KV), vocabulary {config.vocab_size}"),
            context,
            ("sliding", f"{windows} of {config.num_layers} layers" if windows else "no"),
            *([("windows", report.windows)] * bool(report.windows)),
            weights,
            ("sampling", f"{report.sampling or UNRECOMMENDED} ({_origin(report)})"),
            ("KV cache", f"one sequence of {report.context} tokens: {caches}"),
            *([("predictor", "one layer; it drafts tokens")] * report.predicts),
            *([] if report.vision is None else [("images", _images(report.vision, report.tower))]),
            *([("states", f"{size_text(report.state_bytes)} of one sequence")] * config.has_states),
        ]
    gives = f"embeddings of {config.hidden_size} numbers (pooling: {config.pooling.name.lower()})"
    if config.num_scores:
        gives = f"{config.num_scores} score(s) of a query and a document"
    return [
        ("shape", f"encoder, {shape}, vocabulary {config.vocab_size}"),
        ("gives", gives),
        context,
        weights,
    ]


def _images(vision: VisionConfig, tower: ModelConfig | None) -> str:
    """Returns how a model takes images, for people."""
    processor = vision.processor
    said = f"tiles of {processor.tile} x {processor.tile} pixels, {processor.tile_rows} tokens each"
    if not processor.tile:
        token, edge = (processor.patch * processor.merge) ** 2, processor.longest_edge
        limits = f"{processor.least_pixels:,} to {processor.most_pixels:,}"
        limits = f"up to {edge:,} x {edge:,}" if edge else limits
        if processor.most_rows:
            limits = f"up to {processor.most_rows * token:,}"
        said = f"{limits} pixels in their own shape, {token:,} to a token"
    if tower is None:
        return said
    layers = f"of {tower.num_layers}" if tower.layers else "without"
    return f"{said}; a tower {layers} layers, {tower.hidden_size} wide"


def _networks(config: ModelConfig) -> str:
    """Returns what layers have behind their attention, for people."""
    found = []
    if sizes := sorted({layer.intermediate_size for layer in config.layers} - {0}):
        found.append(f"feed-forward {' or '.join(map(str, sizes))}")
    for experts in dict.fromkeys(layer.experts for layer in config.layers if layer.experts):
        shared = experts.shared_intermediate_size
        found.append(
            f"{experts.num_chosen} of {experts.num_experts} experts of {experts.intermediate_size}"
            + (f" and one of {shared} for all tokens" if shared else "")
        )
    return " or ".join(found)


def _each(config: ModelConfig, size: str) -> str:
    """Returns the values of a size, for people; layers may differ in it, or lack it."""
    sizes = {getattr(layer, size) for layer in config.layers} - {0}
    return " or ".join(map(str, sorted(sizes)))


def _origin(report: InspectReport) -> str:
    return "its maker recommends nothing" if report.sampling is None else "recommended by its maker"


def _kind(report: InspectReport) -> str:
    return "safetensors" if report.gguf_version is None else f"GGUF {report.gguf_version}"


def _print_tensors(console: Console, tensors: tuple[TensorRow, ...]) -> None:
    table = Table("tensor", "shape", "type", "size")
    table.columns[0].no_wrap = True
    for tensor in tensors:
        shape = " x ".join(map(str, tensor.shape))
        table.add_row(escape(tensor.name), shape, tensor.type, size_text(tensor.bytes))
    console.print(table)
