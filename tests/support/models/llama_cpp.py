"""What llama.cpp computes in another way, for comparisons with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.models.config import ActivationFunction
from rocmforge_reference.ops import activate


def activate_with_table(x: npt.NDArray[Any], activation: ActivationFunction) -> npt.NDArray[Any]:
    """Rounds arguments and results of GELU to halves where llama.cpp does: from -10 to 10.

    Its processor looks them up in a table (`ggml_vec_geglu_f32`), those of quick GELU everywhere.
    """
    if activation not in (ActivationFunction.GELU_TANH, ActivationFunction.QUICK_GELU):
        return activate(x, activation)
    rounded = activate(x.astype(np.float16).astype(x.dtype), activation)
    looked_up = rounded.astype(np.float16).astype(x.dtype)
    if activation is ActivationFunction.QUICK_GELU:
        return looked_up
    return np.where(np.abs(x) < 10, looked_up, np.maximum(x, 0))


def tanh_with_table(x: npt.NDArray[Any], activation: ActivationFunction) -> npt.NDArray[Any]:
    """The same, with the tanh form for every GELU, as its towers have it."""
    every = activation is ActivationFunction.GELU
    return activate_with_table(x, ActivationFunction.GELU_TANH if every else activation)
