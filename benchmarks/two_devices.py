r"""Compares what two devices of a host may do for one model: replicas, a split, prefill apart.

    HIP_PLATFORM=nvidia HIP_NCCL_LIBRARY=.../libnccl.so.2 \
        python -m benchmarks.two_devices MODEL.gguf

It starts servers, and N streams ask them, each again when its last answer has ended:

- `replicas`: a server on each device; streams are dealt out in turn.
- `split`: one server, whose model is on both devices (`--tensor-parallel 2`).
- `apart`: what no engine does yet, at its best. Each prompt goes to the first device for one token.
  As long as its blocks would pass the link, nothing happens; then the second device is asked for
  the other tokens, behind a prompt of that length whose blocks it has already.
- `bound`: both devices at once as they would be apart, but each kept busy by as many streams alone.
  No engine that has them apart can serve more requests a second than the slower one.

Nothing copies blocks in `apart`, and nothing lays them out: an engine can only be slower. Models
may be of random weights (`benchmarks.synthetic_model`). Settings of all servers follow `--`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from benchmarks.closed_loop import Ask, Clients, Measured, Summary, Turn, body_of, prompt_of
from benchmarks.http_load import Connection
from benchmarks.serving import NAME, Metrics, Served, serve, split_arguments
from benchmarks.soak import idle
from rocmforge.opening import describe
from tests.support.processes.server import LiveServer

WAYS: Final = ("split", "replicas", "apart", "bound")
KNOWN_SHARE: Final = 0.85
"""Of a cache, for known prompts: the rest is for answers that have ended, which push none out."""
COLUMNS: Final = ("tokens/s", "requests/s", "first p50", "p99", "between p50", "p99", "longest")


class Load(NamedTuple):
    """Tokens of each prompt and each answer."""

    prompt: int
    answer: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads PROMPT/ANSWER; an answer has two tokens at least, one from each device."""
        numbers = [int(part) if part.isdecimal() else 0 for part in text.split("/")]
        if len(numbers) != 2 or numbers[0] < 1 or numbers[1] < 2:
            raise ValueError(f"{text} is not PROMPT/ANSWER, with an answer of 2 tokens or more")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.prompt}/{self.answer}"


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of a server, and what was looked for in it."""

    blocks: int
    block_size: int
    bytes: int
    queries: float  # tokens of prompts
    hits: float

    @property
    def token_bytes(self) -> float:
        """What a token takes."""
        return self.bytes / (self.blocks * self.block_size)

    def room(self, tokens: int) -> int:
        """Returns how many sequences of so many tokens there is room for."""
        return self.blocks // -(-tokens // self.block_size)


def bound(prefill: Summary, decode: Summary, load: Load) -> tuple[float, float]:
    """Returns the most tokens and requests a second that two devices can give apart.

    Args:
        prefill: of the device that gives each answer's first token.
        decode: of the one that gives all others.
        load: of the requests.
    """
    requests = min(prefill.turns_per_s, decode.tokens_per_s / (load.answer - 1))
    return requests * load.answer, requests


def main() -> None:
    """Prints a line for each measurement as soon as it is there."""
    options = _parse()
    config = describe(options.model).config
    if config is None:
        raise SystemExit(f"{options.model} has no configuration that is known")
    _print("ms", "", "", COLUMNS, "found in a cache")
    with Clients(NAME, config.vocab_size, options.processes) as clients:
        first, second = options.devices
        if "split" in options.ways:
            flags = ["--device", f"{first},{second}", "--tensor-parallel", "2"]
            with serve(_served(options), [flags]) as servers:
                _Bench(options, clients, config.vocab_size, servers).run(["split"])
        others = [way for way in WAYS if way != "split" and way in options.ways]
        if others:
            with serve(_served(options), [["--device", first], ["--device", second]]) as servers:
                _Bench(options, clients, config.vocab_size, servers).run(others)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--ways", default=",".join(WAYS), help="of them, with commas")
    parser.add_argument("--loads", default="512/128,2048/64,128/512", help="PROMPT/ANSWER, tokens")
    parser.add_argument("--streams", default="16,64,256")
    parser.add_argument("--devices", default="0,1", help="as --device of the server takes them")
    parser.add_argument("--backend", default="hip")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=1.5, help="seconds before, at least")
    parser.add_argument(
        "--most-warm-up", type=float, default=6.0, help="while streams have no token, at most"
    )
    parser.add_argument("--link", type=float, default=50.0, help="GB/s from device to device")
    parser.add_argument("--processes", type=int, default=0, help="of clients; 0 = by processors")
    ours, settings = split_arguments(sys.argv[1:])
    options = parser.parse_args(ours)
    options.settings = settings
    options.ways = options.ways.split(",")
    if wrong := set(options.ways) - set(WAYS):
        parser.error(f"--ways: {', '.join(sorted(wrong))} is none of {', '.join(WAYS)}")
    options.devices = options.devices.split(",")
    if len(options.devices) != 2:
        parser.error("--devices: two, with a comma")
    try:
        options.loads = list(map(Load.parse, options.loads.split(",")))
        options.streams = sorted(map(int, options.streams.split(",")))
    except ValueError as error:
        parser.error(f"--loads, --streams: {error}")
    return options


def _served(options: argparse.Namespace) -> Served:
    streams = max(options.streams)
    context = 1 + max(map(sum, options.loads))
    return Served(options.model, options.backend, streams, context, options.settings)


class _Bench:
    """The measurements of some servers."""

    def __init__(
        self,
        options: argparse.Namespace,
        clients: Clients,
        vocab_size: int,
        servers: Sequence[LiveServer],
    ) -> None:
        self._options = options
        self._clients = clients
        self._vocab_size = vocab_size
        self._servers = servers
        self._ports = [server.port for server in servers]

    def run(self, ways: Sequence[str]) -> None:
        """Measures these ways with all loads and numbers of streams."""
        for load in self._options.loads:
            for streams in self._options.streams:
                for way in ways:
                    self._measure(way, load, streams)

    def _measure(self, way: str, load: Load, streams: int) -> None:
        known = 0
        if way in ("apart", "bound"):
            room = _cache(self._servers[1]).room(sum(load))
            known = min(streams, max(1, int(KNOWN_SHARE * room)))
            asyncio.run(self._compute_known(load, known))
        turns = self._turns(way, load, streams, known)
        before = list(map(_cache, self._servers))
        measured = self._clients.measure(
            turns,
            warm_up_s=self._options.warm_up,
            most_warm_up_s=self._options.most_warm_up,
            seconds=self._options.seconds,
        )
        after = list(map(_cache, self._servers))
        found = [
            (new.hits - old.hits) / max(1.0, new.queries - old.queries)
            for new, old in zip(after, before, strict=True)
        ]
        notes = []
        if measured.begun < len(turns):
            notes.append(f"{len(turns) - measured.begun} streams had no token when it began")
        if known and known < streams:
            notes.append(f"only {known} known prompts have room")
        self._report(way, load, streams, measured, found, notes)
        for server in self._servers:
            if left := asyncio.run(idle(server.url)):
                raise RuntimeError(f"{way}: the server does not come to rest: {left}")

    def _turns(self, way: str, load: Load, streams: int, known: int) -> list[Turn]:
        """Returns what each stream asks."""
        first, second = self._ports[0], self._ports[-1]
        if way in ("split", "replicas"):
            ports = (self._ports[number % len(self._ports)] for number in range(streams))
            return [(Ask(port, load.prompt, load.answer),) for port in ports]
        prefills = [Ask(first, load.prompt, 1)] * streams
        is_chain = way == "apart"
        pause_s = self._link_s(load) if is_chain else 0.0
        decodes = [
            Ask(second, load.prompt + 1, load.answer - 1, number % known, pause_s)
            for number in range(streams)
        ]
        if is_chain:
            return list(zip(prefills, decodes, strict=True))
        return [(ask,) for ask in (*prefills, *decodes)]

    def _link_s(self, load: Load) -> float:
        """Returns how long the blocks of a prompt take from one device to the other."""
        bytes_per_s: float = 1e9 * self._options.link
        return load.prompt * _cache(self._servers[0]).token_bytes / bytes_per_s

    async def _compute_known(self, load: Load, count: int) -> None:
        """Has the second server compute the prompts that it is to know, if they are not there."""

        async def compute(number: int) -> None:
            ask = Ask(self._ports[1], load.prompt + 1, 1, known=number)
            connection = await Connection.open("127.0.0.1", ask.port)
            await connection.stream(body_of(ask, NAME, prompt_of(ask, self._vocab_size)), None)
            connection.writer.close()

        await asyncio.gather(*map(compute, range(count)))

    def _report(
        self,
        way: str,
        load: Load,
        streams: int,
        measured: Measured,
        found: Sequence[float],
        notes: Sequence[str],
    ) -> None:
        """Prints what was measured."""

        def row(name: str, seen: Summary, found: str) -> None:
            values = (seen.tokens_per_s, seen.turns_per_s, *seen.waits_ms)
            unseen = [f"{seen.unseen:.1%} of tokens without text"] if seen.unseen else []
            cells = [f"{value:,.1f}" for value in values]
            _print(name, str(load), str(streams), cells, "; ".join((found, *unseen, *notes)))

        shares = " / ".join(f"{share:.1%}" for share in found)
        if way != "bound":
            link = f", link {1e3 * self._link_s(load):.1f} ms" if way == "apart" else ""
            row(way, measured.summary(), shares + link)
            return
        prefill, decode = (
            measured.summary(half) for half in (slice(streams), slice(streams, None))
        )
        row("prefill alone", prefill, f"{found[0]:.1%}")
        row("decode alone", decode, f"{found[1]:.1%}")
        cells = [f"{value:,.1f}" for value in bound(prefill, decode, load)]
        _print("bound of apart", str(load), str(streams), cells, "")


def _cache(server: LiveServer) -> Cache:
    metrics = Metrics.of(server)
    info = metrics.labels("cache_config_info")
    return Cache(
        blocks=int(info["num_gpu_blocks"]),
        block_size=int(info["block_size"]),
        bytes=int(metrics.value("kv_cache_bytes")),
        queries=metrics.value("prefix_cache_queries_total"),
        hits=metrics.value("prefix_cache_hits_total"),
    )


def _print(way: str, load: str, streams: str, cells: Sequence[str], notes: str) -> None:
    values = "".join(f"{cell:>13}" for cell in cells).ljust(13 * len(COLUMNS))
    print(f"{way:<15}{load:>9}{streams:>5}{values}  {notes}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
