"""Hostile chat templates are stopped: in time, in space, and before they reach Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from rocmforge.errors import BadTemplate, InvalidParameter
from rocmforge.text.template.budget import Limits
from rocmforge.text.template.template import ChatTemplate

LIMITS = Limits(
    seconds=10.0, chars=20_000, work_chars=100_000, items=1_000, nodes=5_000, width=1_000
)
MESSAGES = [{"role": "user", "content": "x"}]


def ticking() -> Callable[[], float]:
    """A clock that advances by a millisecond whenever it is looked at."""
    return itertools.count(0.0, 0.001).__next__


def render(body: str, limits: Limits = LIMITS) -> str:
    # The trial renderings at load must not trip over what is tested.
    source = "{% if messages[0].content == 'x' %}" + body + "{% endif %}"
    return ChatTemplate(source, {}, limits=limits, clock=ticking()).render(MESSAGES).text


def repeated(statement: str, start: str = "'a'") -> str:
    loop = "{% for i in range(200) %}{% set ns.x = " + statement + " %}{% endfor %}"
    return "{% set ns = namespace(x=" + start + ") %}" + loop + "{{ ns.x }}"


LOOPS = "{% for i in range(9999) %}{% for j in range(9999) %}BODY{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOPS.replace("BODY", ""),
        LOOPS.replace("BODY", "{% set x = i %}"),
        "{% set x %}" + LOOPS.replace("BODY", "captured text") + "{% endset %}",
        "{% macro f() %}" + LOOPS.replace("BODY", "in a macro") + "{% endmacro %}{{ f() }}",
        LOOPS.replace("BODY", "{% set x = i + j %}"),
        LOOPS.replace("BODY", "{% if i > j %}{% continue %}{% endif %}"),
        "{% set c = cycler(1, 2) %}" + LOOPS.replace("BODY", "{% set x = c.next() %}"),
        "{% macro f(n) %}{% if n < 40 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}"
        "{{ f(0) }}",
        "{% for x in range(99) recursive %}{% if loop.depth < 40 %}{% set y = loop(range(99)) %}"
        "{% endif %}{% endfor %}",
        LOOPS.replace("BODY", "{% set x = range(900) | map('string') | list %}"),
    ],
)
def test_time_is_limited(source: str) -> None:
    with pytest.raises(BadTemplate, match="more than 10 seconds"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        repeated("ns.x + ns.x"),
        repeated("ns.x ~ ns.x"),
        repeated("ns.x * 2"),
        repeated("ns.x.replace('a', 'aa')"),
        repeated("ns.x | replace('a', 'aa')"),
        repeated("[ns.x, ns.x] | join"),
        repeated("''.join([ns.x, ns.x])"),
        repeated("'{0}{0}'.format(ns.x)"),
        repeated("'%s%s' % (ns.x, ns.x)"),
        repeated("'%s%s' | format(ns.x, ns.x)"),
        repeated("ns.x | escape | string | replace('a', '&')", "'&'"),
        LOOPS.replace("BODY", "text that is put out again and again"),
        "{{ ('a' * 9000).join(['', '', '', '']) }}",
        "{{ range(99) | join('a' * 9000) }}",
        "{{ ('a\n' * 900) | indent(900) }}",
        "{{ ('a\n' * 900) | indent('x' * 900) }}",
        "{{ ('\t' * 900).expandtabs(900) }}",
        "{{ ('{0}' * 900).format('a' * 900) }}",
        "{{ ('%(a)s' * 900) % {'a': 'a' * 900} }}",
        "{{ range(900) | list | tojson(indent=900) }}",
        "{{ ('a' * 9000).replace('', 'a' * 9000) }}",
    ],
)
def test_text_is_limited(source: str) -> None:
    with pytest.raises(BadTemplate, match="text grew beyond 20000"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ [0] * 10**9 }}",
        "{{ (0,) * 10**9 }}",
        repeated("ns.x + ns.x", "[0]"),
        "{{ ('a' * 9000) | list }}",
        "{{ ('a' * 9000) | map('upper') | list }}",
        "{{ ('a' * 9000) | sort }}",
        "{{ ('a' * 9000).split('a') }}",
        "{{ ('a ' * 9000).split() }}",
        "{{ ('a\n' * 9000).splitlines() }}",
        "{{ range(9999) | list }}",
        "{{ ','.join(range(9999)) }}",
    ],
)
def test_lists_are_limited(source: str) -> None:
    with pytest.raises(BadTemplate, match="list of more than 1000"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        repeated("[ns.x, ns.x]"),
        repeated("(ns.x, ns.x)"),
        repeated("{'a': ns.x, 'b': ns.x}"),
        repeated("dict(a=ns.x, b=ns.x)"),
        repeated("([ns.x] * 2) | batch(1)"),
        repeated("{1: ns.x, 2: ns.x} | dictsort"),
        repeated("namespace(a=ns.x, b=ns.x)"),
    ],
)
def test_shared_references_count_as_often_as_they_occur(source: str) -> None:
    with pytest.raises(BadTemplate, match="too large"):
        render(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'a' | center(10**10) }}", "as a width"),
        ("{{ 'a'.ljust(10**10) }}", "as a width"),
        ("{{ 'a'.zfill(10**10) }}", "as a width"),
        ("{{ [1] | batch(10**10, 0) }}", "as a width"),
        ("{{ [1] | slice(10**10) }}", "as a width"),
        ("{{ 1.5 | round(-(10**9)) }}", "as a width"),
        ("{{ '%10000000000d' % 1 }}", "as a width"),
        ("{{ '%.10000000000f' % 1 }}", "as a width"),
        ("{{ '%10000000000d' | format(1) }}", "as a width"),
        ("{{ '{:>10000000000}'.format(1) }}", "as a width"),
        ("{{ '{:>{w}}'.format(1, w=10**10) }}", "width taken from a value"),
        ("{{ '%*d' % (10**9, 1) }}", "width taken from a value"),
        ("{{ 9 ** 99999999 }}", "number of more than"),
        (repeated("ns.x * ns.x", "3"), "number of more than"),
        ("{{ ('9' * 15000) | int }}", "more than 10000 digits"),
        ("{{ [[0], [0]] | sum(start=[]) }}", "not numbers"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursed too deeply"),
        ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursed too deeply"),
    ],
)
def test_single_operations_are_limited(source: str, reason: str) -> None:
    with pytest.raises(BadTemplate, match=reason):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'].mro() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ (5).to_bytes(10**10, 'big') }}",
        "{{ 'a'.format_map({}) }}",
        "{{ 'a'.encode() }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ raise_exception.__globals__.x }}",
        "{{ '{0.__class__.x}'.format(1) }}",
    ],
)
def test_what_is_not_listed_cannot_be_reached(source: str) -> None:
    with pytest.raises(BadTemplate, match="not allowed"):
        render(source)


def test_what_may_be_read_depends_on_type_and_name() -> None:
    body = (
        "{% set ns = namespace(append=1) %}{{ ns.append }}"
        "{{ messages.index is defined }}{{ messages.append is defined }}"
    )
    assert render(body) == "1TrueFalse"


def test_ranges_are_limited() -> None:
    with pytest.raises(InvalidParameter, match="Range too big"):
        render("{% for i in range(10**9) %}{% endfor %}")


def test_a_template_that_misbehaves_on_any_conversation_is_refused_at_load() -> None:
    with pytest.raises(BadTemplate, match="stopped"):
        ChatTemplate("{{ 'a' * 10**10 }}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for i in [1] %}" * 40 + "{% endfor %}" * 40,
        "{{ " + "9" * 5000 + " }}",
        "{{ 'a' }}" * 200_000,
        "{{ 1" + " + 1" * 20_000 + " }}",
    ],
    ids=["parentheses", "loops", "digits", "length", "operators"],
)
def test_sources_that_are_too_deep_or_too_long_are_refused(source: str) -> None:
    with pytest.raises(BadTemplate):
        ChatTemplate(source, {})


def test_an_ordinary_long_conversation_is_well_within_the_limits() -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}"
    messages = [{"role": "user", "content": " word" * 100}] * 2000
    prompt = ChatTemplate(source, {}, clock=lambda: 0.0).render(messages)
    assert len(prompt.text) == 2000 * (len("<|user|>\n") + 499)
