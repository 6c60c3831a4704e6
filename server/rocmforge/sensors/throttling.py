"""Reasons for low clocks of a GPU, as its firmware tells them in `gpu_metrics`.

The file is a C structure with a version in front. Versions 1.3 and 2.2 to 2.4 say it in bits that
mean the same on every chip; in all others they mean what the chip's firmware likes, so they are
left alone. Sources: drivers/gpu/drm/amd/include/kgd_pp_interface.h (structures) and
drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h (bits) of Linux 6.12.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

_HEADER: Final = struct.Struct("<HBB")  # bytes of the structure, format, content
_STATUS: Final = struct.Struct("<Q")

_STATUS_OFFSET: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(1, 3): 112, (2, 2): 120, (2, 3): 120, (2, 4): 120}
)
"""By version: where `indep_throttle_status` stands."""


class Throttle(StrEnum):
    """The kinds of reasons; each has 16 bits of the status but for the last, which has eight."""

    POWER = "power"  # a limit of power: the cap, a slow or fast average
    CURRENT = "current"  # a limit of a rail's current
    TEMPERATURE = "temperature"  # of the chip, its memory or its regulators
    OTHER = "other"  # reliability, a limit of the whole machine


_BITS: Final[Mapping[Throttle, int]] = MappingProxyType(
    {
        Throttle.POWER: 0xFFFF,
        Throttle.CURRENT: 0xFFFF << 16,
        Throttle.TEMPERATURE: 0xFFFF << 32,
        Throttle.OTHER: 0xFF << 56,
    }
)


def decode(metrics: bytes) -> frozenset[Throttle] | None:
    """Returns what throttles a GPU now; None if this does not say.

    Args:
        metrics: the content of `gpu_metrics`.
    """
    if len(metrics) < _HEADER.size:
        return None
    size, form, content = _HEADER.unpack_from(metrics)
    offset = _STATUS_OFFSET.get((form, content))
    if offset is None or min(size, len(metrics)) < offset + _STATUS.size:
        return None
    (status,) = _STATUS.unpack_from(metrics, offset)
    if status == 2**64 - 1:  # what the driver fills fields with that the chip does not have
        return None
    return frozenset(reason for reason, bits in _BITS.items() if status & bits)
