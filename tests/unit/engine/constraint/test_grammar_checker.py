"""Grammars that would harm a process are found out in one that may be harmed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rocmforge.engine.constraint.grammar_checker import GrammarChecker
from rocmforge.text.output.grammar import json_schema_grammar, lark_grammar, regex_grammar
from tests.support.processes.children import children

FINE = regex_grammar("[a-z]+")


def chain_of_rules(length: int) -> str:
    rules = "\n".join(f'r{i}: r{i + 1} | "a" r{i + 1}' for i in range(length))
    return lark_grammar(f'start: r0\n{rules}\nr{length}: "z"')


def chain_of_references(length: int) -> str:
    definitions: dict[str, object] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    definitions[f"d{length}"] = {"type": "null"}
    return json_schema_grammar({"$defs": definitions, "$ref": "#/$defs/d0"})


def helpers() -> list[int]:
    return children(os.getpid(), "rocmforge.engine.constraint.grammar_checker")


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(cpu_s=0.5)
    yield checker
    checker.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (FINE, ""),
        (chain_of_references(100), ""),
        (chain_of_rules(100), ""),
        (lark_grammar("start: missing"), "missing"),
        (chain_of_rules(10_000), "too long a chain"),
        (chain_of_references(20_000), "too long a chain"),
        (json_schema_grammar({"type": "integer", "multipleOf": 999_983}), "more than 0.5 s"),
        (regex_grammar("a{1000}{1000}{1000}"), "too many"),
        (regex_grammar("(" * 5000 + "a" + ")" * 5000), "invalid regex"),
        (lark_grammar("start: " + "(" * 5000 + '"a"' + ")" * 5000), "too deeply nested"),
        (lark_grammar('start: %json {"const": ' + "[" * 5000 + "]" * 5000 + "}"), "recursion"),
    ],
    ids=lambda value: value[:24],
)
def test_what_is_wrong_is_said_and_the_next_grammar_is_checked(
    checker: GrammarChecker, grammar: str, problem: str
) -> None:
    found = checker.problem(grammar)
    assert problem in found
    assert bool(found) == bool(problem)
    assert checker.problem(FINE) == ""


def test_a_grammar_is_not_blamed_for_the_end_of_an_old_helper(checker: GrammarChecker) -> None:
    """Who kills it may be the system, for want of memory."""
    checker.close()
    others = set(helpers())
    assert checker.problem(regex_grammar("[a-f]+")) == ""
    (helper,) = set(helpers()) - others
    os.kill(helper, signal.SIGKILL)
    os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
    assert checker.problem(regex_grammar("[0-9]+")) == ""


def test_a_grammar_that_is_known_waits_for_no_other_one() -> None:
    checker, others = GrammarChecker(), set(helpers())
    assert checker.problem(FINE) == ""
    (helper,) = set(helpers()) - others
    os.kill(helper, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(checker.problem, regex_grammar("[a-f]+"))
        try:
            assert threads.submit(checker.problem, FINE).result(timeout=30) == ""
            assert not waiting.done()
        finally:
            os.kill(helper, signal.SIGCONT)
        assert waiting.result() == ""
    checker.close()


def test_a_checker_may_be_closed_and_used_again() -> None:
    checker = GrammarChecker()
    assert checker.problem(FINE) == ""
    checker.close()
    checker.close()
    assert checker.problem(lark_grammar("start: missing")) != ""
    checker.close()
