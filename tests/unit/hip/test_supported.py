"""Models whose sizes no kernel fits are refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.errors import ConfigurationError, UnsupportedArchitecture
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import LatentConfig
from rocmforge.models.lora import Adapter
from rocmforge.models.rope_config import RopeConfig, RopeStyle
from rocmforge.models.weights import present, take
from rocmforge.opening import open_checkpoint
from rocmforge_hip.backend import create
from rocmforge_hip.device.heads import CACHED_HEADS, HeadSize
from rocmforge_hip.load.loading import plan_reads
from rocmforge_hip.load.supported import (
    check_adapters,
    check_packed_values,
    check_sinks,
    check_sizes,
)
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_mamba import larger_mamba
from tests.data.models.text.tiny_models import by_name
from tests.support.models.hip import fitting, splittable
from tests.support.models.options import SMALL

HEADS = (HeadSize(8, 8), HeadSize(16, 8), HeadSize(12, 8, values_in_keys=True))


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    with open_gguf(write_model(by_name("llama"), tmp_path)) as file:
        return read_checkpoint(file).config


def test_a_model_that_fits_is_not_refused(config: ModelConfig) -> None:
    check_sizes(config, HEADS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"key_dim": 16, "value_dim": 16}, "heads of 16 elements.*heads of 8, 16/8 elements"),
        ({"value_dim": 16}, "heads of 8/16 elements.*heads of 8, 16/8 elements"),
        (
            {"joint_head_norms": True, "num_heads": 4096},
            "norms of 32768 features of queries.*up to 16384",
        ),
        (
            {"latent": LatentConfig(query_rank=0, rank=8, rotary_dim=2, plain_dim=4, value_dim=4)},
            "heads of 8 elements.*heads of 12/8 elements",
        ),
    ],
)
def test_heads_that_no_kernel_fits_are_refused(
    config: ModelConfig, changes: dict[str, Any], problem: str
) -> None:
    first, last = config.layers
    with pytest.raises(UnsupportedArchitecture, match=problem):
        check_sizes(replace(config, layers=(first, replace(last, **changes))), HEADS)


def test_norms_of_heads_that_lanes_cannot_share_are_refused_in_an_encoder(
    config: ModelConfig,
) -> None:
    encoder = replace(config, causal=False, architecture="gemma-embedding", rope=None)
    heads = [HeadSize(size, size) for size in (8, 24)]
    check_sizes(encoder, heads)
    layers = [replace(layer, key_dim=24, value_dim=24) for layer in config.layers]
    with pytest.raises(UnsupportedArchitecture, match="norms of heads of 24 elements"):
        check_sizes(replace(encoder, layers=tuple(layers)), heads)
    rope = RopeConfig(style=RopeStyle.NEOX, rotary_dim=16, theta=10.0, scaling=None)
    with pytest.raises(UnsupportedArchitecture, match="16 rotating elements of normed heads"):
        check_sizes(replace(encoder, rope=rope), heads)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_experts": 1024}, "llama with 1024 experts.*up to 512"),
        ({"num_experts": 513}, "llama with 513 experts.*up to 512"),
    ],
)
def test_more_experts_than_can_be_chosen_from_are_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with open_checkpoint(write_model(by_name("mixtral"), tmp_path)) as checkpoint:
        config = checkpoint.config
    check_sizes(config, HEADS)
    first, last = config.layers
    assert last.experts is not None
    layer = replace(last, experts=replace(last.experts, **changes))
    with pytest.raises(UnsupportedArchitecture, match=problem):
        check_sizes(replace(config, layers=(first, layer)), HEADS)


def test_experts_that_devices_cannot_have_as_many_of_each_are_refused(tmp_path: Path) -> None:
    mixtral = splittable(fitting(by_name("mixtral")))
    odd = {"num_local_experts": 5}, {"expert_count": 5}
    path = write_model(
        replace(mixtral, config=mixtral.config | odd[0], keys=mixtral.keys | odd[1]), tmp_path
    )
    problem = r"over 2 devices: its 5 experts are not a multiple of 2. Use --tensor-parallel 1\."
    with (
        open_checkpoint(path) as checkpoint,
        pytest.raises(ConfigurationError, match=problem),
    ):
        create().estimate(checkpoint, replace(SMALL, tensor_parallel=2), 1 << 30)


@pytest.mark.parametrize("name", ["olmoe", "minimax-m2"])
def test_norms_of_all_heads_together_are_not_split_over_devices(name: str, tmp_path: Path) -> None:
    problem = "over 2 devices: its norms of queries and keys are of the heads of all devices"
    with (
        open_checkpoint(write_model(fitting(by_name(name)), tmp_path)) as checkpoint,
        pytest.raises(ConfigurationError, match=problem),
    ):
        create().estimate(checkpoint, replace(SMALL, tensor_parallel=2), 1 << 30)


@pytest.mark.parametrize(
    "changes", [{"intermediate_size": 32}, {"num_heads": 9, "num_kv_heads": 3}, {"key_dim": 16}]
)
def test_layers_may_differ(config: ModelConfig, changes: dict[str, Any]) -> None:
    first, last = config.layers
    check_sizes(replace(config, layers=(first, replace(last, **changes))), HEADS)


@pytest.mark.parametrize("changes", [{"num_heads": 4, "num_kv_heads": 4}, {"key_dim": 16}])
def test_the_layers_of_an_encoder_have_the_same_heads(
    config: ModelConfig, changes: dict[str, Any]
) -> None:
    layer = replace(config.layers[0], num_kv_heads=config.layers[0].num_heads)
    layers = (layer, replace(layer, **changes))
    with pytest.raises(UnsupportedArchitecture, match="the same heads in every layer"):
        check_sizes(replace(config, causal=False, layers=layers), HEADS)


def test_sinks_of_heads_that_are_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocmforge_hip.load.supported.MAX_SINK_DIM", 4)
    with open_checkpoint(write_model(by_name("gpt-oss"), tmp_path)) as checkpoint:
        weights = take(checkpoint.config, checkpoint.weights)
        with pytest.raises(UnsupportedArchitecture, match=r"sinks of heads of \d+.*up to 4"):
            check_sinks(checkpoint.config, weights)


def test_adapters_of_networks_without_gates_are_refused(tmp_path: Path) -> None:
    with open_checkpoint(write_model(by_name("nemotron_h"), tmp_path)) as checkpoint:
        check_adapters(checkpoint.config, ())
        with pytest.raises(UnsupportedArchitecture, match="nemotron_h with adapters"):
            check_adapters(checkpoint.config, (Adapter("a", {}),))


@pytest.mark.parametrize(
    ("model", "found"),
    [("deepseek-v2", "latent vectors"), ("gemma4", "heads of 512 elements")],
)
def test_a_cache_with_values_of_four_bits_is_refused_where_there_are_no_kernels(
    model: str, found: str, tmp_path: Path
) -> None:
    options = replace(SMALL, kv_dtype="k8v4")
    with (
        open_checkpoint(write_model(fitting(by_name(model)), tmp_path)) as checkpoint,
        pytest.raises(
            ConfigurationError, match=f"k8v4 cache of {found}.*64, 128. Use kv_dtype int8"
        ),
    ):
        plan_reads(checkpoint, options)
    with open_checkpoint(write_model(fitting(by_name("llama")), tmp_path)) as checkpoint:
        check_packed_values(checkpoint.config)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"state_size": 256}, "states of 256 elements"),
        ({"head_dim": 18}, "heads of 18 elements"),
        ({"num_heads": 6}, "6 heads"),
    ],
)
def test_sizes_of_mamba_that_no_kernel_has_are_refused(
    change: dict[str, int], problem: str, tmp_path: Path
) -> None:
    model = larger_mamba(by_name("granitehybrid-dense"))
    with open_checkpoint(write_model(model, tmp_path)) as checkpoint:
        config = checkpoint.config
    check_sizes(config, CACHED_HEADS)
    mamba = present(config.layers[0].mamba)
    layer = replace(config.layers[0], mamba=replace(mamba, **change))
    with pytest.raises(UnsupportedArchitecture, match=f"Mamba-2 with {problem}"):
        check_sizes(replace(config, layers=(layer, *config.layers[1:])), CACHED_HEADS)
