"""What `config.json` says, compared with what the GGUF file of the same model says."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import BadFolder, UnsupportedArchitecture
from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.names import PERMUTED
from rocmforge.gguf.reader import open_gguf
from rocmforge.huggingface.config.decoders import read_decoder
from rocmforge.huggingface.config.encoders import read_encoder
from rocmforge.huggingface.config.rope import Rope
from rocmforge.huggingface.files.folder import Folder
from rocmforge.models.config import ModelConfig
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope_config import RopeScalingKind, RopeStyle
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_encoders import ENCODERS, TinyEncoder, write_encoder
from tests.data.models.text.tiny_encoders import by_name as encoder_by_name
from tests.data.models.text.tiny_folders import folder_config
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import FOLDER_MODELS, by_name, goldens


def config_of(path: Path, values: dict[str, Any]) -> Any:
    """A folder's configuration with these values."""
    (path / "config.json").write_text(json.dumps(values))
    return Folder(path).config()


def decoder(path: Path, name: str = "llama", **changes: Any) -> tuple[ModelConfig, Rope]:
    """The configuration of a tiny model, with changes; None takes a key away."""
    values = {**folder_config(by_name(name)), **changes}
    kept = {key: v for key, v in values.items() if v is not None or key not in changes}
    return read_decoder(config_of(path, kept), name, PoolingType.NONE)


def comparable(config: ModelConfig, style: RopeStyle) -> ModelConfig:
    """The configuration with what the kinds of files say in other words or with other digits."""
    rope = config.rope
    if rope is not None:
        if rope.scaling is not None:
            gain, temperature = rope.scaling.attention_factor, rope.scaling.temperature
            scaling = replace(
                rope.scaling, attention_factor=round(gain, 6), temperature=round(temperature, 6)
            )
            if scaling.kind is RopeScalingKind.LONGROPE:
                scaling = replace(scaling, factor=0.0)  # GGUF does not say, and nobody asks
            rope = replace(rope, scaling=scaling)
        rope = replace(rope, style=style, theta=float(np.float32(rope.theta)))
    # Files of Gated DeltaNet have the heads of values in another order.
    layers = tuple(
        replace(
            layer,
            delta=layer.delta and replace(layer.delta, is_tiled=False),
            mamba=layer.mamba and replace(layer.mamba, norm_eps=rounded(layer.mamba.norm_eps)),
            attention_scale=rounded(layer.attention_scale),
        )
        for layer in config.layers
    )
    return replace(
        config,
        norm_eps=rounded(config.norm_eps),
        embedding_scale=rounded(config.embedding_scale),
        logit_scale=rounded(config.logit_scale),
        rope=rope,
        layers=layers,
    )


def rounded(number: float) -> float:
    """Six digits, which GGUF keeps of a number."""
    return float(f"{number:.6g}")


@pytest.mark.parametrize("model", FOLDER_MODELS, ids=lambda model: model.name)
def test_decoders_are_described_as_by_their_gguf_files(model: TinyModel, tmp_path: Path) -> None:
    with open_gguf(write_model(model, tmp_path)) as file:
        expected = read_config(file)
    found, _ = decoder(tmp_path, model.name)
    gain = model.config.get("qk_scale_factor", 1.0)  # GGUF files have it in the norms of queries
    found = replace(
        found,
        layers=tuple(
            replace(layer, attention_scale=layer.attention_scale / gain) for layer in found.layers
        ),
    )
    style = RopeStyle.NEOX
    if expected.rope is not None and model.architecture not in PERMUTED:
        style = expected.rope.style  # GGUF has the rows of others in another order
    assert found.rope is None or found.rope.style is style
    assert comparable(found, style) == comparable(expected, style)


@pytest.mark.parametrize("model", ENCODERS, ids=lambda model: model.name)
def test_encoders_are_described_as_by_their_gguf_files(model: TinyEncoder, tmp_path: Path) -> None:
    with open_gguf(write_encoder(model, tmp_path)) as file:
        expected = read_config(file)
    config, first = config_of(tmp_path, folder_config(model)), 0
    if model.is_gemma:
        found, _ = read_decoder(config, model.name, expected.pooling)
    else:
        found, first = read_encoder(config, model.name, expected.pooling, expected.num_scores)
    assert first == model.position_offset
    if model.hf_class == "ModernBert":
        expected = replace(expected, num_token_types=0)  # it has no such table
    assert replace(found, norm_eps=expected.norm_eps) == expected


