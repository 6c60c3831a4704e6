"""Concurrent streams against a running server: tokens per second, TTFT, inter-token time.

    rocmforge serve MODEL --port 8000 &
    python benchmarks/http_load.py --port 8000 --model NAME --streams 64 --tokens 200

It speaks HTTP/1.1 over bare sockets, because at thousands of events a second a full HTTP client
would measure itself. One SSE event with text counts as one token; the server sends one a token.
Connections are kept, as all SDKs keep them, and have answered once before anything is measured.
With --lag-prompt N it instead sends one prompt of about N tokens beside the streams and reports
the longest silence of the server's event loop as seen through GET /health.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field

LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass
class Stream:
    """What one stream saw. Times are seconds of time.perf_counter()."""

    started: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens in this read)

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.arrivals)


@dataclass(frozen=True)
class Connection:
    """A connection that is used again and again."""

    host: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        """Connects, and has one request answered."""
        connection = cls(host, *await asyncio.open_connection(host, port))
        await connection.get("/health")
        return connection

    async def get(self, path: str) -> None:
        """One request that is answered without chunks."""
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
        header = await self.reader.readuntil(b"\r\n\r\n")
        length = int(header.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await self.reader.readexactly(length)

    async def stream(
        self, body: dict[str, object], key: str | None, seen: Stream | None = None
    ) -> Stream:
        """Runs one streaming completion to its end.

        Args:
            body: of the request.
            key: of the API, if it needs one.
            seen: what the stream has seen already; what this answer shows is added to it.

        Raises:
            RuntimeError: the server did not answer 200 or the stream did not end with [DONE].
        """
        payload = json.dumps(body).encode()
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\n{authorization}"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        result = Stream(started=time.perf_counter()) if seen is None else seen
        self.writer.write(head.encode() + payload)
        status = await self.reader.readline()
        if b" 200 " not in status:
            answer = (await self.reader.read(2000)).decode()
            raise RuntimeError(f"{status.decode().strip()}: {answer}")
        tail = b""
        while not tail.endswith(LAST_CHUNK) and (data := await self.reader.read(65536)):
            # A chunk with text has "text":"..." and a null finish reason.
            count = data.count(b'"finish_reason":null')
            if count:
                result.arrivals.append((time.perf_counter(), count))
            tail = (tail + data)[-64:]
        if b"[DONE]" not in tail:
            raise RuntimeError(f"the stream ended without [DONE]: {tail!r}")
        return result


async def measure(options: argparse.Namespace, connections: list[Connection]) -> dict[str, float]:
    """All streams at once, each on a connection of its own; returns rates and medians."""
    body: dict[str, object] = {
        "model": options.model,
        "prompt": options.prompt,
        "max_tokens": options.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    begin = time.perf_counter()
    streams = await asyncio.gather(
        *(connection.stream(body, options.key) for connection in connections)
    )
    seconds = time.perf_counter() - begin
    gaps = [
        (later - earlier) / count
        for one in streams
        for (earlier, _), (later, count) in zip(one.arrivals, one.arrivals[1:], strict=False)
    ]
    total = sum(one.tokens for one in streams)
    return {
        "streams": options.streams,
        "tokens": total,
        "seconds": seconds,
        "tokens_per_s": total / seconds,
        "ttft_ms_median": 1000 * statistics.median(s.arrivals[0][0] - s.started for s in streams),
        "inter_token_ms_median": 1000 * statistics.median(gaps) if gaps else 0.0,
    }


async def health_gaps(connection: Connection, stop: asyncio.Event) -> list[float]:
    """Round trips of GET /health on one connection, as fast as they go, until told to stop."""
    trips = []
    while not stop.is_set():
        begin = time.perf_counter()
        await connection.get("/health")
        trips.append(time.perf_counter() - begin)
        await asyncio.sleep(0.001)
    return trips


async def measure_lag(
    options: argparse.Namespace, connections: list[Connection]
) -> dict[str, float]:
    """How long /health had to wait while one very long prompt was taken in."""
    asking, probing = connections[:2]
    stop = asyncio.Event()
    probe = asyncio.create_task(health_gaps(probing, stop))
    await asyncio.sleep(0.5)
    body: dict[str, object] = {
        "model": options.model,
        "prompt": "lorem ipsum dolor sit amet " * (options.lag_prompt // 5),
        "max_tokens": 1,
        "stream": True,
    }
    await asking.stream(body, options.key)
    stop.set()
    trips = sorted(await probe)
    return {
        "probes": len(trips),
        "median_ms": 1000 * statistics.median(trips),
        "longest_ms": 1000 * trips[-1],
    }


async def run(options: argparse.Namespace) -> None:
    """Measures as often as wanted, on the same connections; prints one JSON line per run."""
    count = 2 if options.lag_prompt else options.streams
    connections = [await Connection.open(options.host, options.port) for _ in range(count)]
    for _ in range(options.repeat):
        result = await (measure_lag if options.lag_prompt else measure)(options, connections)
        print(json.dumps({name: round(value, 3) for name, value in result.items()}))
    for connection in connections:
        connection.writer.close()


def main() -> None:
    """Parses arguments and measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", required=True, help="its name at the server")
    parser.add_argument("--key")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--lag-prompt", type=int, default=0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
