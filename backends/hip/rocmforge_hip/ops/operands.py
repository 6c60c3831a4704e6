"""The array of one form of a weight or an activation, as launches take it; there must be one."""

from __future__ import annotations

from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.weights.formats import MatrixPart, Vector, Weight


def part_of(weight: Weight | None) -> MatrixPart:
    """Returns the weight as a part of a matrix."""
    assert isinstance(weight, MatrixPart), "a matrix is needed here"
    return weight


def vector_of(weight: Weight, length: int) -> DeviceArray:
    """Returns the weight as a vector of this length."""
    assert isinstance(weight, Vector), "a vector is needed here"
    assert weight.data.shape == (length,), (weight.data.shape, length)
    return weight.data


def optional_vector(weight: Weight | None, length: int) -> DeviceArray | None:
    """Returns the weight as a vector of this length, or None, which is a null pointer."""
    return None if weight is None else vector_of(weight, length)


def f32_of(x: Activation) -> DeviceArray:
    """Returns the float32 form, which there must be."""
    assert x.f32 is not None, "the activation has no float32 form here"
    return x.f32


def f16_of(x: Activation) -> DeviceArray:
    """Returns the float16 form, which there must be."""
    assert x.f16 is not None, "the activation has no float16 form here"
    return x.f16


def i32_of(x: Activation) -> DeviceArray:
    """Returns the int32 form, which there must be."""
    assert x.i32 is not None, "the activation has no int32 form"
    return x.i32


def empty(arrays: Forms[DeviceArray], rows: int, features: int, *, half: bool) -> Activation:
    """Returns an activation that is to be written to these arrays, in one form."""
    if half:
        return Activation(arrays, rows, features, f16=arrays.float16(rows, features))
    return Activation(arrays, rows, features, f32=arrays.float32(rows, features))
