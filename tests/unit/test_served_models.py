"""Which models a command line and a file name, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rocmforge import cli, setting_sources
from rocmforge.errors import ConfigurationError
from rocmforge.served_models import ModelSettings, served_models

Load = Callable[..., tuple[ModelSettings, ...]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """The models of a command line and of the text of a file."""

    def load(*given: str, file: str = "", **flags: object) -> tuple[ModelSettings, ...]:
        config = tmp_path / "rocmforge.toml"
        config.write_text(file)
        return served_models(given, setting_sources.load(flags, config))

    return load


def names(models: tuple[ModelSettings, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(model.path, model.settings.served_model_name) for model in models]


def test_one_model_keeps_the_names_of_the_flag(load: Load) -> None:
    assert names(load("a.gguf", served_model_name=["x", "y"])) == [("a.gguf", ("x", "y"))]


def test_models_come_from_the_command_line_and_from_tables(load: Load) -> None:
    models = load(
        "a.gguf",
        model=["b=dir/b=1.gguf"],
        file='[models.c]\npath = "c.gguf"\naliases = ["d"]\n',
    )
    assert names(models) == [
        ("a.gguf", ()),
        ("dir/b=1.gguf", ("b",)),
        ("c.gguf", ("c", "d")),
    ]


def test_a_table_changes_settings_for_its_model_only(load: Load) -> None:
    first, second = load(
        "a.gguf",
        max_context="512",
        file="""
        idle_unload = 60
        [models.b]
        path = "b.gguf"
        max_context = 1024
        load = "request"
        device = "1"
        pinned = true
        memory_share = 0.25
        """,
    )
    assert (first.settings.max_context, second.settings.max_context) == (512, 1024)
    assert (first.settings.load, second.settings.load) == ("start", "request")
    assert (first.settings.device, second.settings.device) == (None, "1")
    assert (first.settings.idle_unload, second.settings.idle_unload) == (60, 60)
    assert (second.pinned, second.memory_share) == (True, 0.25)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ('path = "b.gguf"\nport = 1', r"\[models.b\]: 'port' is not a setting of one model"),
        ('path = "b.gguf"\nmax_context = 1', r"\[models.b\]: max_context = 1"),
        ("max_context = 512", r"\[models.b\]: .*`path`"),
        ('path = "b.gguf"\nmemory_share = 2', r"\[models.b\]: .*memory_share"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(load: Load, table: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        load(file=f"[models.b]\n{table}\n")


def test_no_model_at_all_is_refused(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="no model to serve"):
        load()


def test_one_name_for_several_models_is_refused(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="--model NAME=PATH"):
        load("a.gguf", "b.gguf", served_model_name=["x"])


@pytest.mark.parametrize("text", ["b.gguf", "=b.gguf", "b="])
def test_a_model_without_a_name_or_a_path_is_refused(load: Load, text: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME=PATH"):
        load(model=[text])


def test_more_models_at_the_start_than_may_be_loaded_are_refused(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="--load request"):
        load("a.gguf", "b.gguf", max_loaded_models="1")
    assert len(load("a.gguf", "b.gguf", max_loaded_models="1", load="request")) == 2


def test_serve_takes_several_models_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    told = capsys.readouterr().out
    assert "[MODEL ...]" in told
    for flag in (
        "--model ",
        "--load ",
        "--idle-unload ",
        "--max-loaded-models ",
        "--load-timeout ",
    ):
        assert flag in told
    assert cli.main(["serve"]) == 2
    assert "no model to serve" in capsys.readouterr().err
