"""Models whose sizes no kernel fits are refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.config import ModelConfig
from rocmforge.opening import open_checkpoint
from rocmforge_hip.backend import create
from rocmforge_hip.load.supported import check_sizes
from tests.data.models.tiny_models import by_name, write_model
from tests.support.options import SMALL

HEAD_DIMS = (8,)


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    with open_gguf(write_model(by_name("llama"), tmp_path)) as file:
        return read_checkpoint(file).config


def test_a_model_that_fits_is_not_refused(config: ModelConfig) -> None:
    check_sizes(config, HEAD_DIMS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"key_dim": 16, "value_dim": 16}, "heads of 16 elements.*heads of 8 elements"),
        ({"value_dim": 4}, "heads of 8 elements for keys and 4 for values.*equal ones"),
        ({"num_heads": 4}, "heads that differ by layer.*the same heads in every layer"),
        ({"num_kv_heads": 6}, "heads that differ by layer.*the same heads in every layer"),
        ({"joint_head_norms": True}, "norms of all heads together.*norms of each head"),
    ],
)
def test_heads_that_no_kernel_fits_are_refused(
    config: ModelConfig, changes: dict[str, Any], problem: str
) -> None:
    first, last = config.layers
    with pytest.raises(UnsupportedArchitecture, match=problem):
        check_sizes(replace(config, layers=(first, replace(last, **changes))), HEAD_DIMS)


def test_an_encoder_whose_heads_share_keys_is_refused(config: ModelConfig) -> None:
    with pytest.raises(UnsupportedArchitecture, match="as many of keys and values in an encoder"):
        check_sizes(replace(config, causal=False), HEAD_DIMS)


def test_experts_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with open_checkpoint(write_model(by_name("mixtral"), tmp_path)) as checkpoint:
        with pytest.raises(UnsupportedArchitecture, match="llama with experts, which only the ref"):
            check_sizes(checkpoint.config, HEAD_DIMS)
        with pytest.raises(UnsupportedArchitecture, match="llama with experts"):
            create().estimate(checkpoint, SMALL, 1 << 30)


def test_layers_may_differ_in_the_width_of_the_feed_forward(config: ModelConfig) -> None:
    first, last = config.layers
    check_sizes(replace(config, layers=(first, replace(last, intermediate_size=32))), HEAD_DIMS)
