"""The sizes of models that there are kernels for."""

from __future__ import annotations

from collections.abc import Sequence

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.models.config import ModelConfig
from rocmforge.models.encoder_config import EncoderConfig
from rocmforge_hip.ops.rows import MAX_NORM_DIM


def check_sizes(config: ModelConfig | EncoderConfig, head_dims: Sequence[int]) -> None:
    """Refuses a model that no kernel fits.

    Args:
        config: The model.
        head_dims: Elements of a head that its kind of attention can have.

    Raises:
        UnsupportedArchitecture: Names the size, and those that there are.
    """
    if config.head_dim not in head_dims:
        sizes = ", ".join(map(str, head_dims))
        raise UnsupportedArchitecture(
            f"{config.architecture} with heads of {config.head_dim} elements",
            (f"heads of {sizes} elements",),
        )
    if config.hidden_size > MAX_NORM_DIM:
        raise UnsupportedArchitecture(
            f"{config.architecture} with a hidden size of {config.hidden_size}",
            (f"up to {MAX_NORM_DIM}",),
        )
