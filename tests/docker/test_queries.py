"""Dashboard and rules name metrics and labels that exist, and each alert is tested both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docker.files import load
from tests.docker.queries import labels_in, metrics_in, panel_queries, rules, variables

REFERENCE = Path(__file__).parents[2] / "docs/reference/metrics.md"
SCRAPED = {"job", "instance"}  # Prometheus adds them
FOREIGN = {"up", "process_resident_memory_bytes"}


def documented() -> dict[str, set[str]]:
    """The labels of every family, by the names that its samples have."""
    found = {}
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `rocmforge_"):
            family, _, kind, labels, _ = (cell.strip() for cell in line.strip("|").split(" | "))
            name, names = family.strip("` |"), {*re.findall(r"`(\w+)`", labels)} | SCRAPED
            found[name] = names
            if kind == "histogram":
                found |= {f"{name}_bucket": names | {"le"}, f"{name}_sum": names}
    return found


def known() -> dict[str, set[str]]:
    """The labels of everything that a query can name: also of what rules record."""
    found = documented() | {name: SCRAPED for name in FOREIGN}
    for name, query in rules("record").items():
        last = re.findall(r"\bby\s*\(([^)]*)\)", query)[-1]
        found[name] = {label.strip() for label in last.split(",")} - {"le"}
    return found


QUERIES = [*panel_queries(), *rules("alert").values(), *rules("record").values()]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_metrics_and_labels_that_exist(query: str) -> None:
    labels, named = known(), metrics_in(query)
    assert named
    assert named - labels.keys() == set()
    assert labels_in(query) - {label for name in named for label in labels[name]} == set()


@pytest.mark.parametrize("query", panel_queries())
def test_a_panel_obeys_every_choice_that_its_metrics_know(query: str) -> None:
    labels = known()
    choices = {variable.label: f'{variable.label}=~"${variable.name}"' for variable in variables()}
    for name in metrics_in(query):
        (selector, *others) = re.findall(rf"{name}\{{([^}}]*)\}}", query)
        for each in (selector, *others):
            chosen = {label for label, text in choices.items() if text in each}
            assert chosen == choices.keys() & labels[name], name


def test_model_server_and_job_can_be_chosen() -> None:
    assert [variable.name for variable in variables()] == ["job", "instance", "model"]
    labels = known()
    for variable in variables():
        (metric,) = metrics_in(variable.of)
        assert {variable.label} | labels_in(variable.of) <= labels[metric]


@pytest.mark.parametrize("alert", rules("alert"))
def test_an_alert_is_seen_to_fire_and_to_be_silent(alert: str) -> None:
    cases = [
        bool(case.get("exp_alerts"))
        for test in load("prometheus/rules_test.yml")["tests"]
        for case in test.get("alert_rule_test", ())
        if case["alertname"] == alert
    ]
    assert {*cases} == {False, True}


@pytest.mark.parametrize("record", rules("record"))
def test_what_is_recorded_is_computed_for_a_known_load(record: str) -> None:
    tested = [
        case["expr"]
        for test in load("prometheus/rules_test.yml")["tests"]
        for case in test.get("promql_expr_test", ())
    ]
    assert any(record in expression for expression in tested)
