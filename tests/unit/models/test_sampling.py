"""Recommendations of sampling are read, checked, and given way to what operators say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocmforge.errors import BadGguf, ConfigurationError
from rocmforge.gguf.checkpoint import open_gguf_checkpoint
from rocmforge.model_front import read_front
from rocmforge.models.sampling import UNRECOMMENDED, SamplingDefaults
from rocmforge.settings import Settings
from tests.support.models.speaking import write_speaking


def speaking(folder: Path, **keys: Any) -> Path:
    return write_speaking(folder, "llama", {f"general.sampling.{k}": v for k, v in keys.items()})


def defaults(path: Path, *given: str) -> SamplingDefaults:
    return read_front(str(path), Settings(sampling=given)).sampling


def test_the_keys_of_a_gguf_file_are_read(tmp_path: Path) -> None:
    path = speaking(tmp_path, temp=0.5, top_k=20, penalty_repeat=1.25)
    expected = SamplingDefaults(temperature=0.5, top_k=20, repetition_penalty=1.25)
    assert defaults(path) == expected


def test_without_a_recommendation_the_unlikely_is_cut_off(tmp_path: Path) -> None:
    assert defaults(speaking(tmp_path)) == UNRECOMMENDED


def test_what_the_operator_says_goes_before(tmp_path: Path) -> None:
    path = speaking(tmp_path, temp=0.5, top_k=20)
    found = defaults(path, "temperature=0", "top_k=-1", "min_p=0.25")
    assert found == SamplingDefaults(temperature=0.0, top_k=0, min_p=0.25)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("temp", -1.0, "'general.sampling.temp': temperature: -1 is not between 0 and 2"),
        ("temp", float("nan"), "temperature: nan is not between 0 and 2"),
        ("top_k", 2.5, "'general.sampling.top_k'"),
    ],
)
def test_a_recommendation_that_makes_no_sense_is_refused_with_its_key(
    tmp_path: Path, key: str, value: float, reason: str
) -> None:
    with pytest.raises(BadGguf, match=reason):
        open_gguf_checkpoint(speaking(tmp_path, **{key: value}))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("temperature=3", "--sampling temperature=3: temperature: 3 is not between 0 and 2"),
        ("warmth=1", "'warmth' is none of temperature, top_k"),
        ("top_k=2.5", "2.5 is no number of tokens"),
        ("temperature", "--sampling temperature: write it as NAME=NUMBER"),
        ("temperature=hot", "--sampling temperature=hot: write it as NAME=NUMBER"),
    ],
)
def test_what_the_operator_cannot_mean_is_refused(tmp_path: Path, given: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        defaults(speaking(tmp_path), given)


def test_defaults_are_said_in_words() -> None:
    assert str(UNRECOMMENDED) == "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05"
    assert str(SamplingDefaults()) == "temperature 1"
