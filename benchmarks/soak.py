"""Many clients of every kind against a server, for a long time: does it stay as it was?

    python benchmarks/soak.py --minutes 20 -- smollm2 --backend reference --max-sequences 16
    python benchmarks/soak.py --minutes 20 -- model.gguf --backend hip --max-sequences 32

It starts `rocmforge serve` with what follows `--`. The first quarter of the time warms it up; then
the last third of the rest is compared with the first. It fails (status 1) if memory grew by more
than 5%, if latencies drifted (see `DRIFT`), if a server error was seen, if a kind of request was
never answered, or if something is left running at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

GROWTH = 1.05
DRIFT = {50: (1.25, 0.005), 95: (1.5, 0.02)}
"""By percentile: how much longer it may get, as a factor and in seconds on top.

Thirds of a steady run of some minutes lie within a tenth of each other. A queue, cache or list that
grows with the number of requests makes the last third several times as slow.
"""
FEWEST = 20
"""Latencies in a third from which percentiles can be told."""
KINDS = ("plain", "stream", "leaves", "reads_slowly", "schema", "tools")
SAMPLE_S = 10.0
WORDS = ("one", "two", "three", "river", "stone", "light", "under", "seven", "glass", "paper")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
BAD = (
    {"messages": "none"},
    {"messages": [], "max_tokens": -1},
    {"temperature": "hot"},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
    {"guided_regex": "(" * 40},
    {"logit_bias": {"x": 1}},
)


class Latency(NamedTuple):
    """When it was seen, and how long it was; in seconds."""

    at: float
    took: float


@dataclass
class Seen:
    """What the clients saw."""

    answers: Counter[str] = field(default_factory=Counter)  # "stream 200", ...
    failures: list[str] = field(default_factory=list)
    first_tokens: list[Latency] = field(default_factory=list)
    between_tokens: list[Latency] = field(default_factory=list)


@dataclass
class Sample:
    """The server at one moment."""

    at: float
    server_kib: int
    engine_kib: int
    files: int


class Soak:
    """The clients of one server."""

    def __init__(self, url: str, model: str, seed: int) -> None:
        self.url = url
        self.model = model
        self.seen = Seen()
        self.random = random.Random(seed)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self.http = httpx.AsyncClient(base_url=url, timeout=300, limits=limits)

    def prompt(self) -> str:
        """A few to many words; some share their beginning."""
        start = self.random.choice(("", "You are helpful. " * 8))
        return start + " ".join(self.random.choices(WORDS, k=self.random.choice((3, 10, 60))))

    def chat(self, **fields: Any) -> dict[str, Any]:
        """A request body."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt()}],
            "max_tokens": self.random.choice((4, 12, 24)),
            "temperature": self.random.choice((0, 0.8)),
            **fields,
        }

    async def post(self, kind: str, body: dict[str, Any], allowed: set[int]) -> httpx.Response:
        """One answer, which must have one of the allowed states (or 429)."""
        answer = await self.http.post("/v1/chat/completions", json=body)
        self.seen.answers[f"{kind} {answer.status_code}"] += 1
        if answer.status_code not in allowed | {429}:
            self.seen.failures.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        return answer

    async def plain(self) -> None:
        """An answer at once."""
        await self.post("plain", self.chat(), {200})

    async def bad(self) -> None:
        """A request with a mistake."""
        await self.post("bad", self.chat(**self.random.choice(BAD)), {400})

    async def schema(self) -> None:
        """An answer that must be JSON of a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        body = self.chat(response_format=form, max_tokens=40)
        answer = await self.post("schema", body, {200, 400})
        if answer.status_code == 200:
            choice = answer.json()["choices"][0]
            if choice["finish_reason"] == "stop":
                json.loads(choice["message"]["content"])

    async def tools(self) -> None:
        """An answer that must be a call."""
        body = self.chat(tools=[TOOL], tool_choice="required", max_tokens=40)
        await self.post("tools", body, {200, 400})

    async def stream(self, read: Callable[[float], Awaitable[bool]] | None = None) -> None:
        """A stream, read to its end or as long as `read` says so."""
        begin = time.monotonic()
        kind = "stream" if read is None else read.__name__
        body = self.chat(stream=True, ignore_eos=True)
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            self.seen.answers[f"{kind} {answer.status_code}"] += 1
            if answer.status_code == 429:
                return
            last, before = "", None
            async for line in answer.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    now = time.monotonic()
                    if before is None:
                        self.seen.first_tokens.append(Latency(now, now - begin))
                    elif read is None:
                        self.seen.between_tokens.append(Latency(now, now - before))
                    before = now
                if read is not None and not await read(time.monotonic() - begin):
                    return
                last = line or last
            if last != "data: [DONE]":
                self.seen.failures.append(f"{kind}: ended with {last[:200]}")

    async def leaver(self) -> None:
        """A stream whose client leaves in the middle."""
        length = self.random.uniform(0.1, 2)

        async def leaves(elapsed_s: float) -> bool:
            return elapsed_s < length

        await self.stream(leaves)

    async def slow_reader(self) -> None:
        """A stream that is read with pauses."""

        async def reads_slowly(_: float) -> bool:
            await asyncio.sleep(0.05)
            return True

        await self.stream(reads_slowly)

    async def client(self, until: float) -> None:
        """Does one thing after the other."""
        acts = (self.plain, self.stream, self.stream, self.leaver, self.slow_reader)
        while time.monotonic() < until:
            act = self.random.choice((*acts, self.bad, self.schema, self.tools))
            try:
                await act()
            except (httpx.HTTPError, json.JSONDecodeError) as error:
                self.seen.failures.append(f"{act.__name__}: {type(error).__name__} {error}")
            await asyncio.sleep(self.random.uniform(0, 0.2))


def child_of(pid: int, module: str) -> int:
    """Returns the child of a server's process that runs this module.

    Raises:
        RuntimeError: There is none.
    """
    for child in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = child.read_text().rpartition(")")[2].split()
            arguments = (child.parent / "cmdline").read_bytes()
        except OSError:
            continue  # ended meanwhile
        if int(fields[1]) == pid and module.encode() in arguments:
            return int(child.parent.name)
    raise RuntimeError(f"the server has no process of {module}")


def memory_kib(pid: int | str) -> int:
    """Memory of its own: what it shares with the page cache (the weights) does not count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise RuntimeError(f"no RssAnon of process {pid}")


