"""The glossary of ARCHITECTURE.md is about names that are in the code, and no other names are."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes.pages import PAGES

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "server", ROOT / "backends")


# Words that names do not hold, since the field has others: see the glossary.
FORMER = {
    r"guess": "draft tokens, drafting",
    r"alternative": "top_logprobs, num_top",
    r"give_way|gives_way": "preempt",
    r"right_draws|wrong_drafts": "accepted, rejected",
    r"^ModelSlot$|^QKV_SLOTS$|^MAX_SLOTS$": "a slot is a place in the KV cache",
    r"^(?:chat|completion|message|response)_plan$": "prepare_...",
    r"ffn_dim": "intermediate_size",
    r"rope_dim": "rotary_dim",
    r"split_units|per_unit": "quant blocks, compute units (cu)",
    r"activation_terms|_terms\b": "slices",
}

# What the pages do not say any more, for the same reason or for plain English.
FORMER_IN_PAGES = (
    *(
        r"\bguess(?:ed|ing)? tokens?\b",
        r"\bguessers?\b",
        r"\bgiv(?:es?|ing) way\b",
        r"\balternatives?\b",
        r"\bright ones\b",
    ),
    *(r"\blikewise\b", r"\bby hand\b", r"\bso it is (?:for|with)\b", r"\banew\b"),
)

# Names of others, written as they write them.
WRONG_NAMES = re.compile(
    r"\b(?:Hugging[Ff]ace|Py[Tt]orch(?<!PyTorch)|Github|Rocm|ROCM|[Oo]penAi|Openai|Numpy|[Ll][Mm]Studio"
    r"|Llama\.cpp|LLaMA|OpenWebUI|Javascript|Vllm|VLLM|Langchain|Ollama's Hub)\b"
)
# Pages of figures: their sentences list what was measured.
FIGURES = {"benchmarks.md", "verification.md", "CHANGELOG.md", "ARCHITECTURE.md"}
CODE = {"tests", "kernels", "benchmarks"}
MOST_WORDS = 42

# Structs of wire formats have the names that those formats have.
WIRE = {"schema.py", "events.py"}


@dataclass
class Module:
    """What the tests look at in a module."""

    names: set[str] = field(default_factory=set)  # every one that it defines or uses
    docstrings: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)  # at its top


@cache
def modules() -> dict[Path, Module]:
    paths = (path for folder in PACKAGES for path in sorted(folder.rglob("*.py")))
    return {path: _module(ast.parse(path.read_text(encoding="utf-8"))) for path in paths}


def _module(tree: ast.Module) -> Module:
    found = Module()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.names.add(name)
            case ast.keyword(arg=str(name)):
                found.names.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Module():
                if docstring := ast.get_docstring(node):
                    found.docstrings.append(docstring)
                if not isinstance(node, ast.Module):
                    found.names.add(node.name)
    found.classes += [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return found


def rows() -> list[tuple[str, str]]:
    """Word and meaning of each row."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    glossary = text.split("## Glossary")[1].split("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", glossary, re.MULTILINE)
    return [row for row in found if row != ("word", "meaning")]


def test_every_name_in_the_glossary_is_in_the_code() -> None:
    known = {name for module in modules().values() for name in module.names}
    named = {name for _, meaning in rows() for name in re.findall(r"`([A-Za-z_]\w*)`", meaning)} - {
        "n"
    }
    assert len(named) > 20
    assert named - known == set()


def test_no_word_has_two_rows() -> None:
    words = [word for cell, _ in rows() for word in cell.split(", ")]
    assert len(words) > 20
    assert sorted({word for word in words if words.count(word) > 1}) == []


@pytest.mark.slow
@pytest.mark.parametrize("former", FORMER)
def test_no_name_holds_a_word_that_was_replaced(former: str) -> None:
    pattern = re.compile(former, re.IGNORECASE)
    found = {
        (str(path.relative_to(ROOT)), name)
        for path, module in modules().items()
        for name in module.names
        if pattern.search(name)
    }
    assert found == set(), f"the word is now {FORMER[former]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_says_what_was_replaced(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert [f for f in FORMER_IN_PAGES if re.search(f, text, re.IGNORECASE)] == []


def prose(page: Path) -> str:
    """A page without code, tables, and the targets of links."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^(?: {4}|\|).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_are_written_as_their_owners_do(page: Path) -> None:
    text = re.sub(r"`[^`]*`|https?://\S+", "", prose(page))
    assert WRONG_NAMES.findall(text) == []


@pytest.mark.parametrize(
    "page",
    [each for each in PAGES if each.name not in FIGURES and each.parent.name not in CODE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_sentences_are_short(page: Path) -> None:
    paragraphs = re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", prose(page))
    sentences = (
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))
    )
    assert [each for each in sentences if len(each.split()) > MOST_WORDS] == []


def test_docstrings_begin_with_a_verb_or_a_thing() -> None:
    vague = re.compile(r"(?:What|The same|Those|As)\b")
    found = [
        (str(path.relative_to(ROOT)), docstring.splitlines()[0])
        for path, module in modules().items()
        for docstring in module.docstrings
        if vague.match(docstring)
    ]
    assert found == []


@pytest.mark.slow
def test_no_two_public_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path, module in modules().items():
        for name in module.classes if path.name not in WIRE else ():
            homes[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1 and name[0] != "_"} == {}
