"""Reasoning is told from the answer, however both are cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.text.output.reasoning import Reasoning, ReasoningSplitter, reasons

CASES = [
    (False, "<think>\nhm <b>\n</think>\n\nYes.", ("hm <b>\n", "Yes.")),
    (False, "\n <think>a</think>b<think>c</think>", ("a", "b<think>c</think>")),
    (False, " Yes. <think>no</think>", ("", " Yes. <think>no</think>")),
    (False, "<thin", ("", "<thin")),
    (False, "  ", ("", "  ")),
    (False, "<think>cut </thi", ("cut </thi", "")),
    (False, "<think></think>only", ("", "only")),
    (True, "so</think> Yes", ("so", "Yes")),
    (True, "never ends <", ("never ends <", "")),
    (True, "</think>Yes", ("", "Yes")),
]


def split(is_inside: bool, pieces: list[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(is_inside=is_inside)
    said = [part for piece in pieces for part in splitter.push(piece)] + splitter.finish()
    thoughts = [part.text for part in said if isinstance(part, Reasoning)]
    return "".join(thoughts), "".join([part for part in said if isinstance(part, str)])


@pytest.mark.parametrize(("is_inside", "answer", "expected"), CASES)
def test_whole_answers(is_inside: bool, answer: str, expected: tuple[str, str]) -> None:
    assert split(is_inside, [answer]) == expected


@pytest.mark.parametrize(("is_inside", "answer", "expected"), CASES)
def test_single_characters(is_inside: bool, answer: str, expected: tuple[str, str]) -> None:
    assert split(is_inside, list(answer)) == expected


@given(st.sampled_from(CASES), st.integers(0, 40), st.integers(0, 40))
def test_any_split(case: tuple[bool, str, tuple[str, str]], first: int, second: int) -> None:
    is_inside, answer, expected = case
    a, b = sorted((first, second))
    assert split(is_inside, [answer[:a], answer[a:b], answer[b:]]) == expected


def test_the_template_tells_whether_there_is_any() -> None:
    assert reasons("{{ '<think>' }}")
    assert not reasons("{{ message.content }}")
