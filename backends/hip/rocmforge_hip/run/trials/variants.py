"""Which variant steps of decodes take: what is fastest on this device with this model.

At load, the loaded model runs the same steps in each variant, at a few sizes. Whether few launches
or short ones are faster cannot be told without the device: a node of a graph costs several times
as much on one as on another, and so does a fence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, product
from typing import Final

from rocmforge.backend.step import StepOutput
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.ops.geometry import MAX_GEMV_ROWS
from rocmforge_hip.ops.step.variants import VARIANTS
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.trials.graph_check import Agree
from rocmforge_hip.run.trials.steps import TURNS, TrialCase, TrialSteps, difference_of
from rocmforge_hip.run.variant_choice import StepVariants, VariantChoice

MOST_SECONDS: Final = 0.5
"""After which no further size is measured, but for the first sizes of `_cases`."""
_ROUNDS: Final = 3  # of all steps of a size in each variant
_ROUNDS_ALONE: Final = 7  # of one sequence, whose steps are short and matter most
# In this order, so that no wide gap is left where time ends early.
_SIZES: Final[tuple[int, ...]] = (1, 16, 8, 4, 64, 2, 32)
_LONG_BLOCKS: Final = 128
_LONGEST_BLOCKS: Final = 1024
_LEAST_CASES: Final = 3
"""One sequence, as many as no kernel leaves norms of for later, and as many as some do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVariants:
    """The result. `str()` is for people."""

    variants: StepVariants
    times: tuple[str, ...]
    seconds: float
    difference: str  # "" = all variants give the same

    def __str__(self) -> str:
        if self.difference:
            return f"plain, as results differ: {self.difference}"
        return f"{'; '.join(self.times)}; measured in {self.seconds:.1f} s"


def measure_variants(
    runner: HipRunner, limits: StepLimits, agree: Agree, progress: Callable[[float], None]
) -> MeasuredVariants:
    """Runs steps of several sizes in every variant, and takes the fastest for each.

    Takes at most `MOST_SECONDS` and a size or two. Results are compared, too: where variants
    differ, all steps are plain. What the steps leave in the cache is never read, as in
    `check_graphs`.

    Args:
        runner: Of a causal model; computes and has nothing in flight.
        limits: Of its steps.
        agree: Between the ranks, which all measure at the same time.
        progress: Is told the share that is done.

    Raises:
        EngineError: The device failed.
    """
    started = time.perf_counter()
    runner.has_teams = False  # the sequences of these steps stand for others that share nothing
    steps, choices, times, difference = TrialSteps(runner, limits), [], [], ""
    cases = list(_cases(steps))
    for number, case in enumerate(cases):
        progress(number / len(cases))
        runs = _run(runner, steps, case)
        outputs = list(runs.values())
        for other in outputs[1:]:
            found = map(difference_of, outputs[0], other)
            difference = difference or next(
                (f"{what} of {case} differ" for what in found if what), ""
            )
        # The shortest, as a step that the host is late with seems longer: short ones most of all.
        # In the first round, a device that had nothing to do may still be slow.
        took = {name: min(step.device_ns for step in run[TURNS:]) for name, run in runs.items()}
        best = min(took.values())
        *slower, differs, ends = agree(
            (
                *(ns > best for ns in took.values()),
                bool(difference),
                number + 1 >= _LEAST_CASES and time.perf_counter() - started > MOST_SECONDS,
            )
        )
        if differs:
            difference = difference or f"results of {case} differ on another device of the group"
            choices = [VariantChoice(1, 1, "plain")]
            break
        name = next(
            (n for n, is_slower in zip(took, slower, strict=True) if not is_slower), "plain"
        )
        choices.append(VariantChoice(case.sequences, case.blocks + 1, name))
        times.append(_describe(case, name, took))
        if ends:
            break
    runner.has_teams = True
    return MeasuredVariants(
        variants=StepVariants(tuple(choices)),
        times=tuple(times),
        seconds=time.perf_counter() - started,
        difference=difference,
    )


def _cases(steps: TrialSteps) -> list[TrialCase]:
    """Returns what is measured, in this order as far as there is time.

    Those of one and of many sequences differ most, and so do short contexts and the longest.
    """
    sizes = [size for size in _SIZES if size in steps.batch_sizes]
    lengths = list(dict.fromkeys(min(length, _LONG_BLOCKS) for length in steps.lengths))
    first, others = sizes[:_LEAST_CASES], sizes[_LEAST_CASES:]
    cases = [(size, length) for length in lengths for size in first]
    longest = min(max(steps.lengths), _LONGEST_BLOCKS)
    if longest > 2 * _LONG_BLOCKS:  # where few splits or none are merged, and then a great many
        cases.append((1, longest))
    return [
        TrialCase(size, length, "greedy", has_adapters=False, all_long=True)
        for size, length in (*cases, *product(others, lengths))
    ]


def _run(runner: HipRunner, steps: TrialSteps, case: TrialCase) -> dict[str, list[StepOutput]]:
    """Returns the results of the steps of each variant.

    The variants take turns, forward and backward, so that what else happens meets all, as do clocks
    that rise; two steps are in flight, as when serving, so that the time of a step is the device's
    alone.
    """
    # With more rows than GEMV takes, there is only the choice of the kernels of attention.
    names = [
        name
        for name, variant in VARIANTS.items()
        if case.sequences <= MAX_GEMV_ROWS
        or not (variant.norms_products or variant.rounds_products)
    ]
    outputs: dict[str, list[StepOutput]] = {name: [] for name in names}
    unused: list[StepOutput] = []
    waiting: list[list[StepOutput]] = []
    rounds = _ROUNDS_ALONE if case.sequences == 1 else _ROUNDS
    for name in chain.from_iterable(
        names if number % 2 == 0 else reversed(names) for number in range(rounds)
    ):
        runner.variants = StepVariants.always(name)
        planned = [(outputs[name], steps.step(case, turn)) for turn in range(TURNS)]
        if (beginning := steps.beginning(case)) is not None:
            planned.insert(0, (unused, beginning))
        for results, step in planned:
            runner.submit(step)
            if waiting:
                waiting.pop().append(runner.collect())
            waiting.append(results)
    waiting.pop().append(runner.collect())
    return outputs


def _describe(case: TrialCase, name: str, took: dict[str, int]) -> str:
    others = ", ".join(f"{other} {ns / 1e6:.3f}" for other, ns in took.items() if other != name)
    tokens = (case.blocks + 1) * BLOCK_TOKENS
    return f"{name} for {case.sequences} of {tokens} tokens ({took[name] / 1e6:.3f} ms, {others})"
