"""Predicts how fast a model decodes on cards that were not measured.

    HIP_PLATFORM=nvidia python -m benchmarks.estimate MODEL.gguf

A step at batch 1 reads each byte once and starts kernels one after the other:

    time = bytes / (COPY_SHARE * bandwidth) + launches * (node + ramp)

Bytes and launches are the model's. A node of a graph costs what owners of cards have measured. The
ramp is what a kernel loses while its first bytes are on their way and its last ones are waited for:
it comes from the step measured here, and is taken to be the same elsewhere. What keeps a kernel
below the speed of copies in its middle is in the ramp, too, so that it is too long where kernels
are: the estimate is meant for the order of magnitude, and for what fewer launches bring.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, NamedTuple

from benchmarks.cards import CARDS, COPY_SHARE
from benchmarks.gpu_check import load_runner
from tests.backend.driving import Chunk, make_step

_DEPTH: Final = 128
_CONTEXT: Final = 16384
"""A cache that is large enough for copies to be measured in."""
_STEPS: Final = 40


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--node-us", type=float, default=0.55, help="of a graph's node here")
    parser.add_argument("--variants", default="plain,fused", help="of --decode-variant")
    options = parser.parse_args()
    for variant in options.variants.split(","):
        launches = _measure(options.model, variant, "off").launches
        here = _measure(options.model, variant, "on")
        reading = here.bytes_read / here.copy_bandwidth
        ramp = (here.seconds - reading) / launches - options.node_us / 1e6
        print(
            f"{variant}: {here.bytes_read / 1e9:.2f} GB, {launches} launches, "
            f"{here.seconds * 1e3:.3f} ms here: a ramp of {ramp * 1e6:.2f} us"
        )
        for card in CARDS:
            reading = here.bytes_read / (COPY_SHARE * card.bandwidth)
            step = card.seconds(here.bytes_read, launches, ramp)
            print(
                f"  {card.name}: {1 / step:,.0f} tokens/s; {reading * 1e3:.2f} ms of reading, "
                f"{(step - reading) * 1e3:.2f} ms of launches"
            )


class _Measured(NamedTuple):
    bytes_read: int
    launches: int
    seconds: float
    copy_bandwidth: float


def _measure(model: Path, variant: Any, graphs: Literal["on", "off"]) -> _Measured:
    """Returns what a step of one sequence takes, the median of a few."""
    with closing(load_runner(model, 1, _CONTEXT, decode_variant=variant, graphs=graphs)) as runner:
        size = runner.info.block_size
        blocks = range(-(-(_DEPTH + _STEPS) // size))
        runner.submit(make_step(0, [Chunk(tokens=[7] * _DEPTH, blocks=blocks)], size))
        runner.collect()
        outputs = []
        for number in range(_STEPS):
            chunk = Chunk(tokens=[number], start=_DEPTH + number, blocks=blocks)
            runner.submit(make_step(number + 1, [chunk], size))
            outputs.append(runner.collect())
        cost = outputs[-1].cost
        assert cost is not None
        seconds = median(output.device_ns for output in outputs) / 1e9
        return _Measured(cost.bytes_read, cost.launches, seconds, runner.info.copy_bandwidth)


if __name__ == "__main__":
    main()
