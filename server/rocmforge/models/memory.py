"""Bytes that a model needs: of its weights, of its KV cache and of its states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from rocmforge.checkpoint.cache_types import CACHE_TYPES, KvDtype
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.config import ModelConfig


def stored_weight_bytes(weights: Mapping[str, Tensor]) -> int:
    """Returns the bytes of all tensors as the file stores them."""
    return sum(tensor.nbytes for tensor in _once(weights))


def float32_weight_bytes(weights: Mapping[str, Tensor]) -> int:
    """Returns the bytes of all tensors once they are float32."""
    return 4 * sum(prod(tensor.shape) for tensor in _once(weights))


def _once(weights: Mapping[str, Tensor]) -> Iterable[Tensor]:
    """Returns the tensors, of which one may be two weights."""
    return {id(tensor): tensor for tensor in weights.values()}.values()


def kv_bytes_per_token(config: ModelConfig, kv_dtype: KvDtype) -> int:
    """Returns the bytes that one token occupies in the cache.

    They are keys and values of all layers, and a hidden state if the model has a predictor.
    """
    stored = CACHE_TYPES[kv_dtype]
    size = stored.hidden_bytes * config.predictor_size
    for layer in config.layers:
        value_dim = 0 if layer.latent else layer.value_dim
        size += layer.num_kv_heads * stored.head_bytes(layer.key_dim, value_dim)
    return size


def state_bytes(config: ModelConfig) -> int:
    """Returns the bytes of the states that all layers remember of one sequence."""
    return 4 * sum(prod(shape) for layer in config.layers for shape in layer.state_shapes)
