"""Devices with int8 caches, judged against a reference that has such a cache."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.backend.optional import Rounding
from rocmforge.engine.proof.bounds import bounds_for
from rocmforge.engine.proof.messages import Begin, Checked, Sample
from rocmforge.engine.proof.process import Checker, load_reference
from rocmforge.engine.proof.scoring import Scorer
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.recording import rows_of
from tests.support.fakes.erring_backend import spoil_layer, weights_of
from tests.support.models.hip import quantized, write_quantized
from tests.support.models.options import SMALL
from tests.support.models.runners import load_reference as load_runner

ONE = replace(SMALL, max_sequences=1)
TEXTS = (PROMPT[:40], PROMPT[3:40], PROMPT[::-1][:40], PROMPT[5:35])
ORDER = 2.0**-11
"""Changes of weights that stand for another order of additions."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_quantized(quantized(by_name("llama"), "q4_k"), "q4_k", folder)


def checked(model: Path, wrong_layer: int | None, kv_dtype: str) -> Checked:
    """The last verdict on a device that is the reference with other weights, and rounds."""
    rng = np.random.default_rng(9)
    with ExitStack() as stack:
        device = load_runner(stack, model, ONE)
        for layer in weights_of(device).layers:
            for matrix in (layer.attention.output.values, layer.feed_forward.down.values):
                matrix *= 1 + ORDER * rng.standard_normal(matrix.shape).astype(np.float32)
        if wrong_layer is not None:
            spoil_layer(device, wrong_layer)
        runner = replace(device.info, kv_dtype=kv_dtype, activation_bits=16)
        begin = Begin(
            model=str(model),
            identity=None,
            runner=runner,
            options=ONE,
            bounds=bounds_for(runner, None),
            bundles=None,
            log_level="WARNING",
            log_format="text",
        )
        exact, rounding = (stack.enter_context(closing(each)) for each in load_reference(begin))
        checker = Checker(begin, exact, rounding)
        assert isinstance(device, Rounding)
        rounded = Scorer(device.rounded(kv_dtype, 16))
        for number, text in enumerate(TEXTS):
            found = rounded.score(text, range(4, len(text)), 20)
            sample = Sample(number=number, tokens=text, first=4, rows=rows_of(found), adapter=-1)
            verdict = checker.check(sample)
    return verdict


@pytest.mark.parametrize("kv_dtype", ["int8", "k8v4"])
def test_one_percent_in_a_layer_is_found_and_what_is_right_raises_no_alarm(
    model: Path, kv_dtype: str
) -> None:
    right = checked(model, None, kv_dtype)
    assert right.alarm is None
    assert right.error == pytest.approx(right.expected, rel=0.5)
    assert "times what rounding" in str(checked(model, 0, kv_dtype).alarm)
