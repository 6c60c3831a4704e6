"""What smaller types of the KV cache cost: `python -m benchmarks.cache_types MODEL.gguf smollm2`.

The reference backend computes a text of the oracle (tests/data/models/oracle) while keys and values
are rounded as each type would store them, and is compared with itself without rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from rocmforge_reference import ops
from tests.backend.driving import Chunk, Want
from tests.e2e.oracle.model_oracle import BLOCKS, oracle, running

_MOST_TOKENS = 400
_CANDIDATES = 20  # tokens of the unrounded distribution that the divergence is computed from
_Q4_BLOCK = 32

Rows = npt.NDArray[np.float32]  # [..., head_dim]
Rounding = Callable[[Rows], Rows]


def unrounded(rows: Rows) -> Rows:
    """Returns them as they are."""
    return rows


def f16(rows: Rows) -> Rows:
    """Rounds to halves."""
    return rows.astype(np.float16).astype(np.float32)


def int8(rows: Rows) -> Rows:
    """Rounds to bytes with a scale for each row."""
    scale = _scale(rows, 127)
    result: Rows = np.rint(rows / scale) * scale
    return result


def fp8(rows: Rows) -> Rows:
    """Rounds to E4M3 of OCP's 8-bit floats, without a scale."""
    limited = np.clip(rows, -448, 448)
    exponent = np.floor(np.log2(np.maximum(np.abs(limited), 2.0**-6)))
    unit = np.exp2(exponent - 3).astype(np.float32)
    result: Rows = np.rint(limited / unit) * unit
    return result


def scaled_fp8(rows: Rows) -> Rows:
    """Rounds to E4M3 with a scale for each row, whose largest element becomes the largest there."""
    scale = _scale(rows, 448)
    result: Rows = fp8(rows / scale) * scale
    return result


def int4(rows: Rows) -> Rows:
    """Rounds to -7 ... 7 with a scale for each row."""
    scale = _scale(rows, 7)
    result: Rows = np.rint(rows / scale) * scale
    return result


def q4_0(rows: Rows) -> Rows:
    """Rounds blocks of elements to -8 ... 7 with a scale in halves, as llama.cpp's type does."""
    blocks = _blocks(rows)
    at = np.abs(blocks).argmax(-1, keepdims=True)
    scale = np.take_along_axis(blocks, at, -1) / np.float32(-8)
    scale[scale == 0] = 1
    codes = np.clip(np.rint(blocks / scale), -8, 7)
    result: Rows = (codes * f16(scale)).reshape(rows.shape)
    return result


def q4_1(rows: Rows) -> Rows:
    """Rounds blocks of elements to 4 bits, with a scale and a least element in halves."""
    blocks = _blocks(rows)
    least = f16(blocks.min(-1, keepdims=True))
    scale = f16((blocks.max(-1, keepdims=True) - least) / np.float32(15))
    scale[scale == 0] = 1
    codes = np.clip(np.rint((blocks - least) / scale), 0, 15)
    result: Rows = (codes * scale + least).reshape(rows.shape)
    return result


def _scale(rows: Rows, largest: int) -> Rows:
    """Returns what each row is divided by for its largest element to become that, [..., 1]."""
    scale: Rows = np.abs(rows).max(-1, keepdims=True) / np.float32(largest)
    scale[scale == 0] = 1
    return scale


def _blocks(rows: Rows) -> Rows:
    return rows.reshape(*rows.shape[:-1], -1, _Q4_BLOCK)


def turned(rounding: Rounding, size: int | None = None) -> Rounding:
    """Returns a rounding of rows that a Hadamard matrix has turned, so that no element stands out.

    Turned in the same way, queries have the same products with keys; what attention adds up of
    values is turned back.

    Args:
        rounding: Of what is turned.
        size: Of the parts of a row that are turned, a power of two; None for all of it.
    """

    def turn(rows: Rows) -> Rows:
        matrix = np.ones((1, 1), np.float32)
        while len(matrix) < (size or rows.shape[-1]):
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        matrix /= np.sqrt(np.float32(len(matrix)))

        def both_ways(x: Rows) -> Rows:
            product: Rows = (x.reshape(*x.shape[:-1], -1, len(matrix)) @ matrix).reshape(x.shape)
            return product

        return both_ways(rounding(both_ways(rows)))

    return turn


TYPES: dict[str, tuple[Rounding, Rounding]] = {
    "f32": (unrounded, unrounded),
    "f16": (f16, f16),
    "int8": (int8, int8),
    "fp8": (fp8, fp8),
    "fp8, scaled": (scaled_fp8, scaled_fp8),
    "q4_0": (q4_0, q4_0),
    "q4_1": (q4_1, q4_1),
    "q4_0, turned": (turned(q4_0), turned(q4_0)),
    "q4_1, turned": (turned(q4_1), turned(q4_1)),
    "int4, turned": (turned(int4), turned(int4)),
    "keys int4, turned, values int8": (turned(int4), int8),
    "keys int8, values q4_0": (int8, q4_0),
    "keys int8, values q4_1": (int8, q4_1),
    "keys int8, values int4": (int8, int4),
    "k8v4": (int8, turned(int4, 32)),
}


@contextmanager
def rounded(roundings: tuple[Rounding, Rounding]) -> Iterator[None]:
    """Has the reference backend store keys and values, in turn, through these."""
    store, calls = ops.store, 0

    def rounding_store(cache: Rows, values: Rows, slots: npt.NDArray[np.int64]) -> None:
        nonlocal calls
        store(cache, roundings[calls % 2](values), slots)
        calls += 1

    with patch.object(ops, "store", rounding_store):
        yield


def main() -> None:
    """Prints a line for each type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("oracle", help="whose text is computed: smollm2, gemma3")
    options = parser.parse_args()
    known = oracle(options.oracle)
    texts = [each["prompt_ids"] + each["ids"] for each in known["continuations"].values()]
    ids = known["perplexity"]["ids"] if "perplexity" in known else max(texts, key=len)
    ids = ids[:_MOST_TOKENS]
    wants = [
        Want(token=row, num_logprobs=_CANDIDATES, target=target)
        for row, target in enumerate(ids[1:])
    ]
    base: tuple[npt.NDArray[np.float32], list[dict[int, float]]] | None = None
    for name, roundings in TYPES.items():
        with rounded(roundings), running(options.model) as driver:
            output = driver.run(Chunk(tokens=ids, blocks=BLOCKS, wants=wants))
        assert output.logprobs is not None
        assert output.top_ids is not None
        assert output.top_logprobs is not None
        logprobs = output.logprobs[: len(wants)].copy()
        found = [
            dict(zip(row_ids, row, strict=True))
            for row_ids, row in zip(
                output.top_ids.tolist(), output.top_logprobs.tolist(), strict=True
            )
        ]
        base = base or (logprobs, found)
        same = np.mean(
            [next(iter(a)) == next(iter(b)) for a, b in zip(found, base[1], strict=True)]
        )
        divergence = np.mean(
            [
                sum(np.exp(p) * (p - own.get(token, min(own.values()))) for token, p in row.items())
                for own, row in zip(found, base[1], strict=True)
            ]
        )
        print(
            f"{name:30} perplexity {np.exp(-logprobs.mean()):8.3f}  same most probable {same:7.2%}"
            f"  KL {divergence:.4f} nats"
            f"  log-probability off by {np.abs(logprobs - base[0]).mean():.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
