"""What llama.cpp computes in another way, for comparisons with it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from rocmforge.models.config import ActivationFunction
from rocmforge_reference.ops import activate


def always_tanh(x: npt.NDArray[Any], activation: ActivationFunction) -> npt.NDArray[Any]:
    """Takes the tanh form of every GELU, as its towers do."""
    exact = activation is ActivationFunction.GELU
    return activate(x, ActivationFunction.GELU_TANH if exact else activation)
