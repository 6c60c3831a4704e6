"""Our numbers and names of GGUF are those of the `gguf` package."""

from __future__ import annotations

import pytest
from gguf.constants import (
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFType,
    GGUFValueType,
    Keys,
)

from rocmforge.gguf import constants


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (constants.TYPE, Keys.General.TYPE),
        (constants.ARCHITECTURE, Keys.General.ARCHITECTURE),
        (constants.ALIGNMENT, Keys.General.ALIGNMENT),
        (constants.SAMPLING_TEMP, Keys.General.SAMPLING_TEMP),
        (constants.SAMPLING_TOP_K, Keys.General.SAMPLING_TOP_K),
        (constants.SAMPLING_TOP_P, Keys.General.SAMPLING_TOP_P),
        (constants.SAMPLING_MIN_P, Keys.General.SAMPLING_MIN_P),
        (constants.SAMPLING_PENALTY_REPEAT, Keys.General.SAMPLING_PENALTY_REPEAT),
        (constants.SPLIT_NO, Keys.Split.LLM_KV_SPLIT_NO),
        (constants.SPLIT_COUNT, Keys.Split.LLM_KV_SPLIT_COUNT),
        (constants.SPLIT_TENSORS_COUNT, Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT),
        (constants.ADAPTER_TYPE, Keys.Adapter.TYPE),
        (constants.ADAPTER_LORA_ALPHA, Keys.Adapter.LORA_ALPHA),
        (constants.MODEL, GGUFType.MODEL),
        (constants.ADAPTER, GGUFType.ADAPTER),
        (constants.DEFAULT_ALIGNMENT, GGUF_DEFAULT_ALIGNMENT),
    ],
)
def test_a_name_is_that_of_the_package(ours: object, theirs: object) -> None:
    assert ours == theirs


def test_types_of_values_are_those_of_the_package() -> None:
    assert {each.name: each.value for each in constants.ValueType} == {
        each.name: each.value for each in GGUFValueType
    }


def test_types_of_tensors_are_those_of_the_package() -> None:
    assert {
        each.value: each.name.lower() for each in GGMLQuantizationType
    } == constants.TENSOR_TYPES