def test_frequencies_of_llama_3_are_divided_as_transformers_does(tmp_path: Path) -> None:
    _, rope = decoder(tmp_path, "llama3-rope")
    expected = np.array(goldens("llama3-rope")["frequencies"])
    for factors in (rope.factors.short, rope.factors.long):
        assert factors is not None
        frequencies = 500.0 ** (-np.arange(0, 16, 2) / 16) / factors
        np.testing.assert_allclose(frequencies, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("llama", {"rope_theta": 300.0}),
        (
            "llama-linear-rope",
            {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 200},
        ),
        ("phi3", {"partial_rotary_factor": 0.5, "rope_theta": 10000.0}),
        ("glm4", {"partial_rotary_factor": 0.5}),
        ("glm4", {}),
        (
            "gemma3",
            {
                "rope_theta": 5000.0,
                "rope_local_base_freq": 50.0,
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "sliding_window_pattern": 6,
                "layer_types": None,
            },
        ),
        ("gemma2", {"layer_types": None, "rope_theta": 10000.0}),
    ],
)
def test_files_of_transformers_4_say_the_same(
    name: str, old: dict[str, Any], tmp_path: Path
) -> None:
    assert (
        decoder(tmp_path, name, rope_parameters=None, **{"layer_types": None, **old})[0]
        == (decoder(tmp_path, name)[0])
    )


def test_gemma_with_images_is_read_as_its_text_part(tmp_path: Path) -> None:
    text = folder_config(by_name("gemma3"))
    whole = config_of(tmp_path, {"model_type": "gemma3", "text_config": text, "vision_config": {}})
    found, _ = read_decoder(whole, "gemma3", PoolingType.NONE)
    assert found == decoder(tmp_path, "gemma3")[0]


def test_what_the_smallest_files_leave_out_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 6}
    config = config_of(tmp_path, {"model_type": "gemma3", "text_config": text})
    found, _ = read_decoder(config, "gemma3", PoolingType.NONE)
    assert (found.vocab_size, found.max_context) == (262208, 131072)
    assert found.rope is not None
    assert found.local_rope is not None
    assert (found.rope.theta, found.local_rope.theta) == (1000000.0, 10000.0)
    assert [layer.window for layer in found.layers] == [4096] * 5 + [None]
    assert {(layer.num_heads, layer.num_kv_heads, layer.key_dim) for layer in found.layers} == {
        (8, 4, 256)
    }


@pytest.mark.parametrize("name", ["mistral3", "mistral"])
def test_the_text_part_of_mistral_3_says_what_it_is(name: str, tmp_path: Path) -> None:
    text = folder_config(by_name(name))
    whole = config_of(tmp_path, {"model_type": "mistral3", "text_config": text})
    found, _ = read_decoder(whole, name, PoolingType.NONE)
    assert found == decoder(tmp_path, name)[0]


def test_ministral_that_says_nothing_of_rope_has_the_published_one(tmp_path: Path) -> None:
    config, _ = decoder(tmp_path, "mistral3", rope_parameters=None)
    scaling = config.rope_of(local=False).scaling
    assert scaling is not None
    found = scaling.factor, scaling.original_context, scaling.temperature, scaling.attention_factor
    assert found == (16, 16384, 0.1, 1)


