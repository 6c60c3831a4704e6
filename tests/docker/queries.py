"""The queries of the dashboard and of Prometheus' rules, and what they name."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tests.docker.files import DOCKER, load

FILLED = {"$job": ".*", "$instance": ".*", "$model": "tiny", "$__rate_interval": "20s"}
"""What the tests choose for Grafana's variables."""

_METRIC = re.compile(r"\b(?:rocmforge[\w:]+|process_\w+|up)\b(?=[{\s\[=)]|$)")
_LABEL_VALUES = re.compile(r"label_values\((?P<of>.+), (?P<label>\w+)\)")


@dataclass(frozen=True)
class Variable:
    """A choice at the head of the dashboard: the values of a label of the series `of`."""

    name: str
    of: str
    label: str


def _board() -> Any:
    return json.loads((DOCKER / "grafana/dashboards/rocmforge.json").read_text(encoding="utf-8"))


def panel_queries() -> list[str]:
    """Every query of the dashboard, with Grafana's variables in it."""
    return [t["expr"] for panel in _board()["panels"] for t in panel.get("targets", ())]


def variables() -> list[Variable]:
    """What can be chosen at the head of the dashboard."""
    found = []
    for variable in _board()["templating"]["list"]:
        match = _LABEL_VALUES.fullmatch(variable["query"]["query"])
        assert match is not None, variable["query"]
        found.append(Variable(variable["name"], match["of"], match["label"]))
    return found


def filled(query: str) -> str:
    """A query with values for Grafana's variables."""
    for variable, value in FILLED.items():
        query = query.replace(variable, value)
    return query


def rules(kind: str) -> dict[str, str]:
    """The expressions of `alert` or `record` rules, by name."""
    groups = load("prometheus/rules.yml")["groups"]
    return {rule[kind]: rule["expr"] for group in groups for rule in group["rules"] if kind in rule}


def metrics_in(query: str) -> set[str]:
    """The names of metrics and recorded rules in a query."""
    return {*_METRIC.findall(query)}


def labels_in(query: str) -> set[str]:
    """The labels that a query selects by, keeps or matches."""
    selected = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
    lists = re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", query)
    return selected | {label.strip() for each in lists for label in each.split(",")}
