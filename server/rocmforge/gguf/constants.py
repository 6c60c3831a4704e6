"""The numbers and names that GGUF files are made of, as the `gguf` package has them.

That package brings writers, vocabularies and a YAML parser along whenever a part of it is imported,
which every start of a server and of an engine would pay for. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

TYPE: Final = "general.type"
ARCHITECTURE: Final = "general.architecture"
ALIGNMENT: Final = "general.alignment"
SAMPLING_TEMP: Final = "general.sampling.temp"
SAMPLING_TOP_K: Final = "general.sampling.top_k"
SAMPLING_TOP_P: Final = "general.sampling.top_p"
SAMPLING_MIN_P: Final = "general.sampling.min_p"
SAMPLING_PENALTY_REPEAT: Final = "general.sampling.penalty_repeat"
SPLIT_NO: Final = "split.no"
SPLIT_COUNT: Final = "split.count"
SPLIT_TENSORS_COUNT: Final = "split.tensors.count"
ADAPTER_TYPE: Final = "adapter.type"
ADAPTER_LORA_ALPHA: Final = "adapter.lora.alpha"
"""Keys of metadata."""

MODEL: Final = "model"
ADAPTER: Final = "adapter"
"""Values of `TYPE`."""

DEFAULT_ALIGNMENT: Final = 32
"""Bytes of which the place of a tensor is a multiple, unless `ALIGNMENT` says otherwise."""


class ValueType(IntEnum):
    """The type of a value of metadata."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


TENSOR_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "f32",
        1: "f16",
        2: "q4_0",
        3: "q4_1",
        6: "q5_0",
        7: "q5_1",
        8: "q8_0",
        9: "q8_1",
        10: "q2_k",
        11: "q3_k",
        12: "q4_k",
        13: "q5_k",
        14: "q6_k",
        15: "q8_k",
        16: "iq2_xxs",
        17: "iq2_xs",
        18: "iq3_xxs",
        19: "iq1_s",
        20: "iq4_nl",
        21: "iq3_s",
        22: "iq2_s",
        23: "iq4_xs",
        24: "i8",
        25: "i16",
        26: "i32",
        27: "i64",
        28: "f64",
        29: "iq1_m",
        30: "bf16",
        34: "tq1_0",
        35: "tq2_0",
        39: "mxfp4",
        40: "nvfp4",
        41: "q1_0",
    }
)
"""The weight format of each type of tensor."""
