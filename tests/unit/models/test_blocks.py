"""The declarations of weights agree with each other, and folds see each weight once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.gguf.checkpoint import open_gguf_checkpoint
from rocmforge.gguf.names import NAMES
from rocmforge.huggingface.config.decoder_types import DECODERS
from rocmforge.models.blocks import Role, WeightPlace
from rocmforge.models.families import FAMILIES
from rocmforge.models.weights import (
    build,
    convert,
    map_places,
    places,
    present,
    take,
    walk,
    weight_shape,
)
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_encoders import by_name as encoder_by_name
from tests.data.models.text.tiny_encoders import write_encoder
from tests.data.models.text.tiny_models import by_name

BY_NAME = {place.name: place for place in places(1)}
BIASES = [
    name
    for name in BY_NAME
    if name.endswith("_bias") and name != "experts.selection_bias"  # which is of no product
]


def test_the_readers_know_the_families() -> None:
    assert set(NAMES) == {name for name, family in FAMILIES.items() if not family.is_tower}
    assert {kind.architecture for kind in DECODERS.values()} <= set(FAMILIES)


def test_every_family_has_declared_weights() -> None:
    for family in FAMILIES.values():
        assert family.has.isdisjoint(family.may_have)
        assert family.not_in_first_layer <= family.has
        for name in family.has | family.may_have:
            assert BY_NAME[name].is_optional, f"all models have {name}"


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_cut_as_the_results_that_it_is_added_to(name: str) -> None:
    bias, weight = BY_NAME[name], BY_NAME[name.removesuffix("_bias")]
    assert bias.declared.shape == (weight.declared.shape[:-1] or weight.declared.shape)
    assert bias.declared.role is weight.declared.role
    assert not bias.declared.adaptable


def test_adapters_change_the_matrices_of_layers_that_are_cut_but_for_states_and_gates() -> None:
    others = "attention.gate", "convolution.", "delta.", "mamba."
    for place in BY_NAME.values():
        is_matrix = place.layer is not None and len(place.declared.shape) == 2
        is_cut = place.declared.role in (Role.COLUMN, Role.ROW)
        can_change = not place.name.startswith(others)
        assert place.declared.adaptable == (is_matrix and is_cut and can_change)


def test_what_is_built_is_walked_in_the_same_order() -> None:
    model = build(3, lambda place: place)
    assert [place for place, _ in walk(model)] == list(places(3))
    assert all(place == weight for place, weight in walk(model))
    assert present(model.layers[2].attention).q.path == "layers.2.attention.q"
    assert weight_path(model.layers[0].attention_norm) == "layers.0.attention_norm"


def weight_path(place: WeightPlace | None) -> str:
    assert place is not None
    return place.path


def test_a_function_may_leave_weights_out() -> None:
    model = build(2, lambda place: place.path)
    plain = map_places(model, lambda place, path: None if place.is_optional else path)
    assert plain.head is None
    assert plain.output is None
    assert plain.layers[0].attention is None
    assert plain.layers[1].feed_forward_norm is None
    assert plain.embedding.token == "embedding.token"


def test_a_weight_in_two_places_is_converted_once() -> None:
    model = build(1, lambda place: [place.path])
    tied = replace(model, output=model.embedding.token)
    converted = convert(tied, list)
    assert converted.output is converted.embedding.token


def test_shapes_are_those_of_the_layer(tmp_path: Path) -> None:
    with open_gguf_checkpoint(write_model(by_name("llama"), tmp_path)) as checkpoint:
        config = checkpoint.config
    first, last = config.layers
    wide = replace(last, num_heads=3, num_kv_heads=1, key_dim=192, value_dim=128)
    config = replace(config, layers=(first, replace(wide, intermediate_size=1408)))
    hidden = config.hidden_size
    assert weight_shape(config, "layers.1.attention.q") == (3 * 192, hidden)
    assert weight_shape(config, "layers.1.attention.k") == (192, hidden)
    assert weight_shape(config, "layers.1.attention.v_bias") == (128,)
    assert weight_shape(config, "layers.1.attention.k_norm") == (192,)
    assert weight_shape(config, "layers.1.attention.output") == (hidden, 3 * 128)
    assert weight_shape(config, "layers.1.feed_forward.down") == (hidden, 1408)
    assert weight_shape(config, "layers.0.attention.q") == (first.num_heads * 8, hidden)
    assert weight_shape(config, "output") == (config.vocab_size, hidden)


def test_a_head_that_is_not_applied_is_not_taken(tmp_path: Path) -> None:
    with open_gguf_checkpoint(write_encoder(encoder_by_name("ranker"), tmp_path)) as checkpoint:
        config, weights = checkpoint.config, dict(checkpoint.weights)
    assert take(config, weights).head is not None
    assert take(replace(config, num_scores=0), weights).head is None
