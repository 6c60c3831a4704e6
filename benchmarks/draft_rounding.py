"""How far a step that checks draft tokens is from steps that decode them.

    HIP_PLATFORM=nvidia python -m benchmarks.draft_rounding MODEL.gguf --activation-bits 8 16

Random tokens are put behind random prompts and computed in three ways: decoded as so many streams,
checked as drafts of eight tokens each, and decoded beside so many other streams that a step has as
many rows as one that checks. What differs between the last two is no rounding of products.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from rocmforge.backend import registry
from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.protocol import LoadOptions
from rocmforge.choices import ActivationBits
from tests.backend.driving import Driver
from tests.support.engine.forced import Forcing, Rows
from tests.support.models.loading import load_file

PROMPT_TOKENS = 16
TOP = 20
"""Most probable tokens that are compared."""


def main() -> None:
    """Prints a table for each precision of activations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", default="hip")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--drafts", type=int, default=7, help="draft tokens of a step")
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument(
        "--activation-bits", nargs="+", choices=get_args(ActivationBits), default=["8"]
    )
    parser.add_argument("--decode-variant", choices=("plain", "fused", "fewest"), default="plain")
    arguments = parser.parse_args()
    for bits in arguments.activation_bits:
        compare(arguments, bits)


def compare(arguments: argparse.Namespace, bits: str) -> None:
    """Prints what the ways differ in."""
    rows = arguments.streams * (1 + arguments.drafts)
    options = LoadOptions(
        device=None,
        max_context=PROMPT_TOKENS + arguments.tokens,
        max_sequences=rows,
        max_batched_tokens=max(256, arguments.streams * PROMPT_TOKENS, rows),
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.6,
        activation_bits=bits,  # type: ignore[arg-type]
        decode_variant=arguments.decode_variant,
        draft_tokens=arguments.drafts,
    )
    with closing(load_file(registry.create(arguments.backend), arguments.model, options)) as runner:
        driver = Driver(runner)
        rng = np.random.default_rng(0)
        vocab = runner.info.vocab_size

        def random(count: int) -> Int32Array:
            return rng.integers(0, vocab, (arguments.streams, count), np.int32)

        prompts, tokens = random(PROMPT_TOKENS).tolist(), random(arguments.tokens)

        def forcing(number: int = 0) -> Forcing:
            return Forcing(driver, prompts, tokens, first=number * arguments.streams, top=TOP)

        few = forcing().decoded()
        checked = forcing().checked(1 + arguments.drafts)
        others = [forcing(number) for number in range(1, 1 + arguments.drafts)]
        many = forcing().decoded(*others)
    streams = arguments.streams
    print(f"activations of {bits} bits, {few.leads.size} places; the first token leads by")
    print("   ", _shares(few.leads))
    _print(f"{streams} decoded, {streams} x {1 + arguments.drafts} checked", few, checked)
    _print(f"{streams} decoded, {rows} decoded", few, many)
    _print(f"{rows} decoded, {streams} x {1 + arguments.drafts} checked", many, checked)


def _print(title: str, ours: Rows, theirs: Rows) -> None:
    differences = ours.differences(theirs)
    # Whether both are among the others' first.
    found: npt.NDArray[np.bool_] = np.asarray(np.isfinite(differences).all(axis=-1))
    differences = np.where(found[..., None], differences, 0)
    same = ours.same(theirs)
    change = differences[..., 1] - differences[..., 0]  # of the lead
    beyond = found & ~same & (ours.leads > np.abs(change))
    whole = ours.differences(theirs, 10)
    whole = whole[np.isfinite(whole).all(axis=-1)]
    spread = whole - whole.mean(axis=-1, keepdims=True)
    equal = (ours.logprobs == theirs.logprobs).all() and (ours.ids == theirs.ids).all()
    print(f"  {title}: {'all bits are equal' if equal else 'bits differ'}")
    print(
        f"    another first token at {(~same).sum()} places, {beyond.sum()} of them led by more; "
        f"not among the first {TOP} at {(~found).sum()}"
    )
    print(
        f"    log-probabilities differ by {np.sqrt((differences**2).mean()):.2g} (rms), "
        f"{np.abs(differences).max():.2g} at most; divergence about {(spread**2).mean() / 2:.2g}"
    )
    if (~same).any():
        print(f"    leads there: {_shares(ours.leads[~same])}; their change: ", end="")
        print(_shares(np.abs(change[~same])))
        for stream in range(len(same)):
            places = np.flatnonzero(~same[stream])
            if len(places):
                at = stream, places[0]
                print(
                    f"      stream {stream}: first at {places[0]}, "
                    f"led by {ours.leads[at]:.5f}, which changed by {change[at]:+.5f}"
                )


def _shares(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    low, middle, high, most = np.quantile(values, (0.05, 0.5, 0.95, 1))
    return f"{low:.4f} / {middle:.4f} / {high:.4f} / {most:.4f} (5%, 50%, 95%, most)"


if __name__ == "__main__":
    main()
