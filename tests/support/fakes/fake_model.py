"""What the model of the fake backend says: hashes of contexts, which tests can compute too."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array, UInt64Array
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.engine.ipc.prompt import EmbeddingSpan, Prompt

HIDDEN_SIZE = 6
_MULTIPLIER = np.uint64(6364136223846793005)
NO_TOKEN = 1 << 30  # and more: a row of embeddings
_WEIGHTS: UInt64Array = np.cumprod(np.full(1 << 16, _MULTIPLIER, np.uint64), dtype=np.uint64)


def mix(state: UInt64Array) -> UInt64Array:
    """The finaliser of SplitMix64: spreads every input bit over the output."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def context_sums(tokens: npt.NDArray[np.signedinteger]) -> UInt64Array:
    """Checksum of all tokens up to and with each place, [..., N] to [..., N]."""
    weighted = (tokens.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[: tokens.shape[-1]]
    return np.cumsum(weighted, axis=-1, dtype=np.uint64)


def contents(prompt: Prompt) -> list[int]:
    """What the cache holds of a prompt: its tokens, and numbers of its rows of embeddings."""
    found: list[int] = []
    for span in prompt.spans:
        found += numbers_of(span.values) if isinstance(span, EmbeddingSpan) else span.ids
    return found


def numbers_of(rows: Float32Array) -> list[int]:
    """A number for each row that is no token, [E]."""
    return [NO_TOKEN | crc32(row.tobytes()) & (NO_TOKEN - 1) for row in rows]


def adapter_seeds(adapters: Int32Array) -> UInt64Array:
    """What adapters add to the seeds; 0 for none."""
    return mix((adapters + 1).astype(np.uint64))


def logprob(state: UInt64Array, token: Int32Array) -> npt.NDArray[np.float32]:
    """A made-up log-probability of a token after a context; exact in float32."""
    mixed = mix(state + token.astype(np.uint64) * _MULTIPLIER)
    return -((mixed % np.uint64(4096)).astype(np.float32)) / np.float32(256)


def continuation(
    prompt: Sequence[int],
    count: int,
    *,
    vocab_size: int = 1000,
    seed: int = 0,
    forbidden: Sequence[int] = (),
    adapter: int = NO_ADAPTER,
) -> list[int]:
    """The `count` tokens that follow `prompt`. `seed` counts for temperature above 0 only.

    For a prompt with embeddings, `contents` says what to give.
    """
    seed ^= int(adapter_seeds(np.array([adapter], np.int32))[0])
    tokens = list(prompt)
    for _ in range(count):
        state = mix(context_sums(np.array(tokens, np.int32))[-1:]) ^ np.uint64(seed)
        token = int(mix(state)[0] % np.uint64(vocab_size))
        while token in forbidden:
            token = (token + 1) % vocab_size
        tokens.append(token)
    return tokens[len(prompt) :]


def hidden_states(tokens: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.float32]:
    """Made-up hidden states after each token of a context, [N, HIDDEN_SIZE]; whole numbers."""
    return hidden_of(mix(context_sums(tokens)))


def hidden_of(states: UInt64Array) -> npt.NDArray[np.float32]:
    shifts = np.arange(HIDDEN_SIZE, dtype=np.uint64) * np.uint64(8)
    return ((states[:, None] >> shifts) % np.uint64(256)).astype(np.float32) - np.float32(128)


def prompt_logprobs(prompt: Sequence[int]) -> list[float]:
    """Log-probabilities of prompt tokens 1 and following."""
    tokens = np.array(prompt, np.int32)
    return [float(x) for x in logprob(mix(context_sums(tokens[:-1])), tokens[1:])]
