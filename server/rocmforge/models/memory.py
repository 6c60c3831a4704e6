"""Bytes that a model needs: of its weights, of its KV cache and of its states."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.config import ModelConfig


def stored_weight_bytes(weights: Mapping[str, Tensor]) -> int:
    """Returns the bytes of all tensors as the file stores them."""
    return sum(tensor.nbytes for tensor in weights.values())


def float32_weight_bytes(weights: Mapping[str, Tensor]) -> int:
    """Returns the bytes of all tensors once they are float32."""
    return 4 * sum(prod(tensor.shape) for tensor in weights.values())


def kv_bytes_per_token(config: ModelConfig, element_bytes: int) -> int:
    """Returns the bytes of keys and values that one token occupies in the caches of all layers."""
    return element_bytes * sum(layer.cached_features for layer in config.layers)


def state_bytes(config: ModelConfig) -> int:
    """Returns the bytes of the states that all layers remember of one sequence."""
    return 4 * sum(prod(shape) for layer in config.layers for shape in layer.state_shapes)
