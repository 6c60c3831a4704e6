"""The types that a KV cache may have. Each is declared here, once.

Settings offer them, backends lay them out, and `inspect` says what a sequence takes of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

KvDtype = Literal["f32", "f16", "int8", "k8v4"]
"""Stored types of a KV cache; k8v4 has keys in int8 and values in four bits."""
_SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheType:
    """How the key and the value of a token are stored, in each head.

    Attributes:
        key_bits: Bits of an element of a key.
        value_bits: The same of a value.
        is_scaled: Each key and each value has a float32 that multiplies its elements.
    """

    key_bits: int
    value_bits: int
    is_scaled: bool = False

    @property
    def hidden_bytes(self) -> int:
        """Bytes of an element of a hidden state, which is never scaled."""
        return 2 if self.is_scaled else self.key_bits // 8

    def head_bytes(self, key_dim: int, value_dim: int) -> int:
        """Returns the bytes of a token in one head.

        Args:
            key_dim: elements of its key.
            value_dim: elements of its value; 0 = it has none, as where a latent vector is cached.
        """
        scales = _SCALE_BYTES * ((key_dim > 0) + (value_dim > 0)) if self.is_scaled else 0
        return (key_dim * self.key_bits + value_dim * self.value_bits) // 8 + scales


CACHE_TYPES: Final[Mapping[KvDtype, CacheType]] = MappingProxyType(
    {
        "f32": CacheType(key_bits=32, value_bits=32),
        "f16": CacheType(key_bits=16, value_bits=16),
        "int8": CacheType(key_bits=8, value_bits=8, is_scaled=True),
        "k8v4": CacheType(key_bits=8, value_bits=4, is_scaled=True),
    }
)
SCALED_CACHES: Final = frozenset(name for name, stored in CACHE_TYPES.items() if stored.is_scaled)
"""The types that round keys and values to integers."""
