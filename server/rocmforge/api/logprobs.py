"""Log-probabilities: which tokens go with which text, and both wire styles."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rocmforge.api.schema import ChatLogprobs, LegacyLogprobs, TokenLogprobs, TopLogprob
from rocmforge.engine.params import FinishReason, TokenEvent, TokenLogprob
from rocmforge.text.tokenizer import Tokenizer


class LogprobAligner:
    """Holds tokens back until their text has been released.

    Text is held back while a character or a stop string may be incomplete. The tokens of a stop
    string that was found are dropped with its text, and so is the token that ended the sequence.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: deque[tuple[TokenLogprob, int]] = deque()  # with the end of its text, in bytes
        self._end = 0  # of the text of all tokens seen
        self._released = 0

    def push(self, event: TokenEvent, text: str, *, stopped: bool) -> tuple[TokenLogprob, ...]:
        """Takes an event and the text it released; returns the tokens that text completes.

        Args:
            event: with a log-probability for each of its tokens.
            text: what the detokenizer released for it.
            stopped: a stop string was found; nothing follows.
        """
        scored = list(event.logprobs or ())
        if event.finish_reason is FinishReason.STOP and not stopped:
            del scored[-1:]
        for token in scored:
            self._end += len(_text_bytes(self._tokenizer, token.token_id))
            self._held.append((token, self._end))
        self._released += len(text.encode("utf-8", "surrogatepass"))
        if event.finish_reason is not None and not stopped:
            return self._take(self._end)
        return self._take(self._released)

    def _take(self, end: int) -> tuple[TokenLogprob, ...]:
        taken = []
        while self._held and self._held[0][1] <= end:
            taken.append(self._held.popleft()[0])
        return tuple(taken)


def _text_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What a token adds to the text: control tokens nothing."""
    return b"" if token_id in tokenizer.special_ids else tokenizer.piece_bytes(token_id)


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    """The style of /v1/chat/completions."""
    return ChatLogprobs(content=[_token_logprobs(tokenizer, token) for token in tokens])


def _token_logprobs(tokenizer: Tokenizer, token: TokenLogprob) -> TokenLogprobs:
    piece = tokenizer.piece_bytes(token.token_id)
    return TokenLogprobs(
        token=piece.decode("utf-8", "replace"),
        logprob=token.logprob,
        bytes=list(piece),
        top_logprobs=[_top_logprob(tokenizer, *top) for top in token.top],
    )


def _top_logprob(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    piece = tokenizer.piece_bytes(token_id)
    return TopLogprob(token=piece.decode("utf-8", "replace"), logprob=logprob, bytes=list(piece))


class LegacyLogprobsBuilder:
    """The style of /v1/completions; keeps the running offset of a choice's text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def prompt(self, ids: Sequence[int], scored: Sequence[TokenLogprob]) -> LegacyLogprobs:
        """An echoed prompt; `scored` has its tokens from the second on."""
        first = TokenLogprob(token_id=ids[0], logprob=0.0, top=())
        built = self.build((first, *scored))
        built.token_logprobs[0] = None
        built.top_logprobs[0] = None
        return built

    def build(self, tokens: Sequence[TokenLogprob]) -> LegacyLogprobs:
        """Tokens that follow those given before."""
        built = LegacyLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            name = self._name(token.token_id)
            top = {self._name(token_id): logprob for token_id, logprob in token.top}
            top.setdefault(name, token.logprob)
            built.tokens.append(name)
            built.token_logprobs.append(token.logprob)
            built.top_logprobs.append(top)
            built.text_offset.append(self._offset)
            self._offset += len(
                _text_bytes(self._tokenizer, token.token_id).decode("utf-8", "ignore")
            )
        return built

    def _name(self, token_id: int) -> str:
        """A token's text; one that is no whole text by itself is spelled in bytes, as OpenAI does.

        So tokens do not fall together in `top_logprobs`, which is a mapping.
        """
        piece = self._tokenizer.piece_bytes(token_id)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
