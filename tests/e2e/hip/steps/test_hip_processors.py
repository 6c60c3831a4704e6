"""Logits processors on the HIP backend: compiled on a GPU, through the host on the host platform.

With `--platform nvidia` or `--platform rocm` the same tests run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.protocol import Runner
from rocmforge.engine.ipc.params import ProcessorUse, SamplingParams
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.logits.builtin import typical_p
from rocmforge_hip.backend import create as create_hip
from rocmforge_hip.run.runner import HipRunner
from rocmforge_reference.backend import create as create_reference
from tests.backend.driving import Chunk, Want, make_step
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.core import make_core, tokens_of
from tests.support.files.distribution import WALK, install
from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.processors import one_use
from tests.support.models.hip import fitting, platform_options, started_platform
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

VOCAB = 97
TYPICAL = ProcessorUse(name="typical_p", numbers=(0.6,))
XTC = ProcessorUse(name="xtc", numbers=(0.5, 0.05))
DRY = ProcessorUse(name="dry", numbers=(2.0, 1.75, 1.0, -1.0), token_set=bytes(16), window=-1)


def walk(step: int) -> ProcessorUse:
    return ProcessorUse(name="walk", numbers=(float(step),), window=-1)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A distribution with the processor `walk`, for this process and the compiler's."""
    folder = tmp_path_factory.mktemp("walk")
    install(folder, "walk", WALK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def platform(request: pytest.FixtureRequest, installed: Path) -> Iterator[HostPlatform | None]:
    with started_platform(platform_options(request)) as host:
        yield host


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(fitting(by_name("llama")), tmp_path_factory.mktemp("model"))


@pytest.fixture
def runner(platform: HostPlatform | None, model: Path) -> Iterator[HipRunner]:
    with closing(load_file(create_hip(), model, SMALL)) as runner:
        assert isinstance(runner, HipRunner)
        yield runner
    if platform:
        assert platform.take_finding() == ""


@pytest.fixture
def reference(installed: Path, model: Path) -> Iterator[Runner]:
    with closing(load_file(create_reference(), model, SMALL)) as runner:
        yield runner


def generate(
    runner: Runner, requests: Sequence[tuple[Sequence[int], SamplingParams]]
) -> tuple[list[list[int]], EngineStats]:
    """Tokens of each request, through the engine, with two steps in flight."""
    return tokens_of(make_core(runner, SMALL), requests)


def params(*uses: ProcessorUse, max_tokens: int = 12, **settings: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, processors=uses, **settings)


def test_a_processor_of_the_users_sees_every_token_in_time(runner: HipRunner) -> None:
    requests = [
        (PROMPT[:30], params(walk(5))),
        (PROMPT[:3], params(walk(11), temperature=0.0)),
        (PROMPT[4:9], params(DRY, walk(1))),
    ]
    tokens, _ = generate(runner, requests)
    for (prompt, sampling), got in zip(requests, tokens, strict=True):
        step = int(sampling.processors[-1].numbers[0])
        assert got == [(prompt[-1] + step * (i + 1)) % VOCAB for i in range(12)]


def test_what_runs_on_the_host_is_counted_and_noted(runner: HipRunner) -> None:
    _, stats = generate(runner, [(PROMPT[:5], params(walk(2))), (PROMPT[:5], params())])
    if any("compiled for" in note for note in runner.info.notes):
        assert stats.totals.host_processed_rows == 0
    else:
        assert any("run on the host" in note for note in runner.info.notes)
        assert stats.totals.host_processed_rows >= 12


@pytest.mark.parametrize("uses", [(TYPICAL,), (XTC,), (DRY,), (DRY, TYPICAL, XTC)])
def test_tokens_do_not_depend_on_the_batch(uses: Sequence[ProcessorUse], runner: HipRunner) -> None:
    request = (PROMPT[:7], params(*uses, seed=4))
    others = [(PROMPT[:20], params(seed=1)), (PROMPT[3:9], params(walk(3), TYPICAL, seed=2))]
    alone, _ = generate(runner, [request])
    together, _ = generate(runner, [*others, request])
    assert together[2] == alone[0]


@pytest.mark.parametrize("uses", [(TYPICAL,), (XTC,), (DRY,), (DRY, TYPICAL, XTC)])
def test_draws_are_those_of_the_reference(
    uses: Sequence[ProcessorUse], runner: HipRunner, reference: Runner
) -> None:
    requests = [
        (PROMPT[start : start + 12], params(*uses, seed=start, max_tokens=1)) for start in range(30)
    ]
    ours, _ = generate(runner, requests)
    theirs, _ = generate(reference, requests)
    plain, _ = generate(
        reference, [(prompt, params(seed=s.seed, max_tokens=1)) for prompt, s in requests]
    )
    agreed = sum(a == b for a, b in zip(ours, theirs, strict=True))
    changed = sum(a != b for a, b in zip(theirs, plain, strict=True))
    assert agreed >= 28  # logits differ in their last bits
    assert changed >= 1 or uses == (DRY,)


def test_processors_cost_no_copies_where_they_are_compiled(runner: HipRunner) -> None:
    def copies(*uses: ProcessorUse) -> int:
        before = runner.driver.copies_to_device + runner.driver.copies_to_host
        generate(runner, [(PROMPT[:5], params(*uses))])
        return runner.driver.copies_to_device + runner.driver.copies_to_host - before

    is_compiled = any("compiled for" in note for note in runner.info.notes)
    assert (copies(TYPICAL, XTC) == copies()) is is_compiled


def test_processors_see_what_a_late_mask_left(runner: HipRunner) -> None:
    allowed = [10, 20, 30, 40, 50]
    holds = np.isin(np.arange(-(-VOCAB // 32) * 32), allowed)
    mask = np.tile(np.packbits(holds, bitorder="little").view(np.uint32), (2, 1))
    chunk = Chunk(tokens=PROMPT[:9], blocks=[0], wants=[Want(), Want()])
    step = make_step(0, [chunk], runner.info.block_size)
    use = one_use(typical_p, VOCAB, p=0.0)
    sampling = replace(
        step.sampling,
        allowed=mask,
        is_masked_later=True,
        processors=replace(
            use,
            history_offsets=np.zeros(3, np.int32),
            prompt_lengths=np.zeros(2, np.int32),
        ),
    )
    runner.submit(replace(step, sampling=sampling))
    runner.constrain(mask)
    typical, plain = runner.collect().token_ids.tolist()
    assert typical in allowed
    assert plain in allowed
