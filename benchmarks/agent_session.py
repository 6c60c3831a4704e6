"""A session of coding agents against a server: what is found of their prompts, and how soon.

    python -m benchmarks.agent_session http://127.0.0.1:8000
    python -m benchmarks.agent_session http://127.0.0.1:8000 --last   # after a restart

Two agents take turns. Their prompts begin alike, grow to 30,000 tokens in 20 turns each, and leave
out what the model has thought: each answer is generated, and a short text stands for it in the
next prompt. In turn 7 the second message of each agent is cut short. What could be found of a
prompt is the longest beginning that any prompt before it has, too, by tokens. At the end a prompt
of that length comes that begins otherwise.

It runs against any server with OpenAI's chat and `/tokenize`, ours and llama-server among them.
With `--last`, only the last prompts are sent, which the server has answered before it was started
again.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

import httpx

_EDITED_TURN: Final = 7
_EDITED_MESSAGE: Final = 2  # of the user
_SYSTEM_SHARE: Final = 1 / 3  # of the last prompt: instructions, and descriptions of tools
_SAMPLE_WORDS: Final = 200
_LEAST_SHARE: Final = 0.95  # of what could be found
_MOST_TIME: Final = 0.05  # of that of a whole prompt
_WORDS: Final = tuple("abcdefghijklm")

Message = dict[str, str]


def main() -> int:
    """The command line; the status is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--turns", type=int, default=20, help="of each agent")
    parser.add_argument("--tokens", type=int, default=30_000, help="of the last prompt")
    parser.add_argument("--answer", type=int, default=32, help="tokens that are generated")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="other seeds are other words")
    parser.add_argument("--last", action="store_true", help="send the last prompts alone")
    options = parser.parse_args()
    with httpx.Client(base_url=options.url, timeout=600) as http:
        server = Server(http, options.answer)
        server.ask([{"role": "user", "content": "a b c"}])  # what is made at first use
        session = Session(options, server.tokens_per_word())
        if options.last:
            _ask_again(server, session)
            return 0
        return _talk(server, session)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a prompt."""

    seconds: float  # to the first token
    prompt_tokens: int
    cached_tokens: int


class Server:
    """What is asked of a server.

    Args:
        http: knows where it is.
        most: tokens of an answer.
    """

    def __init__(self, http: httpx.Client, most: int) -> None:
        self._http = http
        self._most = most
        self._model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def ask(self, messages: Sequence[Message]) -> Answer:
        """Sends a conversation and waits for the end of the answer."""
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": self._most,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        # What the client takes to make JSON of the messages, 0.8 ms of 30,000 tokens, is its own.
        request = self._http.build_request("POST", "/v1/chat/completions", json=body)
        first, usage, started = 0.0, dict[str, Any](), time.perf_counter()
        with closing(self._http.send(request, stream=True)) as response:
            if response.is_error:
                raise SystemExit(f"{response.status_code}: {response.read().decode()}")
            for event in _events(response):
                for choice in event.get("choices", ()):
                    delta = choice.get("delta", {})
                    if delta.get("content") or delta.get("reasoning_content"):
                        first = first or time.perf_counter() - started
                usage = event.get("usage") or usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return Answer(first, usage["prompt_tokens"], cached)

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        """Returns the tokens of the prompt that a conversation becomes."""
        body: dict[str, Any] = {"model": self._model, "messages": messages}
        tokens: list[int] = self._post("/tokenize", body)["tokens"]
        if not tokens:  # llama-server's takes texts only
            prompt = self._post("/apply-template", body)["prompt"]
            body = {"content": prompt, "add_special": True, "parse_special": True}
            tokens = self._post("/tokenize", body)["tokens"]
        return tokens

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._http.post(path, json=body).raise_for_status().json()
        return found

    def tokens_per_word(self) -> float:
        """Returns how many tokens a word has."""
        texts = [_words(random.Random(0), count) for count in (_SAMPLE_WORDS, 2 * _SAMPLE_WORDS)]
        short, long = (len(self.tokenize([{"role": "user", "content": text}])) for text in texts)
        return (long - short) / _SAMPLE_WORDS


@dataclass(slots=True)
class Agent:
    """A conversation."""

    random: random.Random
    messages: list[Message] = field(default_factory=list)


class Session:
    """What agents send, always the same.

    Args:
        options: of the command line.
        tokens_per_word: of the server's model.
    """

    def __init__(self, options: argparse.Namespace, tokens_per_word: float) -> None:
        self.turns: int = options.turns
        self._words = int(options.tokens / tokens_per_word)
        source = random.Random(options.seed)
        system = _words(source, int(_SYSTEM_SHARE * self._words))
        self._agents = [
            Agent(
                random.Random(f"{options.seed} {number}"), [{"role": "system", "content": system}]
            )
            for number in range(options.agents)
        ]

    def prompts(self) -> Iterator[tuple[int, int, list[Message]]]:
        """Yields turns, numbers of agents, and what they send."""
        each = int((1 - _SYSTEM_SHARE) * self._words / self.turns)
        for turn in range(1, self.turns + 1):
            for number, agent in enumerate(self._agents):
                if turn == _EDITED_TURN:
                    self._cut_history(agent)
                text = _words(agent.random, int(0.9 * each))
                agent.messages.append({"role": "user", "content": text})
                yield turn, number, list(agent.messages)
                answer = _words(agent.random, each - int(0.9 * each))
                agent.messages.append({"role": "assistant", "content": answer})

    def other_prompt(self) -> list[Message]:
        """Returns a prompt as long as the last one, of words that nobody has sent before."""
        return [{"role": "user", "content": _words(random.Random(), self._words)}]

    @staticmethod
    def _cut_history(agent: Agent) -> None:
        of_user = [each for each in agent.messages if each["role"] == "user"]
        edited = of_user[_EDITED_MESSAGE - 1]
        half = edited["content"][: len(edited["content"]) // 2]
        place = next(i for i, each in enumerate(agent.messages) if each is edited)
        agent.messages[place] = {"role": "user", "content": half}


def _talk(server: Server, session: Session) -> int:
    seen: list[list[int]] = []
    total_found = total_possible = 0
    last = 0.0
    for turn, agent, messages in session.prompts():
        tokens = server.tokenize(messages)
        possible = max((_alike(tokens, other) for other in seen), default=0)
        seen.append(tokens)
        answer = server.ask(messages)
        assert answer.prompt_tokens == len(tokens), "the server has made another prompt of it"
        last = answer.seconds
        total_found += answer.cached_tokens
        total_possible += possible
        _say(f"turn {turn:2} of {agent}", answer, f"of {possible:6} ")
    whole = server.ask(session.other_prompt())
    _say("another prompt", whole)
    share, time_share = total_found / max(1, total_possible), last / whole.seconds
    print(
        f"{total_found:,} of {total_possible:,} tokens were found: {share:.1%}; "
        f"the last turn's first token took {time_share:.1%} of that of a whole prompt"
    )
    return int(share < _LEAST_SHARE or time_share > _MOST_TIME)


def _ask_again(server: Server, session: Session) -> None:
    last = {agent: messages for _, agent, messages in session.prompts()}
    for agent, messages in last.items():
        _say(f"last turn of {agent}", server.ask(messages))
    _say("another prompt", server.ask(session.other_prompt()))


def _say(name: str, answer: Answer, possible: str = "") -> None:
    print(
        f"{name:15} {answer.prompt_tokens:6} tokens, {answer.cached_tokens:6} {possible}found, "
        f"first token after {1e3 * answer.seconds:8.1f} ms",
        flush=True,
    )


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _words(source: random.Random, count: int) -> str:
    return " ".join(source.choices(_WORDS, k=count))


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


if __name__ == "__main__":
    raise SystemExit(main())
