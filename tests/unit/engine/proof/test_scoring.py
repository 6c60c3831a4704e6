"""Texts that are computed again, against what the engine found when it wrote them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.backend.optional import Rounding
from rocmforge.backend.step import NO_ADAPTER
from rocmforge.engine.ipc.params import SamplingParams, TokenLogprob
from rocmforge.engine.proof.scoring import Scorer
from rocmforge.models.lora import AdapterSpec
from rocmforge_reference.rounding import to_half, to_int8
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_adapters import TinyAdapter, write_adapter
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.core import make_core, reports
from tests.support.fakes.erring_backend import weights_of
from tests.support.models.options import SMALL
from tests.support.models.runners import load_reference

MODELS = ("llama", "gemma3", "gpt-oss", "deepseek-v2", "lfm2", "qwen35")
ONE = replace(SMALL, max_sequences=1, max_batched_tokens=24)


@pytest.mark.parametrize(
    ("name", "adapter"), [*((name, NO_ADAPTER) for name in MODELS), ("llama", 0)]
)
def test_answers_score_as_the_engine_drew_them(name: str, adapter: int, tmp_path: Path) -> None:
    options = ONE
    if adapter != NO_ADAPTER:
        path = write_adapter(tmp_path / "adapter.gguf", by_name(name), TinyAdapter())
        options = replace(ONE, adapters=(AdapterSpec(name="a", path=str(path)),))
    with ExitStack() as stack:
        runner = load_reference(stack, write_model(by_name(name), tmp_path), options)
        sampling = SamplingParams(
            max_tokens=30, num_logprobs=20, adapter=adapter, seed=3, repetition_penalty=1.3
        )
        tokens, wanted = list(PROMPT[:27]), list[TokenLogprob]()
        for report in reports(make_core(runner, options), [(PROMPT[:27], sampling)]):
            for event in report.events:
                tokens += event.token_ids
                wanted += event.logprobs or ()
        for chunk, places in ((24, range(27, 57)), (1, range(50, 57)), (7, range(1, 57))):
            found = Scorer(runner, chunk).score(tokens, places, 20, adapter)
            assert len(found) == len(places)
            for ours, theirs in zip(found[-7:], wanted[-7:], strict=True):
                assert ours.token_id == theirs.token_id
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
                assert dict(ours.top) == pytest.approx(dict(theirs.top), abs=1e-4)


def test_the_place_behind_the_last_token_has_the_most_probable_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        runner = load_reference(stack, write_model(by_name("llama"), tmp_path), ONE)
        (found,) = Scorer(runner).score(PROMPT[:5], range(5, 6), 3)
        assert found.token_id == found.top[0][0]
        weights_of(runner).output.values[...] = np.nan
        (found,) = Scorer(runner).score(PROMPT[:5], range(5, 6), 3)
        assert (found.token_id, found.top) == (-1, ())


def test_rounding_changes_a_little_and_more_with_fewer_bits(tmp_path: Path) -> None:
    with ExitStack() as stack:
        runner = load_reference(stack, write_model(by_name("llama"), tmp_path), ONE)
        assert isinstance(runner, Rounding)
        places = range(1, len(PROMPT))
        exact = Scorer(runner).score(PROMPT, places, 20)

        def error(kv_dtype: str, activation_bits: int) -> float:
            rounding = runner.rounded(kv_dtype, activation_bits)
            found = Scorer(rounding).score(PROMPT, places, 20)
            return max(abs(a.logprob - b.logprob) for a, b in zip(exact, found, strict=True))

        cases = (("f32", 32), ("f16", 32), ("f16", 16), ("int8", 16), ("int8", 8))
        errors = [error(*case) for case in cases]
        assert errors[0] == 0
        assert errors == sorted(errors)
        assert 1e-5 < errors[1] < errors[2] < 0.02 < 2 * errors[3] < 4 * errors[4] < 2


@pytest.mark.parametrize(("kv_dtype", "activation_bits"), [("f16", 16), ("int8", 8)])
def test_parts_of_a_text_without_places_are_rounded_too(
    kv_dtype: str, activation_bits: int, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        runner = load_reference(stack, write_model(by_name("llama"), tmp_path), ONE)
        assert isinstance(runner, Rounding)
        scorer = Scorer(runner.rounded(kv_dtype, activation_bits), chunk=7)
        last = range(len(PROMPT) - 3, len(PROMPT))
        assert scorer.score(PROMPT, last, 3) == scorer.score(PROMPT, range(1, len(PROMPT)), 3)[-3:]


def test_numbers_are_rounded_as_said() -> None:
    x = np.array([[1.0, 0.5, 1 / 3, -1e9], [254.0, 1.0, 0.9, 0.0]], np.float32)
    assert to_half(x)[0].tolist() == [1.0, 0.5, 0.333251953125, -65504.0]
    assert to_int8(x, 4)[1].tolist() == [254.0, 0.0, 0.0, 0.0]
    assert to_int8(x[1:], 2)[0].tolist() == pytest.approx([254.0, 0.0, 0.9, 0.0])
