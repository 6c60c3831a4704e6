"""The kernels of logits processors in numba's CUDA simulator: thread by thread, in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocmforge.errors import ConfigurationError
from rocmforge.logits import Parameter, logits_processor, nucleus
from rocmforge_hip.jit.source import kernel_source

pytestmark = pytest.mark.slow

UNCHANGED = {"dry, 0 tokens", "dry, 1 tokens", "typical 1.0", "xtc, never"}


def test_kernels_compute_what_numpy_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.launches.simulated_processors"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) > 20
    wrong = [each for each in results if each["difference"] is None or each["difference"] > 1e-5]
    assert wrong == []
    assert {each["name"] for each in results if not each["changed"]} == UNCHANGED


def test_a_processor_that_keeps_too_much_for_each_token_is_refused() -> None:
    needs = []
    for index in range(3):

        def score(logit: float) -> tuple[float, float]:
            return logit, 1.0

        score.__name__ = f"score{index}"
        needs.append(nucleus(share="p")(score))

    @logits_processor("greedy_for_memory", parameters=(Parameter("p", 0.5),), needs=needs)
    def greedy_for_memory(logit: float) -> float:
        return logit

    with pytest.raises(ConfigurationError, match="keeps 6 numbers") as raised:
        kernel_source(greedy_for_memory)
    assert "test_processor_kernels.py" in str(raised.value)
