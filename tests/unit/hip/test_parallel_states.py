"""Cutting layers with states: which heads, groups and channels a rank has, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import ConfigurationError
from rocmforge.models.blocks import DeltaNet, Mamba, ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import DeltaConfig
from rocmforge.models.weights import present, take, walk
from rocmforge.opening import open_checkpoint
from rocmforge_hip.weights.shard import Shard
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_mamba import larger_mamba
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.data.models.text.tiny_recurrent import larger_delta, larger_liquid
from tests.support.models.state_models import CUT, divisible

Floats = npt.NDArray[np.float32]


def read(path: Path) -> tuple[ModelConfig, ModelWeights[Tensor]]:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.config, take(checkpoint.config, checkpoint.weights)


def values(tensor: Tensor | None) -> Floats:
    return present(tensor).to_float32()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "name",
    ["qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe-latent", "granitehybrid", "lfm2moe"],
)
def test_the_parts_fit_what_a_rank_computes_and_remembers(
    name: str, ranks: int, tmp_path: Path
) -> None:
    config, weights = read(write_model(divisible(by_name(name)), tmp_path))
    Shard(0, ranks).check(config, weights)
    for rank in range(ranks):
        shard = Shard(rank, ranks)
        part = shard.config(config)
        for place, tensor in walk(shard.weights(config, weights)):
            if place.layer is not None and not place.name.startswith("experts."):
                assert tensor.shape == place.shape(part), place.path
                assert tensor.to_float32().shape == tensor.shape
        for own, whole in zip(part.layers, config.layers, strict=True):
            for state, of_all in zip(own.state_shapes[-1:], whole.state_shapes[-1:], strict=True):
                assert np.prod(state) == np.prod(of_all) // ranks
            assert own.num_kv_heads == -(-whole.num_kv_heads // ranks)


def delta_of(weights: ModelWeights[Tensor]) -> DeltaNet[Tensor]:
    return present(weights.layers[0].delta)


def key_head(rule: DeltaConfig, value_head: int) -> int:
    """The key head of a value head, as `DeltaConfig` says."""
    if rule.is_tiled:
        return value_head % rule.num_key_heads
    return value_head // (rule.num_value_heads // rule.num_key_heads)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_a_rank_has_the_value_heads_of_its_key_heads(name: str, ranks: int, tmp_path: Path) -> None:
    config, weights = read(write_model(divisible(by_name(name)), tmp_path))
    rule, whole, seen = present(config.layers[0].delta), delta_of(weights), list[int]()
    q, k, v = np.split(values(whole.mixed), [rule.key_features, 2 * rule.key_features])
    for rank in range(ranks):
        shard = Shard(rank, ranks)
        part, own = (
            present(shard.config(config).layers[0].delta),
            delta_of(shard.weights(config, weights)),
        )
        keys = np.split(values(own.mixed), [part.key_features, 2 * part.key_features])
        first_key = rank * part.num_key_heads
        of_keys = slice(first_key * rule.key_dim, (first_key + part.num_key_heads) * rule.key_dim)
        np.testing.assert_array_equal(keys[0], q[of_keys])
        np.testing.assert_array_equal(keys[1], k[of_keys])
        alpha, dim = values(whole.alpha), rule.value_dim
        for head in range(part.num_value_heads):
            # Each row of alpha is of one head: it tells which of all heads this is.
            (there,) = np.flatnonzero((alpha == values(own.alpha)[head]).all(axis=1))
            seen.append(int(there))
            assert key_head(rule, int(there)) == first_key + key_head(part, head)
            here, of_all = (
                slice(head * dim, (head + 1) * dim),
                slice(there * dim, (there + 1) * dim),
            )
            np.testing.assert_array_equal(keys[2][here], v[of_all])
            np.testing.assert_array_equal(values(own.gate)[here], values(whole.gate)[of_all])
            np.testing.assert_array_equal(
                values(own.output)[:, here], values(whole.output)[:, of_all]
            )
            filters = values(own.filter)[2 * part.key_features :][here]
            np.testing.assert_array_equal(
                filters, values(whole.filter)[2 * rule.key_features :][of_all]
            )
            for mine, theirs in (
                (own.beta, whole.beta),
                (own.decay, whole.decay),
                (own.time_offset, whole.time_offset),
            ):
                np.testing.assert_array_equal(values(mine)[head], values(theirs)[there])
        assert own.norm is whole.norm
    assert sorted(seen) == [*range(rule.num_value_heads)]


def mamba_of(weights: ModelWeights[Tensor]) -> Mamba[Tensor]:
    return present(weights.layers[0].mamba)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_has_the_heads_of_its_groups(ranks: int, tmp_path: Path) -> None:
    config, weights = read(write_model(divisible(by_name("nemotron_h")), tmp_path))
    rule, whole = present(config.layers[0].mamba), mamba_of(weights)
    inner, groups = rule.inner_features, rule.num_groups * rule.state_size
    ends = np.cumsum([inner, inner, groups, groups])
    pieces = [
        np.split(values(mamba_of(Shard(rank, ranks).weights(config, weights)).input), ends // ranks)
        for rank in range(ranks)
    ]
    for index, section in enumerate(np.split(values(whole.input), ends)):
        np.testing.assert_array_equal(np.concatenate([own[index] for own in pieces]), section)
    for rank in range(ranks):
        own = mamba_of(Shard(rank, ranks).weights(config, weights))
        mine = slice(rank * inner // ranks, (rank + 1) * inner // ranks)
        heads = slice(rank * rule.num_heads // ranks, (rank + 1) * rule.num_heads // ranks)
        np.testing.assert_array_equal(values(own.norm), values(whole.norm)[mine])
        np.testing.assert_array_equal(values(own.output), values(whole.output)[:, mine])
        np.testing.assert_array_equal(
            values(own.filter_bias)[: inner // ranks], values(whole.filter_bias)[mine]
        )
        for vector in ("decay", "time_offset", "skip"):
            np.testing.assert_array_equal(
                values(getattr(own, vector)), values(getattr(whole, vector))[heads]
            )


def test_all_ranks_have_the_one_group_of_granite(tmp_path: Path) -> None:
    config, weights = read(write_model(divisible(by_name("granitehybrid")), tmp_path))
    rule, whole = present(config.layers[0].mamba), mamba_of(weights)
    inner, state = rule.inner_features, rule.state_size
    of_group = values(whole.input)[2 * inner : 2 * inner + 2 * state]
    for rank in range(4):
        shard = Shard(rank, 4)
        part = present(shard.config(config).layers[0].mamba)
        assert (part.num_groups, part.sharing_devices) == (1, 4)
        own = values(mamba_of(shard.weights(config, weights)).input)
        np.testing.assert_array_equal(own[inner // 2 : inner // 2 + 2 * state], of_group)


def test_key_value_heads_are_shared_by_as_many_devices_as_there_are_more(tmp_path: Path) -> None:
    config, weights = read(write_model(divisible(by_name("nemotron_h")), tmp_path))
    index = next(i for i, layer in enumerate(config.layers) if layer.num_kv_heads)
    layer = config.layers[index]
    assert (layer.num_heads, layer.num_kv_heads) == (4, 2)
    keys = values(present(weights.layers[index].attention).k)
    for rank in range(4):
        own = present(Shard(rank, 4).weights(config, weights).layers[index].attention)
        head = rank // 2
        expected = keys[head * layer.key_dim : (head + 1) * layer.key_dim]
        np.testing.assert_array_equal(values(own.k), expected)


def test_a_folder_is_cut_as_its_gguf_file(tmp_path: Path) -> None:
    model = divisible(by_name("qwen3next"))
    cut = []
    for path in (write_model(model, tmp_path), write_folder(model, tmp_path / "folder")):
        config, weights = read(path)
        cut.append(dict(walk(Shard(1, 2).weights(config, weights))))
    for place, tensor in cut[0].items():
        if place.name.startswith(("delta.", "attention.")):
            other = cut[1][place].to_float32()
            np.testing.assert_array_equal(other, tensor.to_float32(), place.path)


def test_only_a_shared_expert_that_does_not_divide_is_whole(tmp_path: Path) -> None:
    sizes = CUT | {"shared_expert_intermediate_size": 64}
    model = larger_delta(by_name("qwen3next"), delta_heads=(4, 16), **sizes)
    config, weights = read(write_model(model, tmp_path))
    names = {f"experts.shared.{name}" for name in ("gate", "up", "down")}
    for ranks, whole, rows in ((2, set(), 32), (4, names, 64)):
        Shard(0, ranks).check(config, weights)
        shard = Shard(1, ranks).fitted(weights)
        assert shard.whole == whole
        part, own = shard.config(config), dict(walk(shard.weights(config, weights)))
        assert part.layers[0].shared_intermediate_size == rows
        for place, tensor in own.items():
            if place.name in names:
                assert tensor.shape == place.shape(part), place.path


@pytest.mark.parametrize(
    ("model", "ranks", "problem"),
    [
        (
            larger_delta(by_name("qwen35"), delta_heads=(3, 12), **CUT),
            2,
            "its 3 heads of keys are not a multiple of 2",
        ),
        (
            larger_mamba(by_name("nemotron_h"), groups=2, **CUT),
            4,
            "its 2 groups of Mamba-2 are not a multiple of 4",
        ),
        (
            larger_liquid(
                by_name("lfm2"), **(CUT | {"num_attention_heads": 3, "hidden_size": 192})
            ),
            2,
            "its 3 heads are not a multiple of 2",
        ),
        (
            larger_delta(
                by_name("qwen3next"),
                delta_heads=(4, 16),
                **(CUT | {"num_key_value_heads": 3, "num_attention_heads": 12}),
            ),
            4,
            "its 3 key-value heads are not a multiple of 4 and do not divide it",
        ),
    ],
    ids=["keys", "groups", "heads", "kv-heads"],
)
def test_what_does_not_divide_is_refused_with_the_number(
    model: TinyModel, ranks: int, problem: str, tmp_path: Path
) -> None:
    config, weights = read(write_model(model, tmp_path))
    with pytest.raises(ConfigurationError, match=problem):
        Shard(0, ranks).check(config, weights)
