"""What a Serve config says becomes settings, and how many replicas it asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocmforge.errors import ConfigurationError
from rocmforge.ray.autoscaling import FirstTokenPolicy
from rocmforge.ray.serve_args import read_settings
from rocmforge.served_models import served_models


def test_args_have_the_names_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "rocmforge.toml"
    file.write_text('max_waiting = 3\nresume = true\n[models.chat]\npath = "a.gguf"\n')
    settings = read_settings({"config": str(file), "max_waiting": 5})
    assert (settings.max_waiting, settings.resume) == (5, True)
    assert [model.path for model in served_models((), settings)] == ["a.gguf"]
    assert read_settings({"model": "x=b.gguf"}).model == ("x=b.gguf",)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_contxt": 1}, "max_context"),
        ({"max_waiting": "many"}, "args: max_waiting"),
        ({"port": 9000}, "http_options"),
        ({"tls_key": "k.pem"}, "http_options"),
        ({"api_key": ["a secret key"]}, "keys_file"),
    ],
)
def test_args_that_make_no_sense_are_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        read_settings(args)
    assert "a secret key" not in refused.value.message


def test_without_ray_it_is_said_what_to_install() -> None:
    program = "import sys; sys.modules['ray'] = None; from rocmforge.ray import app"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'rocmforge[ray]'" in done.stderr.splitlines()[-1]


def wanted(replicas: int, requests: float, first_token_s: float) -> float:
    context: Any = SimpleNamespace(
        current_num_replicas=replicas,
        total_num_requests=requests,
        aggregated_metrics={"first_token_s": {"a": 0.1, "b": first_token_s}},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 10.0),
    )
    return FirstTokenPolicy(target_first_token_s=2.0)(context)[0]


def test_queues_and_late_first_tokens_ask_for_replicas() -> None:
    assert wanted(2, requests=35, first_token_s=0.5) == 3.5
    assert wanted(2, requests=15, first_token_s=2.5) == 3
    assert wanted(2, requests=55, first_token_s=2.5) == 5.5
    assert wanted(2, requests=0, first_token_s=2.5) == 0, "nobody waits"
