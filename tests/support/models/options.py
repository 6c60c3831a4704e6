"""Load options of tests. A test says what it needs to be otherwise: `replace(SMALL, ...)`."""

from __future__ import annotations

from typing import Final

from rocmforge.backend.protocol import LoadOptions

SMALL: Final = LoadOptions(
    device=None,
    max_context=128,
    max_sequences=4,
    max_batched_tokens=24,  # prompts are cut
    kv_blocks=16,
    kv_dtype="auto",
    memory_utilization=0.9,
)
