"""Log-probabilities: which tokens go with which text, and both wire styles."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rocmforge.api.generate.schema import (
    ChatLogprobs,
    LegacyLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprobs,
    TopLogprob,
)
from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.text.output.detokenizer import IncrementalDetokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer


class ScoredToken(NamedTuple):
    """A token, its log-probabilities, and where its text begins in the answer, in characters."""

    score: TokenLogprob
    offset: int


class LogprobAligner:
    """Holds tokens back until the text they begin has been shown.

    Text is held back while a character or a stop string may be incomplete. The tokens of a stop
    string that was found are never shown, as its text is not.
    """

    def __init__(self) -> None:
        self._held: deque[ScoredToken] = deque()
        self._shown = 0  # characters

    def push(
        self, scores: Sequence[TokenLogprob], offsets: Sequence[int], text: str
    ) -> tuple[ScoredToken, ...]:
        """Takes tokens and the text that was shown with them; returns the tokens to show.

        Scores without an offset belong to tokens that are no part of the answer.
        """
        self._held.extend(map(ScoredToken, scores, offsets))
        self._shown += len(text)
        taken = []
        while self._held and self._held[0].offset < self._shown:
            taken.append(self._held.popleft())
        return tuple(taken)

    def finish(self) -> tuple[ScoredToken, ...]:
        """Returns the tokens that are left when an answer ends without a stop string."""
        taken = tuple(self._held)
        self._held.clear()
        return taken


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[ScoredToken]) -> ChatLogprobs:
    """Writes log-probabilities in the style of /v1/chat/completions."""
    return ChatLogprobs(content=[_token_logprobs(tokenizer, token.score) for token in tokens])


def _token_logprobs(tokenizer: Tokenizer, score: TokenLogprob) -> TokenLogprobs:
    piece = tokenizer.piece_bytes(score.token_id)
    return TokenLogprobs(
        token=piece.decode("utf-8", "replace"),
        logprob=score.logprob,
        bytes=list(piece),
        top_logprobs=[_top_logprob(tokenizer, *top) for top in score.top],
    )


def _top_logprob(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    piece = tokenizer.piece_bytes(token_id)
    return TopLogprob(token=piece.decode("utf-8", "replace"), logprob=logprob, bytes=list(piece))


def legacy_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[ScoredToken], *, start: int
) -> LegacyLogprobs:
    """Writes them in the style of /v1/completions. `start` is where the answer's text begins."""
    tops: list[dict[str, float] | None] = []
    for token in tokens:
        top = {_name(tokenizer, token_id): logprob for token_id, logprob in token.score.top}
        top.setdefault(_name(tokenizer, token.score.token_id), token.score.logprob)
        tops.append(top)
    return LegacyLogprobs(
        tokens=[_name(tokenizer, token.score.token_id) for token in tokens],
        token_logprobs=[token.score.logprob for token in tokens],
        top_logprobs=tops,
        text_offset=[start + token.offset for token in tokens],
    )


def vllm_prompt_logprobs(
    tokenizer: Tokenizer, scores: Sequence[TokenLogprob | None], num_top: int
) -> PromptLogprobs:
    """Writes a prompt's in vLLM's style; `scores` begins with its second token."""
    found: PromptLogprobs = [None]
    for score in scores:
        if score is None:
            found.append(None)
            continue
        entries = {
            token_id: _prompt_logprob(tokenizer, token_id, logprob, rank)
            for rank, (token_id, logprob) in enumerate(score.top[:num_top], start=1)
        }
        if score.token_id not in entries:
            ids = [token_id for token_id, _ in score.top]
            rank = ids.index(score.token_id) + 1 if score.token_id in ids else None
            entries[score.token_id] = _prompt_logprob(
                tokenizer, score.token_id, score.logprob, rank
            )
        found.append(entries)
    return found


def _prompt_logprob(
    tokenizer: Tokenizer, token_id: int, logprob: float, rank: int | None
) -> PromptLogprob:
    piece = tokenizer.piece_bytes(token_id)
    return PromptLogprob(logprob=logprob, rank=rank, decoded_token=piece.decode("utf-8", "replace"))


def echoed_logprobs(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    text: str,
    scores: Sequence[TokenLogprob | None],
    num_top: int,
) -> LegacyLogprobs:
    """Writes those of an echoed prompt; `scores` has its tokens from the second on."""
    known = [None, *scores]
    shown = [
        TokenLogprob(token_id=token_id, logprob=0.0, top=())
        if score is None
        else replace(score, top=score.top[:num_top])
        for token_id, score in zip(ids, known, strict=True)
    ]
    offsets = _offsets_in(text, tokenizer, ids)
    legacy = legacy_logprobs(tokenizer, [*map(ScoredToken, shown, offsets)], start=0)
    for place, score in enumerate(known):
        if score is None:
            legacy.token_logprobs[place] = None
            legacy.top_logprobs[place] = None
    return legacy


def _offsets_in(text: str, tokenizer: Tokenizer, ids: Sequence[int]) -> Sequence[int]:
    """Returns where each token of a prompt begins in its text, a client's or made of ids.

    A client's text may spell control tokens out, and what is made of ids leaves them out. Before
    both the tokenizer may have put BOS, or a space.
    """
    for skip_special in (False, True):
        decoded = IncrementalDetokenizer(tokenizer, skip_special=skip_special).push(ids)
        if decoded.text.endswith(text):
            break
    ahead = max(0, len(decoded.text) - len(text))
    return [max(0, offset - ahead) for offset in decoded.offsets]


def joined(first: LegacyLogprobs, then: LegacyLogprobs) -> LegacyLogprobs:
    """Joins two runs of tokens."""
    return LegacyLogprobs(
        tokens=first.tokens + then.tokens,
        token_logprobs=first.token_logprobs + then.token_logprobs,
        top_logprobs=first.top_logprobs + then.top_logprobs,
        text_offset=first.text_offset + then.text_offset,
    )


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    """Returns a token's text; one that is no whole text is spelled in bytes, as OpenAI does.

    So tokens do not fall together in `top_logprobs`, which is a mapping.
    """
    piece = tokenizer.piece_bytes(token_id)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
