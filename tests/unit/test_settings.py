"""Settings merge file < environment < flags, and every mistake is named with its source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmforge import setting_sources, settings
from rocmforge.errors import ConfigurationError
from rocmforge.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in settings.options():
        monkeypatch.delenv(option.variable, raising=False)


def test_defaults_bind_to_loopback() -> None:
    assert setting_sources.load({}).host == "127.0.0.1"


def test_flags_win_over_environment_and_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "rocmforge.toml"
    config.write_text('port = 1\nmax_sequences = 1\nbackend = "file"\n')
    monkeypatch.setenv("ROCMFORGE_PORT", "2")
    monkeypatch.setenv("ROCMFORGE_MAX_SEQUENCES", "2")
    merged = setting_sources.load({"port": "3"}, config)
    assert (merged.port, merged.max_sequences, merged.backend) == (3, 2, "file")


def test_a_list_is_separated_by_commas_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_API_KEY", "first-key, second-key")
    assert setting_sources.load({}).api_key == ("first-key", "second-key")
    monkeypatch.setenv("ROCMFORGE_CORS_ORIGIN", "")
    assert setting_sources.load({}).cors_origin == ()


@pytest.mark.parametrize("key", ["", "s3cret", " "])
def test_a_short_key_is_refused_wherever_it_comes_from_and_never_repeated(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "keys.toml"
    config.write_text(f'api_key = ["long-enough", "{key}"]')
    refused = pytest.raises(ConfigurationError, match="at least 8 characters")
    with refused as by_flag:
        setting_sources.load({"api_key": [key]})
    with refused as by_file:
        setting_sources.load({}, config)
    monkeypatch.setenv("ROCMFORGE_API_KEY", key)
    with refused as by_variable:
        setting_sources.load({})
    for raised in (by_flag, by_file, by_variable):
        assert "long-enough" not in str(raised.value)
        assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("name", ["keys_file", "tls_certificate", "tls_key"])
def test_an_empty_name_of_a_file_is_not_taken_for_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="not empty"):
        setting_sources.load({name: ""})
    monkeypatch.setenv(settings.variable_of(name), "")
    with pytest.raises(ConfigurationError, match="not empty"):
        setting_sources.load({})


def test_a_flag_without_value_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCMFORGE_INSECURE", "true")
    assert setting_sources.load({}).insecure


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("port", "70000", "a whole number from 0 to 65535"),
        ("port", "eighty", "a whole number from 0 to 65535"),
        ("max_context", "1", "a whole number, at least 16"),
        ("max_body_bytes", "1", "a whole number, at least 1024"),
        ("memory_utilization", "0", "a number, above 0 and at most 1"),
        ("idle_unload", "0", "a number, above 0"),
        ("kv_dtype", "f8", "one of: auto, f32, f16, int8, k8v4"),
        ("metrics_compat", "tgi", "one of: vllm"),
        ("insecure", "perhaps", "true or false"),
    ],
)
def test_a_value_that_does_not_fit_is_answered_with_what_fits(
    name: str, value: str, wanted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    option = next(each for each in settings.options() if each.name == name)
    with pytest.raises(ConfigurationError, match=f"^{option.flag} {value}: .*{wanted}"):
        setting_sources.load({name: [value] if option.is_list else value})
    config = tmp_path / "bad.toml"
    config.write_text(f'{name} = "{value}"')
    with pytest.raises(ConfigurationError, match=rf'bad\.toml: {name} = "{value}": .*{wanted}'):
        setting_sources.load({}, config)
    monkeypatch.setenv(option.variable, value)
    with pytest.raises(ConfigurationError, match=f"^{option.variable}={value}: .*{wanted}"):
        setting_sources.load({})


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_PROT", "80")
    with pytest.raises(
        ConfigurationError, match=r"ROCMFORGE_PROT is not a setting.*ROCMFORGE_PORT"
    ):
        setting_sources.load({})


@pytest.mark.parametrize("variable", ["ROCMFORGE_TEST_SMOLLM2", "ROCMFORGE_KERNEL_TARGETS"])
def test_variables_of_tests_and_build_are_not_settings(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert setting_sources.load({}) == Settings()


def test_an_unknown_key_in_the_file_is_refused_with_the_file_name(tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text("prot = 80")
    with pytest.raises(ConfigurationError, match=r"bad\.toml: 'prot' is not a setting"):
        setting_sources.load({}, config)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text("port: 80")
    with pytest.raises(ConfigurationError, match=r"bad\.toml is not valid TOML"):
        setting_sources.load({}, config)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Cannot read"):
        setting_sources.load({}, tmp_path / "none.toml")


def test_every_setting_has_a_description() -> None:
    assert [option.name for option in settings.options() if not option.description] == []


def test_loading_leaves_the_environment_alone() -> None:
    before = dict(os.environ)
    setting_sources.load({})
    assert dict(os.environ) == before


def test_a_wrong_choice_is_answered_with_the_right_ones() -> None:
    with pytest.raises(ConfigurationError, match="must be one of: auto, f32, f16, int8, k8v4"):
        setting_sources.load({"kv_dtype": "f99"})


@pytest.mark.parametrize(
    ("name", "value", "example"),
    [
        ("host_cache", "-1", "24GiB or 512MiB"),
        ("cache_dir_size", "32gigs", "24GiB or 512MiB"),
        ("otlp_endpoint", "collector:4318", "http://127.0.0.1:4318"),
    ],
)
def test_text_of_a_wrong_form_is_answered_with_examples(
    name: str, value: str, example: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        setting_sources.load({name: value})
    flag = f"--{name.replace('_', '-')}"
    assert str(caught.value) == f"{flag} {value}: the value must be text such as {example}."


def test_a_model_has_a_name() -> None:
    with pytest.raises(ConfigurationError, match=r"--served-model-name '': .* not empty"):
        setting_sources.load({"served_model_name": [""]})
