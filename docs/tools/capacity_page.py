"""The page of how many sequences of which model fit on which card, made by the planner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.cards import CARDS, COPY_SHARE, Card
from docs.tools.markdown import code, table
from docs.tools.model_shapes import ModelShape, read_shapes, write_header
from rocmforge.backend.optional import MemoryEstimate
from rocmforge.backend.protocol import LoadOptions
from rocmforge.checkpoint.cache_types import KvDtype
from rocmforge.engine.context import most_sequences
from rocmforge.engine_options import load_options
from rocmforge.errors import ConfigurationError
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.opening import open_checkpoint
from rocmforge.settings import Settings
from rocmforge_hip.backend import create
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.load.loading import plan_reads
from rocmforge_hip.run.traffic import StepReads

CONTEXTS: Final = (4096, 16384, 32768)
MOST: Final = 512
"""Sequences that are told of."""
_FIRST: Final = "f16"
_SMALLER: Final[tuple[KvDtype, ...]] = ("int8", "k8v4")
_SAMPLES: Final = (1, 64)
"""Sequences that plans are made for: what lies between and beyond them is on a line with these."""
_LAYER_LAUNCHES: Final = 8
_RAMP_S: Final = 4e-6
"""As docs/benchmarks.md has them of steps with fused kernels; the ramp is 3.4 to 5 us there."""
_BLOCKS: Final = CONTEXTS[0] // BLOCK_TOKENS
_GIB: Final = 1 << 30
_NONE: Final = "–"
_NO_KERNELS: Final = "×"

_HEAD = f"""# Capacity

How many sequences ("streams") of which model fit on a card, and how fast they can be at most. The
numbers of sequences are those of the planner that also decides at load, for a card with nothing
else on it and `--memory-utilization` at its default. For your own model, card and settings:

    rocmforge inspect MODEL --plan --memory 24GiB

Without `--memory` it looks at the device that is there.

All sequences have their full length at the same time, with nothing shared, which is the worst case:
shorter ones and [prefixes in common](../cache.md) leave room for more. To let as many run, set
`--max-context` and `--max-sequences` to the two numbers. A prompt is let in only if one block of
{BLOCK_TOKENS} tokens for each sequence that runs stays free beside its own, so that these can grow.
So where prompts fill their context from the start, one in {_BLOCKS + 1} sequences of
{CONTEXTS[0]:,} tokens waits until another has ended, and fewer of longer ones.

