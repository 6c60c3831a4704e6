"""Incremental detokenisation: whole characters, and stop strings that never leak."""

from __future__ import annotations

import codecs

from hypothesis import given
from hypothesis import strategies as st

from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.output.detokenizer import DecodedText, IncrementalDetokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.unit.text.vocabularies import byte_level

TOKENIZER = Tokenizer(read_tokenizer(byte_level()))

ids = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40)
# Few letters, so that stop strings and their beginnings are frequent.
stops = st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=4)
texts = st.text("ab€", max_size=40)


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=False)


def split(data: st.DataObject, items: list[int]) -> list[list[int]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=8)))
    return [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


def push_all(detokenizer: IncrementalDetokenizer, chunks: list[list[int]]) -> list[DecodedText]:
    deltas = []
    for chunk in chunks:
        deltas.append(detokenizer.push(chunk))
        if deltas[-1].stop is not None:
            return deltas
    return [*deltas, detokenizer.finish()]


def first_stop(text: str, stop: list[str]) -> tuple[int, str] | None:
    """Where the text ends and why, found the slow way: character by character."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return end - len(longest), longest
    return None


@given(st.data(), ids, st.booleans())
def test_pieces_concatenate_to_the_decoded_text(
    data: st.DataObject, token_ids: list[int], skip_special: bool
) -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, skip_special=skip_special)
    deltas = push_all(detokenizer, split(data, token_ids))
    whole = TOKENIZER.decode_bytes(token_ids, skip_special=skip_special)
    unfinished = len(whole)
    for length in range(1, 4):
        # A character's beginning at the very end is left out; anything else is decoded.
        tail = whole[-length:] if length <= len(whole) else b"-"
        if _incomplete(tail):
            unfinished = len(whole) - length
    assert "".join(d.text for d in deltas) == whole[:unfinished].decode(errors="replace")
    assert sum(d.tokens for d in deltas) == len(token_ids)


def _incomplete(tail: bytes) -> bool:
    """Whether a decoder waits for more after this; it does after half a surrogate, too."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return decoder.decode(tail) == ""


@given(st.data(), texts, stops)
def test_text_ends_at_the_first_stop_string_for_any_chunking(
    data: st.DataObject, text: str, stop: list[str]
) -> None:
    token_ids = tokens(text)
    detokenizer = IncrementalDetokenizer(TOKENIZER, stop)
    deltas = push_all(detokenizer, split(data, token_ids))
    shown = "".join(d.text for d in deltas)
    expected = first_stop(text, stop)
    if expected is None:
        assert (shown, deltas[-1].stop) == (text, None)
        return
    end, found = expected
    assert deltas[-1].stop == found
    assert shown == text[:end]
    consumed = sum(d.tokens for d in deltas)
    last = TOKENIZER.decode_bytes(token_ids[:consumed]).decode()
    assert last.endswith(found)
    assert first_stop(last, stop) == expected
    assert first_stop(TOKENIZER.decode(token_ids[: consumed - 1]), stop) is None


@given(st.data(), texts, stops)
def test_only_what_could_become_a_stop_string_is_held_back(
    data: st.DataObject, text: str, stop: list[str]
) -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, stop)
    shown = ""
    seen: list[int] = []
    for chunk in split(data, tokens(text)):
        delta = detokenizer.push(chunk)
        if delta.stop is not None:
            return
        shown += delta.text
        seen += chunk
        whole = TOKENIZER.decode(seen).rstrip("�")
        held = max(
            length
            for length in range(min(len(whole), 4) + 1)
            if length == 0 or any(s.startswith(whole[len(whole) - length :]) for s in stop)
        )
        assert shown == whole[: len(whole) - held]


@given(st.data(), texts)
def test_offsets_say_where_each_tokens_text_begins(data: st.DataObject, text: str) -> None:
    token_ids = tokens(text)
    detokenizer = IncrementalDetokenizer(TOKENIZER, ["zzz"])
    deltas = push_all(detokenizer, split(data, token_ids))
    offsets = [offset for delta in deltas for offset in delta.offsets]
    before = [TOKENIZER.decode(token_ids[:count]).rstrip("�") for count in range(len(token_ids))]
    assert offsets == [len(prefix) for prefix in before]


def test_a_character_appears_when_its_last_byte_does() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    assert [detokenizer.push([index]).text for index in tokens("€")] == ["", "", "€"]


def test_a_character_that_is_cut_off_is_left_out() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    assert detokenizer.push(tokens("h€")[:-1]).text == "h"
    assert detokenizer.finish().text == ""


def test_bytes_that_are_not_utf8_are_replaced_once_that_is_certain() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    assert detokenizer.push(tokens("€")[:1]).text == ""
    assert detokenizer.push(tokens("h")).text == "�h"


def test_a_character_may_span_a_control_token() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    first, *rest = tokens("é€")[-3:]
    control = TOKENIZER.eos_ids[0]
    assert detokenizer.push([first, control, *rest]).text == "€"


def test_finishing_gives_out_what_was_held_back() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, ["hex"])
    assert detokenizer.push(tokens("he")).text == ""
    assert detokenizer.finish().text == "he"


def test_tokens_after_the_stop_string_are_not_counted() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, ["b"])
    delta = detokenizer.push(tokens("abcd"))
    assert delta == DecodedText(text="a", tokens=2, stop="b", offsets=(0, 1))


def test_a_stop_string_may_lie_within_one_token() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, ["el"])
    token_ids = tokens("hello")
    assert len(token_ids) == 1
    assert detokenizer.push(token_ids) == DecodedText(text="h", tokens=1, stop="el", offsets=(0,))


def test_empty_stop_strings_stop_nothing() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, ["", ""])
    assert detokenizer.push(tokens("hello")).text == "hello"