async def watch(pid: int, until: float) -> list[Sample]:
    """Looks at the processes every ten seconds."""
    samples = []
    while time.monotonic() < until:
        server, engine = pid, child_of(pid, "rocmforge.engine.process")
        files = len(os.listdir(f"/proc/{server}/fd"))
        now = time.monotonic()
        samples.append(Sample(now, memory_kib(server), memory_kib(engine), files))
        await asyncio.sleep(SAMPLE_S)
    return samples


async def idle(url: str) -> str:
    """Waits until nothing runs; what is left after a while otherwise."""
    gauges = ("num_requests_running", "kv_cache_usage_perc", "state_slots_used")
    wanted = tuple(f"rocmforge_{gauge}{{" for gauge in gauges)
    left: list[str] = []
    for _ in range(100):
        async with httpx.AsyncClient() as http:
            text = (await http.get(f"{url}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(wanted)]
        left = [line for line in lines if not line.endswith(" 0.0")]
        if not left:
            return ""
        await asyncio.sleep(0.2)
    return "; ".join(left)


def drift(name: str, before: list[float], after: list[float]) -> list[str]:
    """Prints percentiles of latencies at the beginning and at the end; what got worse."""
    if min(len(before), len(after)) < FEWEST:
        return [f"{name}: too few to compare, {len(before)} and {len(after)}"]
    worse = []
    early, late = (statistics.quantiles(values, n=100) for values in (before, after))
    for percent, (factor, slack_s) in DRIFT.items():
        was, now = early[percent - 1], late[percent - 1]
        said = f"{name}, {percent}%: {was * 1e3:.1f} -> {now * 1e3:.1f} ms"
        print(said)
        if now > was * factor + slack_s:
            worse.append(f"drifted: {said}")
    return worse


async def run(options: argparse.Namespace, url: str, pid: int) -> int:
    """All clients until the time is over; prints the verdict."""
    async with httpx.AsyncClient() as http:
        model = (await http.get(f"{url}/v1/models")).json()["data"][0]["id"]
    soak = Soak(url, model, options.seed)
    begin = time.monotonic()
    until = begin + options.minutes * 60
    watching = asyncio.create_task(watch(pid, until))
    await asyncio.gather(*(soak.client(until) for _ in range(options.clients)))
    samples = await watching
    await soak.http.aclose()
    left = await idle(url)

    warm = begin + options.minutes * 60 * 0.25
    third = (until - warm) / 3
    early = [s for s in samples if warm <= s.at < warm + third]
    late = [s for s in samples if s.at >= until - third]
    problems = [f"left at the end: {left}"] if left else []
    for name in ("server_kib", "engine_kib", "files"):
        before = statistics.median(getattr(s, name) for s in early)
        after = statistics.median(getattr(s, name) for s in late)
        print(f"{name}: {before:.0f} -> {after:.0f} ({100 * (after / before - 1):+.1f}%)")
        if name != "files" and after > before * GROWTH:
            problems.append(f"{name} grew by {100 * (after / before - 1):.1f}%")
    for name, latencies in (
        ("first token", soak.seen.first_tokens),
        ("between tokens", soak.seen.between_tokens),
    ):
        first = [took for at, took in latencies if warm <= at < warm + third]
        last = [took for at, took in latencies if until - third <= at < until]
        problems += drift(name, first, last)
    answers = soak.seen.answers
    print(f"answers: {dict(sorted(answers.items()))}")
    problems += [f"no {kind} was answered" for kind in KINDS if not answers[f"{kind} 200"]]
    problems += sorted({*soak.seen.failures})[:20]
    print("\n".join(problems) if problems else "nothing grew, nothing failed, nothing is left")
    return int(bool(problems))


def main() -> int:
    """Starts the server, runs the clients, stops the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("serve", nargs="+", help="arguments of `rocmforge serve`, after --")
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    command = [sys.executable, "-m", "rocmforge", "serve", *options.serve]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, "--port", str(options.port)], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 600
            while True:
                try:
                    if httpx.get(f"{url}/ready").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the server did not become ready")
                time.sleep(0.2)
            code = asyncio.run(run(options, url, server.pid))
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(120)
        log.seek(0)
        errors = [line for line in log.read().decode().splitlines() if " ERROR " in line]
        print(f"the server ended with {status} and logged {len(errors)} errors")
        print("\n".join(errors[:10]))
        return code or status or int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
