"""Configurations from metadata: facts of each architecture, and refusals that name the key."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pytest

from rocmforge.errors import BadGguf, ModelLoadError, UnsupportedArchitecture
from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.forward.ops import attention_specs
from rocmforge.models.rope_config import RopeScaling, RopeScalingKind, RopeStyle
from tests.data.models.text.model_files import gguf_metadata, write_model
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import MODELS, by_name
from tests.support.files.gguf_writer import Value, write_gguf


def config_of(
    folder: Path,
    model: str = "llama",
    changes: Mapping[str, Value] | None = None,
    drop: Collection[str] = (),
) -> ModelConfig:
    """The configuration of a tiny model with changed and dropped keys of its architecture."""
    metadata = gguf_metadata(by_name(model))
    prefix = metadata["general.architecture"]
    for key in drop:
        del metadata[f"{prefix}.{key}"]
    metadata |= {f"{prefix}.{key}": value for key, value in (changes or {}).items()}
    path = write_gguf(folder / "model.gguf", metadata, {"x": np.zeros(32, np.float32)})
    with open_gguf(path) as file:
        return read_config(file)


def windows(config: ModelConfig) -> tuple[int | None, ...]:
    return tuple(layer.window for layer in config.layers)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_sizes_are_those_of_the_file(model: TinyModel, tmp_path: Path) -> None:
    with open_gguf(write_model(model, tmp_path)) as file:
        config = read_config(file)
    assert config.architecture == model.architecture
    assert config.name == model.name
    assert config.hidden_size == model.config["hidden_size"]
    assert config.num_layers == model.config["num_hidden_layers"]
    one_part = FAMILIES[config.architecture].has_one_part
    for layer in config.layers:
        has_size = not layer.experts and not (one_part and (layer.num_heads or layer.state_shapes))
        is_wide = layer.cache_of is not None and "use_double_wide_mlp" in model.config
        size = (1 + is_wide) * model.config["intermediate_size"]
        assert layer.intermediate_size == (size if has_size or layer.norms_values else 0)
        if layer.state_shapes or not layer.num_heads:
            assert (layer.num_heads, layer.cached_features) == (0, 0)
            continue
        assert layer.num_heads == model.config["num_attention_heads"]
        if layer.latent is not None:
            rank, rotary_dim = model.config["kv_lora_rank"], model.config["qk_rope_head_dim"]
            sizes = layer.num_kv_heads, layer.key_dim, layer.value_dim
            assert sizes == (1, rotary_dim + rank, rank)
            continue
        assert layer.key_dim == layer.value_dim
        if model.architecture != "gemma4":  # whose heads differ by layer
            assert layer.num_kv_heads == model.config["num_key_value_heads"]
            assert layer.key_dim == model.head_dim
    assert config.vocab_size == model.config["vocab_size"]
    scale = model.config.get("residual_multiplier", 1.0)
    assert config.norm_eps == pytest.approx(model.norm_eps / scale**2)


def test_every_architecture_has_a_tiny_model() -> None:
    """Those that differ from others by images alone are among the models with towers."""
    with_images = {"qwen2vl", "qwen3vl", "qwen3vlmoe"}
    assert {model.architecture for model in MODELS} | with_images == {
        name for name, family in FAMILIES.items() if family.causal
    }


@pytest.mark.parametrize(
    ("architecture", "style"),
    [
        ("llama", RopeStyle.NORMAL),
        ("glm4", RopeStyle.NORMAL),
        ("qwen2", RopeStyle.NEOX),
        ("qwen3", RopeStyle.NEOX),
        ("gemma2", RopeStyle.NEOX),
        ("gemma3", RopeStyle.NEOX),
        ("phi3", RopeStyle.NEOX),
    ],
)
def test_rope_style(architecture: str, style: RopeStyle, tmp_path: Path) -> None:
    assert config_of(tmp_path, architecture).rope_of(local=False).style is style


def test_gemma2_alternates_windows_and_caps_scores(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma2", drop=("attention.sliding_window",))
    assert windows(config) == (4096, None, 4096)
    assert (config.attention_softcap, config.logit_softcap) == (5.0, 3.0)
    assert config.activation is ActivationFunction.GELU_TANH
    assert config.embedding_scale == pytest.approx(math.sqrt(48))
    assert not any(spec.local_rope for spec in attention_specs(config))


def test_gemma3_has_a_full_layer_after_five_local_ones(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3", drop=("rope.freq_base_swa",))
    assert windows(config) == (7, 7, 7, 7, 7, None, 7)
    assert config.rope_of(local=True).theta == 10000.0
    specs = attention_specs(config)
    assert [spec.local_rope for spec in specs] == [window is not None for window in windows(config)]


def test_a_window_pattern_in_the_file_wins(tmp_path: Path) -> None:
    flags = np.array([True, False, True, False, False, False, True])
    config = config_of(tmp_path, "gemma3", {"attention.sliding_window_pattern": flags})
    assert windows(config) == (7, None, 7, None, None, None, 7)
    config = config_of(tmp_path, "gemma3", {"attention.sliding_window_pattern": 3})
    assert windows(config) == (7, 7, None, 7, 7, None, 7)


def test_gemma3_without_a_window_is_full_everywhere(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3", drop=("attention.sliding_window",))
    assert windows(config) == (None,) * 7
    assert not any(spec.local_rope for spec in attention_specs(config))


def test_phi3_has_the_window_in_every_layer(tmp_path: Path) -> None:
    assert windows(config_of(tmp_path, "phi3")) == (11, 11)
    assert windows(config_of(tmp_path, "phi3", {"attention.sliding_window": 0})) == (None, None)


def test_llama_takes_no_window(tmp_path: Path) -> None:
    assert windows(config_of(tmp_path, changes={"attention.sliding_window": 8})) == (None, None)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_scores_by_width_per_head(
    architecture: str, layers: int, tmp_path: Path
) -> None:
    wide = config_of(tmp_path, architecture, {"block_count": layers})
    assert wide.layers[0].attention_scale == pytest.approx((48 / 4) ** -0.5)
    usual = config_of(tmp_path, architecture)
    assert usual.layers[0].attention_scale == pytest.approx(usual.layers[0].key_dim ** -0.5)


def test_granite_may_say_that_it_does_not_rotate(tmp_path: Path) -> None:
    assert config_of(tmp_path, "granite").rope_of(local=False).rotary_dim == 8
    assert config_of(tmp_path, "granite", {"rope.scaling.finetuned": False}).rope is None


def test_granite_without_scales_is_as_any_other(tmp_path: Path) -> None:
    scales = ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")
    config = config_of(tmp_path, "granite", drop=scales)
    assert (config.embedding_scale, config.logit_scale) == (1, 1)
    assert config.norm_eps == pytest.approx(1e-2)
    assert config.layers[0].attention_scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("granite", "residual_scale", -1.0),
        ("granite", "logit_scale", math.inf),
        ("granite", "attention.scale", -1.0),
        ("mistral3", "attention.temperature_scale", -0.1),
        ("mistral3", "rope.scaling.yarn_log_multiplier", math.nan),
        ("mistral3", "rope.scaling.type", "none"),  # the temperature has no context to go by
    ],
)
def test_a_scale_that_cannot_be_is_refused(
    model: str, key: str, value: Value, tmp_path: Path
) -> None:
    with pytest.raises(BadGguf, match=r"scale|multiplier"):
        config_of(tmp_path, model, {key: value})


def test_kv_heads_default_to_heads_and_head_size_to_its_share(tmp_path: Path) -> None:
    config = config_of(tmp_path, drop=("attention.head_count_kv",))
    assert {(layer.num_kv_heads, layer.key_dim) for layer in config.layers} == {(6, 8)}


def test_rope_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path, drop=("rope.freq_base", "rope.dimension_count"))
    rope = config.rope_of(local=False)
    assert (rope.theta, rope.rotary_dim, rope.scaling) == (10000.0, 8, None)
    assert config.local_rope is None


def test_yarn_gain_defaults_to_the_papers_and_extends_the_context(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        changes={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    )
    assert config.rope_of(local=False).scaling == RopeScaling(
        kind=RopeScalingKind.YARN,
        factor=4.0,
        original_context=64,
        attention_factor=0.1 * math.log(4) + 1,
    )
    assert config.max_context == 256


def test_linear_scaling_may_be_under_its_old_key(tmp_path: Path) -> None:
    scaling = config_of(tmp_path, changes={"rope.scale_linear": 2.0}).rope_of(local=False).scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor) == (RopeScalingKind.LINEAR, 2.0)


def test_scaling_by_one_and_none_are_no_scaling(tmp_path: Path) -> None:
    by_one: dict[str, Value] = {"rope.scaling.factor": 1.0}
    none: dict[str, Value] = {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}
    for changes in (by_one, none):
        assert config_of(tmp_path, changes=changes).rope_of(local=False).scaling is None


def test_vocabulary_is_counted_where_a_tokenizer_is_present(tmp_path: Path) -> None:
    metadata = gguf_metadata(by_name("llama"))
    del metadata["llama.vocab_size"]
    metadata["tokenizer.ggml.tokens"] = ["a", "b", "c"]
    path = write_gguf(tmp_path / "model.gguf", metadata, {"x": np.zeros(32, np.float32)})
    with open_gguf(path) as file:
        assert read_config(file).vocab_size == 3


def test_a_vocabulary_that_contradicts_the_tokenizer_is_refused(tmp_path: Path) -> None:
    metadata = gguf_metadata(by_name("llama"))
    metadata["tokenizer.ggml.tokens"] = ["a", "b", "c"]
    path = write_gguf(tmp_path / "model.gguf", metadata, {"x": np.zeros(32, np.float32)})
    with open_gguf(path) as file, pytest.raises(BadGguf, match=r"llama\.vocab_size.*97.*3 tokens"):
        read_config(file)


@pytest.mark.parametrize(
    "key",
    [
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "context_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "vocab_size",
    ],
)
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(BadGguf, match=rf"llama\.{key}"):
        config_of(tmp_path, drop=(key,))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_length", 0),
        ("block_count", 0),
        ("block_count", 1001),
        ("attention.head_count_kv", 4),  # does not divide the six heads
        ("attention.head_count", 5),  # does not divide the width
        ("attention.value_length", 7),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", math.nan),
        ("attn_logit_softcapping", -1.0),
        ("final_logit_softcapping", math.inf),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 10),
        ("rope.freq_base", 0.0),
        ("rope.freq_base_swa", 5.0),
        ("rope.scaling.factor", -2.0),
        ("rope.scaling.factor", math.inf),
        ("block_count", "two"),
        ("block_count", 2.0),
        ("nextn_predict_layers", 2),  # of two layers
        ("nextn_predict_layers", 1.0),
    ],
)
def test_a_senseless_value_is_refused_with_its_key(key: str, value: Value, tmp_path: Path) -> None:
    with pytest.raises(BadGguf, match=rf"llama\.{key}"):
        config_of(tmp_path, changes={key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("logit_scale", 0.0), ("logit_scale", None), ("attention.sliding_window", 0)],
)
def test_muse_that_cannot_be_served_is_refused_with_its_key(
    key: str, value: Value | None, tmp_path: Path
) -> None:
    changes = {} if value is None else {key: value}
    with pytest.raises(BadGguf, match=rf"muse-glimmer\.{key}"):
        config_of(tmp_path, "muse-glimmer", changes, drop=(key,) if value is None else ())


def test_too_few_window_flags_are_refused(tmp_path: Path) -> None:
    flags = np.array([True, False])
    with pytest.raises(BadGguf, match=r"sliding_window_pattern.*2 flags for 7 layers"):
        config_of(tmp_path, "gemma3", {"attention.sliding_window_pattern": flags})


@pytest.mark.parametrize("architecture", ["mamba", "llama4", "gemma"])
def test_an_unknown_architecture_is_refused_with_the_known_ones(
    architecture: str, tmp_path: Path
) -> None:
    path = write_gguf(
        tmp_path / "model.gguf",
        {"general.architecture": architecture},
        {"x": np.zeros(32, np.float32)},
    )
    with open_gguf(path) as file, pytest.raises(UnsupportedArchitecture) as caught:
        read_config(file)
    assert caught.value.architecture == architecture
    towers = {name for name, family in FAMILIES.items() if family.is_tower}
    assert set(caught.value.supported) | towers == set(FAMILIES)


def test_a_tower_is_refused_as_a_model_with_the_flag_that_takes_it(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "mmproj.gguf",
        {"general.architecture": "clip"},
        {"x": np.zeros(32, np.float32)},
    )
    with (
        open_gguf(path) as file,
        pytest.raises(ModelLoadError, match=f"tower for images.*--mmproj {path}"),
    ):
        read_config(file)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.clamp_kqv", 8.0),
        ("rope.scaling.type", "dynamic"),
        ("rope.dimension_sections", np.array([4, 2, 2, 0], np.int32)),
    ],
)
def test_an_unsupported_feature_is_refused_with_its_key(
    key: str, value: Value, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedArchitecture, match=key):
        config_of(tmp_path, changes={"rope.scaling.factor": 2.0, key: value})
