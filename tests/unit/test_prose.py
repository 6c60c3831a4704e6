"""docs/tools/prose.py finds mistakes in the prose of a page, and none in the field's terms."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools.prose import TERMS, documents, findings


@pytest.mark.parametrize(
    ("prose", "found"),
    [
        ("The server anwsers.", "'anwsers'"),
        ("It sends the the answer.", "'the the'"),
        ("It is a answer.", "'a'"),
        ("A prefilled prompt of Qwen3-8B on gfx1100 is quantised by llama.cpp.", ""),
    ],
)
def test_mistakes_are_found_and_terms_are_none(prose: str, found: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{prose}\n")
    lines = list(findings([page]))
    assert len(lines) == bool(found)
    assert all(line.startswith("page.md:3: ") and found in line for line in lines)


def test_each_term_stands_once_in_the_list_and_in_some_document() -> None:
    terms = TERMS.read_text(encoding="utf-8").split()
    assert terms == sorted(set(terms), key=lambda term: (term.lower(), term))
    text = "".join(page.read_text(encoding="utf-8") for page in documents())
    assert [term for term in terms if term not in text] == []
