"""What a file declares about pooling."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocmforge.gguf.config.keys import declared_pooling
from rocmforge.models.pooling import PoolingType


@pytest.mark.parametrize(
    ("metadata", "pooling"),
    [
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 3}, PoolingType.LAST),
        ({"general.architecture": "llama", "llama.pooling_type": 1}, PoolingType.MEAN),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 4}, PoolingType.RANK),
        ({"general.architecture": "llama", "qwen3.pooling_type": 3}, PoolingType.NONE),
        ({"general.architecture": "llama", "llama.pooling_type": 77}, PoolingType.NONE),
        ({"general.architecture": "llama", "llama.pooling_type": "mean"}, PoolingType.NONE),
        ({"general.architecture": "llama"}, PoolingType.NONE),
    ],
)
def test_the_architectures_own_key_counts(metadata: dict[str, Any], pooling: PoolingType) -> None:
    file: Any = SimpleNamespace(metadata=metadata)
    assert declared_pooling(file) is pooling
