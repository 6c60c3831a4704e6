"""A prompt that cannot be computed is refused before it is sent, and the error says why."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.engine.client import prompt_checks
from rocmforge.engine.client.prompt_checks import check_prompt
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.prompt import Prompt, embedding_span, image_span, token_prompt
from rocmforge.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    RequestError,
    UnsupportedFeature,
)
from rocmforge.models.vision.config import ProcessorKind
from rocmforge.models.vision.image import ImageTile
from tests.support.engine.requests import asked
from tests.support.engine.spans import image, prompt_of
from tests.support.fakes.fake_backend import FakeConfig, make_runner
from tests.support.fakes.fake_model import HIDDEN_SIZE
from tests.support.files.pictures import ONE_TILE

RUNNER = make_runner(FakeConfig(vocab_size=10), 32, 4, 64).info
ROWS = image(1, 5)


def check(prompt: Prompt, runner: RunnerInfo = RUNNER, max_tokens: int = 2) -> None:
    check_prompt(asked(prompt, SamplingParams(max_tokens=max_tokens)), runner)


@pytest.mark.parametrize(
    "prompt",
    [
        token_prompt([0, 9]),
        prompt_of([1], ROWS, [2]),
        prompt_of(ROWS),
        prompt_of(ROWS, ROWS),
        prompt_of(image(1, 30)),
    ],
    ids=["tokens", "rows between tokens", "rows", "rows twice", "a full context"],
)
def test_what_can_be_computed_is_taken(prompt: Prompt) -> None:
    check(prompt)


@pytest.mark.parametrize(
    ("prompt", "kind", "message"),
    [
        (token_prompt([]), InvalidParameter, "The prompt is empty"),
        (Prompt(spans=()), InvalidParameter, "The prompt is empty"),
        (prompt_of([1], []), InvalidParameter, "A span of the prompt is empty"),
        (
            prompt_of([1], structs.replace(ROWS, rows=b"", num_rows=0)),
            InvalidParameter,
            "A span of the prompt is empty",
        ),
        (token_prompt([1, 10]), InvalidParameter, r"outside 0\.\.9"),
        (prompt_of(image(1, 2, placeholder=10)), InvalidParameter, r"outside 0\.\.9"),
        (prompt_of(image(1, 2, placeholder=-1)), InvalidParameter, r"outside 0\.\.9"),
        (
            prompt_of(embedding_span(np.ones((3, HIDDEN_SIZE + 1), np.float32), 2)),
            InvalidParameter,
            f"3 rows of embeddings are {3 * 4 * (HIDDEN_SIZE + 1)} bytes, but this model takes "
            f"rows of {HIDDEN_SIZE} float32 numbers",
        ),
        (
            prompt_of(structs.replace(ROWS, num_rows=4)),
            InvalidParameter,
            "4 rows of embeddings are 120 bytes",
        ),
        (prompt_of(structs.replace(ROWS, identity=b"")), InvalidParameter, "need an identity"),
        (prompt_of(image(1, 31)), ContextLengthExceeded, "33 are needed: 31 for the prompt"),
    ],
    ids=[
        *("no tokens", "no spans", "an empty span", "no rows", "no such token"),
        *("no such placeholder", "a negative placeholder", "too wide", "a wrong count"),
        *("no identity", "too many"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    prompt: Prompt, kind: type[RequestError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        check(prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("lines", "breaks", "fits"),
    [(2, (3,), True), (1, (), True), (3, (3,), False), (1, (3,), False), (2, (), False)],
)
def test_an_image_has_as_many_lines_as_rows_of_squares(
    lines: int, breaks: tuple[int, ...], fits: bool
) -> None:
    tile = ImageTile(patches=b"\1" * (24 * ONE_TILE.patch_features), grid=(4, 6), num_rows=6)
    span = structs.replace(image_span(tile, 2), lines=lines, breaks=breaks)
    takes = structs.replace(ONE_TILE, kind=ProcessorKind.PIXTRAL, tile=0, longest_edge=24)
    runner = replace(RUNNER, images=takes)
    with nullcontext() if fits else pytest.raises(InvalidParameter, match="lines, not"):
        check(Prompt(spans=(span,)), runner)


def test_rows_that_no_message_can_carry_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(ROWS.rows)
    monkeypatch.setattr(prompt_checks, "_MAX_ROWS_BYTES", 2 * size - 1)
    check(prompt_of(ROWS))
    with pytest.raises(InvalidParameter, match=f"are {2 * size} bytes, but no more than"):
        check(prompt_of(ROWS, ROWS))


def test_a_model_that_takes_no_embeddings_says_so() -> None:
    with pytest.raises(UnsupportedFeature, match="takes no embeddings in the prompt"):
        check(prompt_of([1], ROWS), replace(RUNNER, embedding_size=0))
    check(token_prompt([1]), replace(RUNNER, embedding_size=0))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones((2, 3, 4)), r"shape \(2, 3, 4\)"),
        (np.ones(4), r"shape \(4,\)"),
        (np.ones((0, 4)), r"shape \(0, 4\)"),
        (np.ones((4, 0)), r"shape \(4, 0\)"),
        (np.array([[1.0, 2.0], [3.0, np.nan]]), "Row 1 of 2 rows"),
        (np.array([[np.inf, 2.0], [3.0, 4.0]]), "Row 0 of 2 rows"),
    ],
)
def test_rows_that_are_none_make_no_span(rows: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        embedding_span(rows.astype(np.float32), 2)


def test_rows_identify_themselves_unless_something_better_is_known() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert embedding_span(rows, 2).identity == embedding_span(rows.copy(), 2).identity
    assert embedding_span(rows, 2).identity != embedding_span(rows + 1, 2).identity
    assert embedding_span(rows, 2).identity == embedding_span(np.asfortranarray(rows), 2).identity
    assert embedding_span(rows, 2, b"a photo").identity == b"a photo"
    np.testing.assert_array_equal(embedding_span(np.asfortranarray(rows), 2).values, rows)


def test_a_span_is_described_without_its_rows() -> None:
    assert len(repr(image(1, 1000))) < 100
