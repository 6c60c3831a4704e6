"""The prompt of a ranking decoder is rendered by a template that knows queries and documents."""

from __future__ import annotations

import pytest

from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.template.rank_prompt import rank_prompt
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.unit.text.vocabularies import byte_level

RANKER = """
{%- set ns = namespace(task="Judge.") -%}
{%- for m in messages if m.role == "system" %}{% set ns.task = m.content %}{% endfor -%}
{%- for m in messages if m.role == 'query' %}<task>{{ ns.task }}<query>{{ m.content }}{% endfor -%}
{%- for m in messages if m.role == "document" %}<document>{{ m.content | trim }}{% endfor -%}
{%- if add_generation_prompt %}<answer>{% endif -%}
"""
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"


def prompt(source: str | None, instruction: str | None = None) -> str | None:
    sources = {} if source is None else {"default": source}
    tokenizer = Tokenizer(read_tokenizer(byte_level()))
    return rank_prompt(ChatTemplates.compile(sources, tokenizer), instruction)


def test_a_template_with_both_roles_gives_a_prompt_with_blanks() -> None:
    assert prompt(RANKER) == "<task>Judge.<query>{query}<document>{document}<answer>"
    assert prompt(RANKER, "Find.") == "<task>Find.<query>{query}<document>{document}<answer>"


@pytest.mark.parametrize(
    "source",
    [
        None,
        CHAT,
        RANKER.replace("{{ m.content | trim }}", ""),
        RANKER + "{{ raise_exception('No.') }}",
    ],
)
def test_other_templates_give_none(source: str | None) -> None:
    assert prompt(source) is None
