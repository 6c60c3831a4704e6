"""Values of settings that backends take as they are. Each is declared here, once."""

from __future__ import annotations

from typing import Literal

Switch = Literal["auto", "on", "off"]
"""Whether something is done; auto: where it pays, or works."""
ActivationBits = Literal["auto", "8", "16"]
"""Bits that are kept of activations where they meet quantised weights."""
DecodeVariant = Literal["auto", "plain", "fused", "rounded", "fewest", "deferred", "deferred-plain"]
"""Kernels of decode steps, where there is a choice; auto: what is measured to be faster."""