def test_windows_of_older_olmo_3_rotate_with_the_only_base_unscaled(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config, _ = decoder(
        tmp_path, "olmo3", rope_parameters=None, rope_theta=700.0, rope_scaling=yarn
    )
    assert config.rope_of(local=False).scaling is not None
    local = config.rope_of(local=True)
    assert (local.theta, local.scaling) == (700.0, None)


def test_smollm_3_names_the_layers_that_do_not_rotate(tmp_path: Path) -> None:
    def unrotated(**changes: Any) -> list[int]:
        layers = decoder(tmp_path, "smollm3", **changes)[0].layers
        return [index for index, layer in enumerate(layers) if not layer.rotates]

    assert unrotated(no_rope_layers=[1, 0, 1, 1, 0]) == [1, 4]
    assert unrotated(no_rope_layers=None) == [3]
    assert unrotated(no_rope_layers=None, no_rope_layer_interval=2) == [1, 3]
    with pytest.raises(BadFolder, match="2 numbers for 5 layers"):
        unrotated(no_rope_layers=[1, 0])


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 5, "use_sliding_window": False}, [None, None]),
        ({"sliding_window": 5}, [None, None]),
        ({"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1}, [None, 5]),
        (
            {
                "sliding_window": 5,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [5, None],
        ),
    ],
)
def test_windows_of_qwen_are_those_that_are_in_use(
    changes: dict[str, Any], windows: list[int | None], tmp_path: Path
) -> None:
    found, _ = decoder(tmp_path, "qwen2", **{"layer_types": None, **changes})
    assert [layer.window for layer in found.layers] == windows


def test_a_window_of_mistral_is_of_all_layers_and_null_is_none(tmp_path: Path) -> None:
    values = folder_config(by_name("mistral"))
    for window in (7, None):
        config = config_of(tmp_path, {**values, "sliding_window": window})
        found, _ = read_decoder(config, "m", PoolingType.NONE)
        assert [layer.window for layer in found.layers] == [window, window]


def by_layer(**own: int) -> dict[str, Any]:
    """What Transformers saves of the layers of Gemma 4 that have no window."""
    return {"2": own, "4": own}


@pytest.mark.parametrize(
    ("saved", "named"),
    [
        (by_layer(head_dim=20, num_key_value_heads=1), {"global_head_dim": 20}),
        (by_layer(num_key_value_heads=1), {"global_head_dim": 12}),
        (by_layer(head_dim=20), {"global_head_dim": 20, "num_global_key_value_heads": None}),
        ({}, {"global_head_dim": 12, "num_global_key_value_heads": None}),
    ],
)
def test_heads_by_layer_are_those_that_google_names(
    saved: dict[str, Any], named: dict[str, Any], tmp_path: Path
) -> None:
    found, rope = decoder(tmp_path, "gemma4", per_layer_config=saved)
    keys = {"per_layer_config": None, "num_global_key_value_heads": 1, **named}
    expected, expected_rope = decoder(tmp_path, "gemma4", **keys)
    full = [layer.key_dim for layer in found.layers if layer.window is None]
    assert full == [named["global_head_dim"]] * 2
    assert found == expected
    assert repr(rope) == repr(expected_rope)


YARN = {"rope_type": "yarn", "factor": 4, "mscale": 1.0}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4}
LONGROPE = {"rope_type": "longrope", "short_factor": [1e-320] * 4, "long_factor": [1] * 4}


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("llama", {"hidden_size": None}, "'hidden_size': it is missing"),
        ("llama", {"hidden_size": "48"}, "'hidden_size': it is of type str"),
        ("llama", {"num_key_value_heads": 4}, "4 does not divide the 6 heads"),
        ("llama", {"num_hidden_layers": 1001}, "1001 layers; there may be 1000"),
        ("llama", {"num_attention_heads": 10, "head_dim": None}, "10 does not divide the width"),
        ("llama", {"rms_norm_eps": 0}, "is not in (0, 1)"),
        ("llama", {"rope_parameters": {"rope_theta": 0.5}}, "0.5 is not a rope base"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.4}}, "cannot rotate"),
        ("muse-glimmer", {"layer_rope_theta": [0, 300, 200, 300, 0]}, "0 or one other base"),
        ("muse-glimmer", {"output_multiplier": 0}, "0.0 is not positive"),
        ("muse-glimmer", {"post_norm_eps": 0}, "is not in (0, 1)"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 1e308}}, "cannot rotate"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "is not positive"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 1e308}}, "too large"),
        ("llama", {"rope_parameters": YARN | {"mscale_all_dim": -10 / log(4)}}, "is not positive"),
        ("llama", {"rope_parameters": YARN | {"attention_factor": 0}}, "is not positive"),
        ("llama3-rope", {"rope_parameters": LLAMA3 | {"factor": 1e-320}}, "too small"),
        ("phi3-longrope-long", {"rope_parameters": LONGROPE}, "of 4 divisors"),
        ("llama3-rope", {"rope_parameters": {"rope_type": "llama3"}}, "'rope_parameters.factor'"),
        (
            "hunyuan-moe",
            {"rope_parameters": {"rope_type": "dynamic", "alpha": 0.5}},
            "0.5 is not between",
        ),
        ("gemma2", {"final_logit_softcapping": -1.0}, "is not a cap"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "is not positive"),
        ("gemma3", {"layer_types": ["full_attention"]}, "1 types for 7 layers"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 20}}}, "layer 4 has other heads than"),
        ("gemma4", {"per_layer_config": {"1": {"head_dim": 20}}}, "layer 1 has other heads than"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 0}}}, "'per_layer_config.2.head_dim'"),
        ("gemma4", {"per_layer_config": by_layer(num_key_value_heads=3)}, "3 does not divide the"),
        ("gemma4", {"per_layer_config": by_layer(sliding_window=3)}, "sliding_window of single"),
        ("gemma4", {"per_layer_config": {"2": 20}}, "'per_layer_config.2': it is of type int"),
        ("llama", {"per_layer_config": {"1": {"head_dim": 4}}}, "'per_layer_config': layers of"),
        ("phi3-longrope-long", {"rope_parameters": {"rope_type": "longrope"}}, "of 4 divisors"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_with_its_key(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(BadFolder) as caught:
        decoder(tmp_path, name, **changes)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "feature"),
    [
        ("llama", {"hidden_act": "relu2"}, "activation 'relu2'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, "rope scaling 'dynamic'"),
        ("hunyuan-moe", {"moe_topk": [3, 2]}, "experts that differ by layer (moe_topk)"),
        ("gemma2", {"use_bidirectional_attention": True}, "attention to both sides"),
        (
            "gemma3",
            {"layer_types": ["chunked_attention"] * 7},
            "layers of type 'chunked_attention'",
        ),
    ],
)
def test_a_feature_that_we_lack_is_refused_with_its_name(
    name: str, changes: dict[str, Any], feature: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        decoder(tmp_path, name, **changes)
    assert feature in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "positions of type 'relative_key'"),
        ("bert", {"is_decoder": True}, "the part of a decoder"),
        ("bert", {"hidden_act": "relu"}, "activation 'relu'"),
        ("bert", {"hidden_act": "silu"}, "an activation other than gelu"),
        ("jina-bert-v2", {"feed_forward_type": "original"}, "a feed-forward network of type"),
        ("bert", {"num_key_value_heads": 2}, "heads of their own size"),
        ("bert", {"head_dim": 16}, "heads of their own size"),
        ("nomic-bert", {"hidden_act": "gelu"}, "an activation other than silu"),
        (
            "modern-bert",
            {"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": None},
            "scaled frequencies",
        ),
    ],
)
def test_encoders_with_features_that_we_lack_are_refused(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, {**folder_config(encoder_by_name(name)), **changes})
    with pytest.raises(UnsupportedArchitecture) as caught:
        read_encoder(config, name, PoolingType.MEAN, 0)
    assert reason in str(caught.value)


def test_the_first_files_of_nomic_bert_say_the_same_in_other_words(tmp_path: Path) -> None:
    model = encoder_by_name("nomic-bert")
    expected, _ = read_encoder(
        config_of(tmp_path, folder_config(model)), "nomic", PoolingType.MEAN, 0
    )
    first = {
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "n_embd": 48,
        "n_head": 4,
        "n_inner": 72,
        "n_layer": 2,
        "n_positions": 64,
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "type_vocab_size": 2,
        "vocab_size": 97,
    }
    assert read_encoder(config_of(tmp_path, first), "nomic", PoolingType.MEAN, 0)[0] == expected
    scaled = {**first, "n_positions": 8192, "rotary_scaling_factor": 2, "max_trained_positions": 50}
    found, _ = read_encoder(config_of(tmp_path, scaled), "nomic", PoolingType.MEAN, 0)
    assert found.max_context == 50, "beyond that its frequencies would change with the length"
    for key, value in (("rotary_emb_fraction", 1e308), ("rotary_emb_base", 0.5)):
        with pytest.raises(BadFolder, match=key):
            read_encoder(config_of(tmp_path, {**first, key: value}), "", PoolingType.MEAN, 0)
