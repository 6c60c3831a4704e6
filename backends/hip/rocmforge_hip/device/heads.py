"""The sizes of heads that there are attention kernels for. Each is declared here, once.

Launches choose their kernels by them, and the build of the kernels makes a translation unit for
each. So this module needs nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class HeadSize:
    """Elements of a head, as kernels are compiled for them.

    Attributes:
        key_dim: Of queries and keys.
        value_dim: Of values and results.
        groups: Over a cache: how many heads of queries a block of decode attention may have, in
            ascending order. They are what registers suffice for.
        values_in_keys: Values are the last elements of keys, and the cache has keys only.
    """

    key_dim: int
    value_dim: int
    groups: tuple[int, ...] = ()
    values_in_keys: bool = False

    def __str__(self) -> str:
        """Returns the name as people know it."""
        return str(self.key_dim) if self.is_even else f"{self.key_dim}/{self.value_dim}"

    @property
    def is_even(self) -> bool:
        """Whether values have as many elements as keys."""
        return self.key_dim == self.value_dim

    @property
    def is_common(self) -> bool:
        """Whether most models have it, so that there are kernels of every kind.

        Others have neither those for values of four bits (k8v4), nor those that read once what
        sequences share at their fronts, from caches of any type but k8v4.
        """
        return self.is_even and self.key_dim in (64, 128)

    @property
    def has_w8(self) -> bool:
        """Whether there are kernels for decodes with eight waves in a block, for some GPUs."""
        return self.is_even and self.key_dim in (64, 128, 256)

    @property
    def name(self) -> str:
        """The name that kernels have: d64, d192v128."""
        return f"d{self.key_dim}" if self.is_even else f"d{self.key_dim}v{self.value_dim}"

    def group(self, heads: int) -> int:
        """Returns the best of `groups` for so many heads of queries that share keys and values."""
        return next((group for group in self.groups if heads <= group), self.groups[-1])


CACHED_HEADS: Final = (
    HeadSize(64, 64, (4, 8)),
    HeadSize(80, 80, (4, 8)),
    HeadSize(96, 96, (4, 8)),
    HeadSize(128, 128, (4, 8)),
    HeadSize(192, 128, (4,)),  # DeepSeek's latent attention, unfolded
    HeadSize(256, 256, (4, 8)),
    HeadSize(512, 512, (4,)),  # Gemma 4, layers without a window
    HeadSize(576, 512, (4,), values_in_keys=True),  # DeepSeek's latent attention as it is cached
)
"""Of attention over the cache."""

FULL_HEADS: Final = tuple(HeadSize(size, size) for size in (32, 64, 80, 128, 256))
"""Of attention to all of a prompt, in an encoder; 80 for SigLIP's of 72 (`weights.fitting`)."""
