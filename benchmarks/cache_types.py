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
    scale = np.abs(rows).max(-1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    result: Rows = np.rint(rows / scale) * scale
    return result


def fp8(rows: Rows) -> Rows:
    """Rounds to E4M3 of OCP's 8-bit floats, without a scale."""
    limited = np.clip(rows, -448, 448)
    exponent = np.floor(np.log2(np.maximum(np.abs(limited), 2.0**-6)))
    unit = np.exp2(exponent - 3).astype(np.float32)
    result: Rows = np.rint(limited / unit) * unit
    return result


def q4(rows: Rows) -> Rows:
    """Rounds blocks of elements to 4 bits, with a scale and a least element in halves."""
    blocks = rows.reshape(*rows.shape[:-1], -1, _Q4_BLOCK)
    least = f16(blocks.min(-1, keepdims=True))
    scale = f16((blocks.max(-1, keepdims=True) - least) / np.float32(15))
    scale[scale == 0] = 1
    codes = np.clip(np.rint((blocks - least) / scale), 0, 15)
    result: Rows = (codes * scale + least).reshape(rows.shape)
    return result


TYPES: dict[str, tuple[Rounding, Rounding]] = {
    "f32": (unrounded, unrounded),
    "f16": (f16, f16),
    "int8": (int8, int8),
    "fp8": (fp8, fp8),
    "q4": (q4, q4),
    "keys int8, values q4": (int8, q4),
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
            f"{name:20} perplexity {np.exp(-logprobs.mean()):8.3f}  same most probable {same:7.2%}"
            f"  KL {divergence:.4f} nats"
            f"  log-probability off by {np.abs(logprobs - base[0]).mean():.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
