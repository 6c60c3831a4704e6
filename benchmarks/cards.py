"""Cards as their data sheets have them, and how fast a step may be on them."""

from __future__ import annotations

from typing import Final, NamedTuple

COPY_SHARE: Final = 0.87
"""Of a card's bandwidth on paper that copies reach: of an H200's 4.8 TB/s."""


class Card(NamedTuple):
    """A card, and the time of a node of a HIP graph.

    Sources of the times: ROCm/rocm-systems#10834 for gfx1100. Nobody has published those of the
    others, which are taken to be the same.
    """

    name: str
    memory: int  # GiB
    bandwidth: float  # bytes a second
    node_s: float = 3.85e-6

    def seconds(self, bytes_read: int, launches: int, ramp_s: float) -> float:
        """Returns what a step takes at least that reads so much with so many kernels.

        Args:
            bytes_read: each byte once.
            launches: kernels, one after the other.
            ramp_s: what each loses beside its node, on its way to full speed and back.
        """
        return bytes_read / (COPY_SHARE * self.bandwidth) + launches * (self.node_s + ramp_s)


CARDS: Final = (
    Card("RX 9070 XT", 16, 645e9),
    Card("RX 7900 XT", 20, 800e9),
    Card("RX 7900 XTX", 24, 960e9),
    Card("AI PRO R9700", 32, 640e9),
    Card("PRO W7900", 48, 864e9),
    Card("MI210", 64, 1638e9),
    Card("Strix Halo", 96, 256e9),
    Card("MI300A", 128, 5300e9),
    Card("MI300X", 192, 5300e9),
)
"""By memory; that of Strix Halo is the largest carve-out of a machine with 128 GiB."""
