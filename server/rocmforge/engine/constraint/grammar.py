"""Constrained sampling: which tokens a sequence may draw next.

The work is llguidance's: an Earley parser over lexemes, run against a trie of the vocabulary. This
module gives it the vocabulary and hands out one matcher per sequence.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from weakref import proxy

import llguidance

from rocmforge.backend.arrays import Int32Array, UInt32Array
from rocmforge.engine.ipc.grammar_name import grammar_name
from rocmforge.engine.ipc.params import TokenPieces
from rocmforge.errors import EngineError
from rocmforge.latest_used import LatestUsed
from rocmforge.text.output.grammar import parser_limits

_CACHED_CHARACTERS = 16 << 20
"""Of their texts. What is compiled of a text grows with it."""
_LEAST_CHARACTERS = _CACHED_CHARACTERS // 64
"""That any of them counts as."""

Compiled = Future[llguidance.LLMatcher]


class _Vocabulary:
    """The vocabulary as llguidance wants it. Whoever uses its tokenizer keeps it alive."""

    def __init__(self, pieces: TokenPieces, vocab_size: int) -> None:
        self.tokens = list(pieces.pieces[:vocab_size])
        self.special_token_ids = list(pieces.special_ids)
        self.eos_token_id = pieces.eos_ids[0]
        self.bos_token_id = None
        self._tokenizer: llguidance.LLTokenizer | None = None

    def build(self, vocab_size: int, eos_ids: tuple[int, ...]) -> llguidance.LLTokenizer:
        # Weakly: Python does not find cycles that go through an object of Rust, to free them.
        wrapper = llguidance.TokenizerWrapper(proxy(self))
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=vocab_size, eos_token=list(eos_ids)
        )
        return self._tokenizer

    def __call__(self, text: bytes) -> list[int]:
        """Tokenises text that the grammar leaves no choice about: the longest pieces, greedily."""
        if self._tokenizer is None:
            return []  # asked for while it is built, to see whether this takes bytes
        return self._tokenizer.greedy_tokenize(text.decode())


class Matcher:
    """The state of one sequence in its grammar. Committed tokens alone advance it."""

    def __init__(
        self, matcher: llguidance.LLMatcher, num_words: int, vocabulary: _Vocabulary
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self.num_words = num_words

    def fill(self, mask: UInt32Array) -> None:
        """Sets bit t % 32 of word t // 32 if token t may come next; `mask` is [ceil(V / 32)].

        Once the grammar is complete, only tokens that end a sequence may.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def fill_ahead(self, masks: UInt32Array, tokens: Int32Array) -> None:
        """Fills a mask for each of these tokens, and one for what follows them, [1 + N, words].

        The tokens are allowed. The place in the grammar stays as it is.
        """
        self.fill(masks[0])
        for mask, token in zip(masks[1:], tokens.tolist(), strict=True):
            self._matcher.consume_token(token)
            self.fill(mask)
        if len(tokens):
            self._matcher.rollback(len(tokens))

    def count_allowed(self, tokens: Int32Array) -> int:
        """Returns how many of these tokens, from the first on, may come next."""
        return self._matcher.validate_tokens(tokens.tolist())

    def advance(self, token: int) -> bool:
        """Takes the next token; False if the grammar is at an impasse, and `error` says why."""
        return self._matcher.consume_token(token)

    @property
    def error(self) -> str:
        """The error message: a limit of the parser, or a token that was not allowed."""
        return self._matcher.get_error()


class Grammars:
    """Compiles grammars for one vocabulary, in a thread of its own, and makes matchers.

    Args:
        pieces: the vocabulary.
        vocab_size: tokens in the model's logits; those without a piece are never allowed.
    """

    def __init__(self, pieces: TokenPieces, vocab_size: int) -> None:
        self._vocabulary = _Vocabulary(pieces, vocab_size)
        self._tokenizer = self._vocabulary.build(vocab_size, pieces.eos_ids)
        self._num_words = -(-vocab_size // 32)
        self._texts: dict[str, str] = {}  # of unfinished requests, by name
        self._compiled: LatestUsed[str, Compiled] = LatestUsed(_CACHED_CHARACTERS)
        self._compiler = ThreadPoolExecutor(1, "grammar")

    def define(self, name: str, text: str) -> None:
        """Takes the text that requests refer to by this name."""
        self._texts[name] = text

    def forget(self, name: str) -> None:
        """Drops a text that no request needs any more; what was made of it may be kept."""
        self._texts.pop(name, None)

    def compile(self, grammar: str) -> Compiled:
        """Begins to compile a grammar, unless that was done or begun not long ago.

        Args:
            grammar: in llguidance's serialised form, or the name of one that was defined.
        """
        text = self._texts.get(grammar)
        name = grammar_name(grammar) if text is None else grammar
        text = grammar if text is None else text
        compiled = self._compiled.find(name)
        if compiled is None:
            compiled = self._compiler.submit(self._compile, text)
            self._compiled.keep(name, compiled, max(len(text), _LEAST_CHARACTERS))
        return compiled

    def begin(self, compiled: Compiled) -> Matcher:
        """Returns a matcher at the beginning of a grammar; waits until it is compiled.

        Raises:
            EngineError: it does not compile; the HTTP side checks grammars before it sends them.
        """
        return Matcher(compiled.result().deep_copy(), self._num_words, self._vocabulary)

    def matcher(self, grammar: str) -> Matcher:
        """Returns a matcher for a grammar that nothing else waits for; as `compile` and `begin`."""
        return self.begin(self.compile(grammar))

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        # Without the interpreter's lock: the engine's steps go on meanwhile.
        compiled = llguidance.LLMatcher(
            self._tokenizer, grammar, log_level=0, limits=parser_limits()
        )
        if compiled.is_error():
            raise EngineError(f"The grammar does not compile: {compiled.get_error()}")
        return compiled
