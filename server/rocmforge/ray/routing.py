"""Which replica a request should go to: by prefix, by model and by load. No Ray in here.

A prefix is known by keys of the request's text, not of tokens: whoever routes then needs neither
tokenizer nor template nor any model's files. Equal texts under equal names give equal tokens, so
that a key which a replica publishes stands for blocks in its KV cache. What keeps callers apart
there (API key, `cache_salt`, model and adapter) keeps them apart here, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any, Final

import msgspec

Key = bytes
KEY_BYTES: Final = 8
"""Of a key. Two prefixes with one key cost a request a worse replica, and nothing else."""
FIRST_BYTES: Final = 256
"""Of the first piece of a prompt; each further one doubles what came before, up to the largest."""
LARGEST_BYTES: Final = 2048
MAX_KEYS: Final = 512
"""Of one prompt. Beyond a megabyte of text, prompts that begin alike count as alike."""
SLACK: Final = 4
"""A replica with a prefix may have so many requests more than the one that has the fewest."""

# What stands in a prompt, in the order in which templates write it; the last three are its body.
_PARTS: Final = ("tools", "system", "instructions", "messages", "input", "prompt")


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a request that a router is told."""

    model: str | None = None
    keys: tuple[Key, ...] = ()  # of its prompt's beginnings, the shortest first
    tried: tuple[str, ...] = ()  # replicas that could not answer it
    response: str | None = None  # the stored response that it is about
    home: str | None = None  # the replica that keeps this


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica as a router sees it."""

    id: str
    load: int = 0  # requests that it has: running and waiting
    num_keys: int = 0  # that it has
    is_ready: bool = True
    models: frozenset[str] = frozenset()  # names of those in memory, adapters too
    has_key: Callable[[Key], bool] = field(default=lambda key: False)


def read_hint(body: bytes, identity: bytes = b"") -> Hint:
    """Reads what matters to a router out of a request's body.

    Args:
        body: JSON of any endpoint; what is none has no prefix, and whoever answers says so.
        identity: what separates the caller from others in the KV cache.
    """
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Hint()
    if not isinstance(fields, dict):
        return Hint()
    model, salt = fields.get("model"), fields.get("cache_salt")
    name = model if isinstance(model, str) else None
    root = msgspec.json.encode([name, salt if isinstance(salt, str) else None]) + identity
    before = fields.get("previous_response_id")
    return Hint(
        model=name,
        keys=tuple(prefix_keys(_text(fields), root)),
        response=before if isinstance(before, str) else None,
    )


def _text(fields: Mapping[str, Any]) -> bytes:
    """Returns the text of a prompt, such that a longer conversation begins with a shorter one."""
    values = [fields[name] for name in _PARTS if fields.get(name) is not None]
    pieces = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return b"".join(_encoded(piece) for piece in pieces)


def _encoded(piece: Any) -> bytes:
    # A string is open at its end, so that a longer prompt begins with a shorter one.
    return piece.encode() if isinstance(piece, str) else msgspec.json.encode(piece)


def prefix_keys(text: bytes, root: bytes) -> Iterator[Key]:
    """Yields the keys of a text's beginnings, as far as whole pieces go.

    Args:
        text: of the prompt.
        root: what else decides who may find a block.
    """
    hashed = blake2b(root, digest_size=KEY_BYTES)
    for (begin, end), _ in zip(_pieces(), range(MAX_KEYS), strict=False):
        if end > len(text):
            return
        hashed.update(text[begin:end])
        yield hashed.digest()


def _pieces() -> Iterator[tuple[int, int]]:
    begin = 0
    for number in count():
        end = begin + (piece_bytes(number))
        yield begin, end
        begin = end


def piece_bytes(number: int) -> int:
    """Returns the size of a prompt's piece of that number, which its key stands for."""
    return min(FIRST_BYTES << max(0, number - 1), LARGEST_BYTES)


def ranked(candidates: Sequence[Candidate], hint: Hint) -> list[list[str]]:
    """Ranks replicas for a request: lists of ids, the best first.

    A replica that has failed this request, or is not ready, comes after all others. Among the
    rest, those with the model in memory come first. Of these, the one with the longest prefix is
    preferred, unless it has more than `SLACK` requests more than the one with the fewest, and
    more than half as many again: a prefix saves a part of one request, a queue costs all of it.
    Without a prefix it is the less loaded of two at random; of equals, the one with fewer keys.
    """
    able = _preferring(candidates, lambda each: each.id not in hint.tried and each.is_ready)
    home = [each for each in able if each.id == hint.home]
    near = _preferring(able, lambda each: hint.model in each.models)
    two = sorted(random.sample(near, min(2, len(near))), key=lambda each: each.num_keys)
    ranks = [home, _with_prefix(near, hint.keys), two, able]
    return [[each.id for each in rank] for rank in ranks if rank]


def _preferring(
    candidates: Sequence[Candidate], wanted: Callable[[Candidate], bool]
) -> Sequence[Candidate]:
    return [each for each in candidates if wanted(each)] or candidates


def _with_prefix(candidates: Sequence[Candidate], keys: Sequence[Key]) -> list[Candidate]:
    """Returns the candidate with the longest prefix that is not overloaded, if there is one."""
    least = min((each.load for each in candidates), default=0)
    limit = max(least + SLACK, least * 3 // 2)
    lengths = [(matched(each.has_key, keys), each) for each in candidates if each.load <= limit]
    longest = max((length for length, _ in lengths), default=0)
    if not longest:
        return []
    return [min((e for n, e in lengths if n == longest), key=lambda each: each.load)]


def matched(has_key: Callable[[Key], bool], keys: Sequence[Key]) -> int:
    """Returns how many of a prompt's keys are there, from the first on."""
    return next((number for number, key in enumerate(keys) if not has_key(key)), len(keys))


def packed(keys: Collection[Key]) -> bytes:
    """Puts keys into a row, as a replica publishes them."""
    return b"".join(keys)


def unpacked(row: bytes) -> frozenset[Key]:
    """Takes keys out of a row."""
    return frozenset(row[at : at + KEY_BYTES] for at in range(0, len(row), KEY_BYTES))
