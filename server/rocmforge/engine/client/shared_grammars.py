"""Sends the grammars of live requests to the engine process, each of them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rocmforge.engine.ipc.grammar_name import INLINE_CHARACTERS, grammar_name
from rocmforge.engine.ipc.messages import Command, DefineGrammar, ForgetGrammar

Send = Callable[[Command], None]


class SharedGrammars:
    """Long grammars and which live requests use them.

    A schema may have megabytes, and a request with `n` choices is `n` requests here.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by name
        self._users: Counter[str] = Counter()  # live requests, by name
        self._name_of: dict[int, str] = {}  # by request

    def open(self, request_id: int, grammar: str, send: Send) -> str:
        """Returns what stands for the grammar of a request, and sends its text if that is new.

        Raises:
            EngineError: it is larger than a message may be.
        """
        if len(grammar) <= INLINE_CHARACTERS:
            return grammar
        known = (name for name, text in self._texts.items() if text is grammar)
        name = next(known, None) or grammar_name(grammar)
        if name not in self._texts:
            send(DefineGrammar(name=name, text=grammar))
            self._texts[name] = grammar
        self._users[name] += 1
        self._name_of[request_id] = name
        return name

    def close(self, request_id: int, send: Send) -> None:
        """Forgets a request, and its grammar if no other uses that."""
        name = self._name_of.pop(request_id, None)
        if name is None:
            return
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name], self._texts[name]
            send(ForgetGrammar(name=name))

    def send_all(self, send: Send) -> None:
        """Tells a new process what live requests refer to."""
        for name, text in self._texts.items():
            send(DefineGrammar(name=name, text=text))