A cell has the sequences with an f16 cache and, behind the bars, with `--kv-dtype int8` and `k8v4`.
{MOST}+ is {MOST} or more; {_NO_KERNELS}: there are no kernels for such a cache of its heads;
{_NONE}: not even one fits with all weights on the card. Models with experts then run
[from the host's memory](../models.md#models-larger-than-the-card).

The files are Q4_K_M as llama.cpp makes them, MXFP4 for gpt-oss. There is no draft model, predictor,
tower or adapter, which take room, too. The MI300A's processor has a part of its memory; what is
free counts.
"""
_SPEED = f"""## Predicted speed

Nobody has measured these cards. A prediction has the bytes that a step reads, each once, through
{COPY_SHARE:.0%} of the bandwidth on paper, and the time of {_LAYER_LAUNCHES} launches a layer:
`benchmarks/cards.py` has the formula and its sources. It knows no arithmetic, so that it is a limit
that large batches do not reach. In front of the bar: tokens a second of one sequence at 4,096
tokens; behind it: of all that fit with an f16 cache, together.

On an H200 that gave no more memory than a card with 24 GiB, as many sequences ran as are planned,
and one more did not: [five of five](../benchmarks.md#as-many-sequences-as-are-planned). One
sequence was 3 to 16% faster there than such a prediction. Eight of 16,384 tokens reached 98% of it,
32 to 171 of 4,096 tokens 40 to 74%.
"""


def text() -> str:
    """Returns the page."""
    with TemporaryDirectory() as folder:
        models = [plan_shape(name, shape, Path(folder)) for name, shape in read_shapes().items()]
    return "\n".join(_parts(models))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What the planner says of a model, for each context and type of the cache."""

    path: Path  # of a file without weights
    shape: ModelShape
    options: LoadOptions
    estimates: Mapping[tuple[int, str], tuple[MemoryEstimate, MemoryEstimate]]  # of `_SAMPLES`
    reads: StepReads

    def sequences(self, memory: int, context: int, kv_dtype: str) -> int:
        """Returns how many sequences of this length fit into so many free bytes."""
        first, second = self.estimates[context, kv_dtype]
        allowed = int(memory * self.options.memory_utilization)

        def spare(count: int) -> int:
            growth = (_taken(second) - _taken(first)) / (_SAMPLES[1] - _SAMPLES[0])
            left = allowed - _taken(first) - round(growth * (count - _SAMPLES[0]))
            left -= first.slot_bytes * self.options.snapshots_within(left, first.slot_bytes)
            return left - count * first.kv_sequence

        return most_sequences(spare, MOST)


def _taken(estimate: MemoryEstimate) -> int:
    return estimate.allowed - estimate.left_for_kv


def plan_shape(name: str, shape: ModelShape, folder: Path) -> ModelPlan:
    """Writes a file of the shape into a folder, and plans it."""
    path = folder / f"{name}.gguf"
    write_header(path, shape)
    usual = load_options(Settings(), shape.context, causal=True)
    options = replace(usual, least_context=None, device_experts=1.0, kv_dtype=_FIRST)
    with open_checkpoint(path) as checkpoint:
        return ModelPlan(
            path=path,
            shape=shape,
            options=options,
            estimates=dict(_estimates(checkpoint, replace(options, state_snapshots=0))),
            reads=plan_reads(checkpoint, options),
        )


def _estimates(
    checkpoint: Checkpoint, options: LoadOptions
) -> Iterator[tuple[tuple[int, str], tuple[MemoryEstimate, MemoryEstimate]]]:
    backend = create()
    for context in CONTEXTS:
        first, second = (
            backend.estimate(
                checkpoint, replace(options, max_context=context, max_sequences=count), _GIB
            )
            for count in _SAMPLES
        )
        yield (context, _FIRST), (first, second)
        one = replace(options, max_context=context, max_sequences=_SAMPLES[0])
        for kind in _SMALLER:
            try:
                small = backend.estimate(checkpoint, replace(one, kv_dtype=kind), _GIB)
            except ConfigurationError:
                continue  # not of such heads
            # The type changes the size of blocks alone.
            blocks = replace(
                second, kv_block=small.kv_block, kv_windows=small.kv_windows, kv_step=small.kv_step
            )
            yield (context, kind), (small, blocks)


def _parts(models: list[ModelPlan]) -> Iterator[str]:
    yield _HEAD
    rows = [
        (
            code(plan.path.stem),
            plan.shape.quantisation,
            f"{plan.estimates[CONTEXTS[0], _FIRST][0].weights / 1e9:.1f}",
        )
        for plan in models
    ]
    yield f"{table(('model', 'file', 'weights, GB'), rows)}\n"
    for context in CONTEXTS:
        cells = [[_cell(plan, card, context) for card in CARDS] for plan in models]
        yield f"## Sequences of {context:,} tokens\n\n{_by_card(models, cells)}\n"
    cells = [[_speed(plan, card) for card in CARDS] for plan in models]
    yield f"{_SPEED}\n{_by_card(models, cells)}\n"
    yield "This page is made of the code by `just reference`.\n"


def _by_card(models: list[ModelPlan], cells: list[list[str]]) -> str:
    titles = ["model", *(f"{card.memory} GiB: {card.name}" for card in CARDS)]
    return table(titles, ([code(p.path.stem), *row] for p, row in zip(models, cells, strict=True)))


def _cell(plan: ModelPlan, card: Card, context: int) -> str:
    counts = {
        kind: plan.sequences(card.memory * _GIB, context, kind)
        for kind in (_FIRST, *_SMALLER)
        if (context, kind) in plan.estimates
    }
    if not any(counts.values()):
        return _NONE
    said = {kind: f"{MOST}+" if n == MOST else str(n) if n else _NONE for kind, n in counts.items()}
    return " / ".join(said.get(kind, _NO_KERNELS) for kind in (_FIRST, *_SMALLER))


def _speed(plan: ModelPlan, card: Card) -> str:
    count = plan.sequences(card.memory * _GIB, CONTEXTS[0], _FIRST)
    if not count:
        return _NONE
    return f"{_rate(plan, card, 1):,.0f} / {_rate(plan, card, count):,.0f}"


def _rate(plan: ModelPlan, card: Card, sequences: int) -> float:
    """Returns the tokens a second that so many sequences are predicted to get together."""
    bytes_read = plan.reads.of_decode(sequences, CONTEXTS[0])
    launches = _LAYER_LAUNCHES * (1 + plan.shape.layers)
    return sequences / card.seconds(bytes_read, launches, _RAMP_S)
