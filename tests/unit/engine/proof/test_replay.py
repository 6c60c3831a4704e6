"""Bundles: what they hold, and what comes of computing them again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from msgspec import structs

from rocmforge.backend import registry
from rocmforge.backend.protocol import LoadOptions
from rocmforge.cli import main
from rocmforge.engine.ipc.params import SamplingParams, TokenLogprob
from rocmforge.engine.proof.bounds import Bounds
from rocmforge.engine.proof.bundle import MOST_FILES, MOST_PLACES, read_bundle, write_bundle
from rocmforge.engine.proof.messages import Begin, BundlePolicy, Sample
from rocmforge.engine.proof.process import Checker, load_reference
from rocmforge.engine.proof.replay import device_options
from rocmforge.opening import open_checkpoint
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.engine.core import make_core, reports
from tests.support.engine.recording import rows_of
from tests.support.models.options import SMALL

ERRING = "tests.support.fakes.erring_backend"
TOKENS = 110


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(by_name("llama"), tmp_path_factory.mktemp("model"))


def checked(model: Path, folder: Path, variant: str, *, keeps_tokens: bool) -> None:
    """Has a verifier look at an answer of a wrong device, again and again."""
    with open_checkpoint(model) as checkpoint:
        backend = registry.create(f"{ERRING}:{variant}")
        runner = backend.load(checkpoint, SMALL, lambda stage, share: None)
    tokens, places = list(PROMPT[:9]), list[TokenLogprob]()
    is_broken = False
    with closing(runner):
        sampling = SamplingParams(max_tokens=TOKENS, num_logprobs=20, seed=1)
        for report in reports(make_core(runner, SMALL), [(PROMPT[:9], sampling)]):
            for event in report.events:
                tokens += event.token_ids
                places += event.logprobs or ()
                is_broken = is_broken or event.is_without_token
        begin = Begin(
            model=str(model),
            identity=checkpoint.identify(),
            runner=runner.info,
            options=SMALL,
            bounds=Bounds(tolerance=3.0),
            bundles=BundlePolicy(folder=str(folder), keeps_tokens=keeps_tokens),
            log_level="WARNING",
            log_format="text",
        )
    checker = Checker(begin, *load_reference(begin))
    sample = Sample(
        number=5,
        tokens=tuple(tokens),
        first=9,
        rows=rows_of(places),
        adapter=-1,
        is_broken=is_broken,
    )
    assert checker.check(sample).alarm is not None
    for number in range(MOST_FILES):
        checker.check(structs.replace(sample, number=number + 6))


@pytest.fixture(scope="module")
def bundles(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    checked(model, folder, "create_last", keeps_tokens=True)
    return folder


def replay(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    status = main(["verify", "--replay", str(path), *flags])
    lines = capsys.readouterr().out.splitlines()
    return status, [line for line in lines if " places, " in line]


def test_a_folder_holds_a_bounded_number_of_bounded_bundles_for_its_owner(bundles: Path) -> None:
    files = [*bundles.iterdir()]
    assert len(files) == MOST_FILES
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.stat().st_size < 200_000
        assert len(read_bundle(file).places) == MOST_PLACES


def test_a_bundle_is_right_on_a_right_device_and_wrong_on_the_wrong_one(
    bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = min(bundles.iterdir())
    status, lines = replay(path, capsys, "--backend", "reference")
    assert (status, len(lines)) == (1, 1)
    assert "WRONG" in lines[0]
    status, lines = replay(path, capsys, "--backend", f"{ERRING}:create_right")
    assert status == 0
    assert [("WRONG" in line) for line in lines] == [True, False, False]
    status, lines = replay(path, capsys, "--backend", f"{ERRING}:create_last")
    assert status == 1
    assert all("WRONG" in line for line in lines)


def test_a_replay_keeps_every_kind_of_cache(bundles: Path) -> None:
    bundle = read_bundle(min(bundles.iterdir()))
    for kind in set(get_args(get_type_hints(LoadOptions)["kv_dtype"])) - {"auto"}:
        of_kind = structs.replace(bundle, runner=replace(bundle.runner, kv_dtype=kind))
        assert device_options(of_kind, None).kv_dtype == kind


def test_layers_show_where_a_difference_begins(
    bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = min(bundles.iterdir())
    status, lines = replay(path, capsys, "--layers", "--backend", f"{ERRING}:create_second")
    assert status == 1
    assert [("first" in line, "WRONG" in line) for line in lines[3:]] == [
        (True, False),
        (True, True),
    ]


def test_a_bundle_of_a_broken_sequence_ends_where_it_broke(bundles: Path, tmp_path: Path) -> None:
    known = read_bundle(min(bundles.iterdir()))
    begin = Begin(
        model=known.model,
        identity=None,
        runner=known.runner,
        options=known.options,
        bounds=known.bounds,
        bundles=BundlePolicy(folder=str(tmp_path), keeps_tokens=True),
        log_level="WARNING",
        log_format="text",
    )
    right = TokenLogprob(token_id=1, logprob=-0.5, top=((1, -0.5), (2, -1.0)))
    wrong = TokenLogprob(token_id=1, logprob=-3.0, top=((1, -3.0), (2, -0.1)))
    tokens, places = (1,) * 80, (wrong, *(right,) * 76)
    sample = Sample(
        number=1, tokens=tokens, first=3, rows=rows_of(places), adapter=-1, is_broken=True
    )
    path = write_bundle(begin, sample, [right] * 78, "a NaN")
    assert path is not None
    assert [each.place for each in read_bundle(path).places] == [*range(16, 80)]


@pytest.mark.parametrize("keeps_tokens", [False, True])
def test_only_a_bundle_that_may_hold_tokens_does(
    model: Path, tmp_path: Path, keeps_tokens: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    checked(model, tmp_path, "create_nan", keeps_tokens=keeps_tokens)
    path = min(tmp_path.iterdir())
    bundle = read_bundle(path)
    assert bundle.is_broken
    assert (bundle.tokens is not None) == keeps_tokens
    assert all((place.ids is not None) == keeps_tokens for place in bundle.places)
    status = main(["verify", "--replay", str(path), "--backend", "reference"])
    assert status == (1 if keeps_tokens else 2)
    assert ("--verify-prompts" in capsys.readouterr().err) == (not keeps_tokens)


def test_files_that_are_no_bundles_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.json"
    assert main(["verify", "--replay", str(path)]) == 2
    path.write_text("{}")
    assert main(["verify", "--replay", str(path)]) == 2
    assert main(["verify", "--layers"]) == 2
    told = capsys.readouterr().err
    assert "Cannot read" in told
    assert "is no bundle" in told
    assert "--layers needs --replay" in told
