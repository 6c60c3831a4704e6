"""Operations on rounded numbers: tells what a device loses that computes with fewer bits."""

from __future__ import annotations

from typing import Final

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.checkpoint.cache_types import SCALED_CACHES
from rocmforge.models.blocks import Experts
from rocmforge.models.config import ActivationFunction
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge_reference.model_ops import ReferenceOps, Step
from rocmforge_reference.weights import Weight

_GROUP: Final = 32  # elements of an activation with one scale, as in a quant block
_LARGEST_HALF: Final = np.float32(65504)
_LARGEST_INT8: Final = np.float32(127)
_LARGEST_INT4: Final = np.float32(7)


def to_half(x: Float32Array) -> Float32Array:
    """Rounds each element to float16; what is too large becomes the largest."""
    return np.clip(x, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16).astype(np.float32)


def to_int8(x: Float32Array, group: int, most: np.float32 = _LARGEST_INT8) -> Float32Array:
    """Rounds each element to a multiple of its group's largest one divided by `most`.

    Args:
        x: [..., features].
        group: features with one scale; if they cannot be divided so, all have one.
        most: The largest magnitude that is stored, 127 of a byte.
    """
    size = group if x.shape[-1] % group == 0 else x.shape[-1]
    # Their number is said, as nothing could be concluded from no rows at all.
    parts = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    scales = np.abs(parts).max(axis=-1, keepdims=True) / most
    scales = np.where(scales > 0, scales, np.float32(1))
    rounded: Float32Array = (np.rint(parts / scales) * scales).reshape(x.shape)
    return rounded


def turned(x: Float32Array) -> Float32Array:
    """Multiplies each 32 features with a Hadamard matrix, which does the same and back.

    Args:
        x: [..., features].
    """
    number = np.arange(_GROUP)
    odd = np.bitwise_count(number[:, None] & number) % 2
    matrix = (1 - 2 * odd.astype(np.float32)) / np.sqrt(np.float32(_GROUP))
    parts = x.reshape(*x.shape[:-1], x.shape[-1] // _GROUP, _GROUP)
    result: Float32Array = (parts @ matrix).reshape(x.shape)
    return result


class RoundingOps(ReferenceOps):
    """`ReferenceOps` that rounds what is multiplied, the products to halves, and keys and values.

    It is no copy of any device, which rounds in other places too and adds in another order: it
    tells how much such rounding matters to a model.

    Attributes:
        kv_dtype: "f32", "f16", "int8" or "k8v4": keys in int8 and values in four bits.
        activation_bits: 32, 16 or 8.
    """

    kv_dtype = "f32"
    activation_bits = 32

    def linear(
        self, step: Step, x: Float32Array, weight: Weight, bias: Weight | None
    ) -> Float32Array:
        y = super().linear(step, self._activation(x), weight, bias)
        return y if self.activation_bits == 32 else to_half(y)

    def logits(self, x: Float32Array, weight: Weight, softcap: float | None) -> Float32Array:
        return super().logits(self._activation(x), weight, softcap)

    def experts(
        self,
        x: Float32Array,
        chosen: Float32Array,
        weights: Float32Array,
        experts: Experts[Weight],
        activation: ActivationFunction,
    ) -> Float32Array:
        return super().experts(self._activation(x), chosen, weights, experts, activation)

    def stored_keys(self, k: Float32Array) -> Float32Array:
        if self.kv_dtype in SCALED_CACHES:
            return to_int8(k, k.shape[-1])
        return to_half(k) if self.kv_dtype == "f16" else k

    def stored_values(self, v: Float32Array) -> Float32Array:
        if self.kv_dtype == "k8v4":
            return turned(to_int8(turned(v), v.shape[-1], _LARGEST_INT4))
        return self.stored_keys(v)

    def rotate_queries(
        self, step: Step, q: Float32Array, q_norm: Weight | None, spec: AttentionSpec
    ) -> Float32Array:
        rotated = super().rotate_queries(step, q, q_norm, spec)
        return rotated if self.activation_bits == 32 else to_half(rotated)

    def _activation(self, x: Float32Array) -> Float32Array:
        if self.activation_bits == 8:
            return to_int8(x, _GROUP)
        return to_half(x) if self.activation_bits == 16 else x
