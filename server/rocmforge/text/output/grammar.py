"""Grammars that an answer must match, in the serialised form of llguidance.

They are tried here on a vocabulary of single bytes and a few more tokens, so that a mistake in one
is known before the engine hears of it. The engine compiles them for the model's own vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import llguidance
from llguidance import LLMatcher

from rocmforge.text.output.closed_schema import close_objects

Schema = dict[str, Any] | bool

ANY_OBJECT: Schema = {"type": "object"}

# White space between the parts of JSON: some, or models that have lost the thread write nothing
# else until the end.
_WHITESPACE = r" |\n[ \t]{0,20}"

_LEXER_FUEL = 200_000  # with the default of 1,000,000, `a{1000}{1000}{1000}` takes seconds


def json_schema_grammar(schema: Schema) -> str:
    """Returns the grammar of JSON that fits a schema, with the fields that it names only.

    See `close_objects` for what that means.
    """
    if isinstance(schema, bool):  # `true` is the schema of everything
        schema = {} if schema else {"not": {}}
    return LLMatcher.grammar_from_json_schema(
        close_objects(schema), overrides={"whitespace_pattern": _WHITESPACE, "lenient": False}
    )


def embedded_schema(schema: Schema) -> Schema:
    """Returns the schema with closed objects and our rule for white space, for another grammar."""
    if isinstance(schema, bool):
        return schema
    return {**close_objects(schema), "x-guidance": {"whitespace_pattern": _WHITESPACE}}


def regex_grammar(regex: str) -> str:
    r"""Makes a grammar of text that a regular expression matches as a whole.

    The syntax is Rust's, which has no look-around; `\d` and `\w` are ASCII, as in JavaScript.
    """
    return lark_grammar(f"start: /{regex_in_lark(regex)}/")


def regex_in_lark(regex: str) -> str:
    """Writes a regular expression as it may stand between slashes in a grammar."""
    return llguidance.regex_to_lark(regex, "dw")


def choice_grammar(choices: Sequence[str]) -> str:
    """Makes a grammar of several texts, one of which comes."""
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return lark_grammar(f"start: {texts}")


def lark_grammar(lark: str) -> str:
    """Makes a grammar from Lark's notation, with llguidance's extensions."""
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def find_problem(grammar: str) -> str:
    """Returns why a grammar cannot be enforced: a mistake or an unknown keyword; "" if it can.

    A grammar may also be too much: see `engine.grammar_checker`.
    """
    tried = _with_tokens_of_trial(grammar)
    matcher = LLMatcher(_trial_tokenizer(), tried, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        _take_step(matcher)  # some limits are only found there
    if not matcher.is_error():
        return ""
    if "NoExtensionBias" in matcher.get_error():
        return "there is no text that matches it"
    # What follows the first quotation of the grammar only points at a place in it.
    return " ".join(re.split(r"\n\s+1 \|", matcher.get_error())[0].split())


def _take_step(matcher: LLMatcher) -> None:
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    if mask:
        matcher.consume_token((mask & -mask).bit_length() - 1)  # the lowest that is allowed


def parser_limits() -> llguidance.LLParserLimits:
    """Returns the library's limits, but for a lexer that is built in milliseconds."""
    return llguidance.LLParserLimits(initial_lexer_fuel=_LEXER_FUEL, verbose_errors=False)


_TOKENS = re.compile(r"<\[([\d,-]+)\]>")
_NUM_TOKENS = 64  # sets of tokens that a grammar may name in a trial


def named_tokens(lark: str) -> frozenset[int]:
    """Returns the ids that a grammar in Lark's notation names, of ranges the ends."""
    sets = _TOKENS.findall(lark)
    return frozenset(int(digits) for each in sets for digits in re.findall(r"\d+", each))


def _with_tokens_of_trial(grammar: str) -> str:
    """Puts a token that the trial has in the place of each set of the model's."""
    sets = dict.fromkeys(_TOKENS.findall(grammar))
    places = {each: 256 + i for i, each in enumerate(sets)}
    return _TOKENS.sub(lambda found: f"<[{places[found[1]]}]>", grammar)


class _TrialVocabulary:
    """All bytes, and tokens that stand for those which grammars name."""

    eos_token_id = 256 + _NUM_TOKENS
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), *(b"<|%d|>" % i for i in range(_NUM_TOKENS + 1)))
    special_token_ids = tuple(range(256, 257 + _NUM_TOKENS))

    def __call__(self, text: bytes) -> list[int]:
        """Tokenises text."""
        return list(text)


@cache
def _trial_tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_TrialVocabulary()))
