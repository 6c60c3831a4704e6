"""Concurrent streams against a running server: tokens per second, TTFT, inter-token time.

    rocmforge serve MODEL --port 8000 &
    python benchmarks/http_load.py --port 8000 --streams 64 --tokens 200

It speaks HTTP/1.1 over bare sockets, because at thousands of events a second a full HTTP client
would measure itself. One SSE event with text counts as one token; the server sends one a token.
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


@dataclass
class Stream:
    """What one stream saw. Times are seconds of time.perf_counter()."""

    started: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens in this read)

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.arrivals)


async def stream(host: str, port: int, body: dict[str, object], key: str | None) -> Stream:
    """Runs one streaming completion to its end.

    Raises:
        RuntimeError: the server did not answer 200 or the stream did not end with [DONE].
    """
    payload = json.dumps(body).encode()
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{authorization}"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    result = Stream(started=time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + payload)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await reader.read(2000)).decode()}")
        tail = b""
        while data := await reader.read(65536):
            # A chunk with text has "text":"..." and a null finish reason.
            count = data.count(b'"finish_reason":null')
            if count:
                result.arrivals.append((time.perf_counter(), count))
            tail = (tail + data)[-64:]
        if b"[DONE]" not in tail:
            raise RuntimeError(f"the stream ended without [DONE]: {tail!r}")
    finally:
        writer.close()
    return result


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """All streams at once; returns rates and medians."""
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
        *(stream(options.host, options.port, body, options.key) for _ in range(options.streams))
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


async def health_gaps(options: argparse.Namespace, stop: asyncio.Event) -> list[float]:
    """Round trips of GET /health on one connection, as fast as they go, until told to stop."""
    reader, writer = await asyncio.open_connection(options.host, options.port)
    request = f"GET /health HTTP/1.1\r\nHost: {options.host}\r\n\r\n".encode()
    trips = []
    while not stop.is_set():
        begin = time.perf_counter()
        writer.write(request)
        header = await reader.readuntil(b"\r\n\r\n")
        length = int(header.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        trips.append(time.perf_counter() - begin)
        await asyncio.sleep(0.001)
    writer.close()
    return trips


async def measure_lag(options: argparse.Namespace) -> dict[str, float]:
    """How long /health had to wait while one very long prompt was taken in."""
    stop = asyncio.Event()
    probe = asyncio.create_task(health_gaps(options, stop))
    await asyncio.sleep(0.5)
    body: dict[str, object] = {
        "model": options.model,
        "prompt": "lorem ipsum dolor sit amet " * (options.lag_prompt // 5),
        "max_tokens": 1,
        "stream": True,
    }
    await stream(options.host, options.port, body, options.key)
    stop.set()
    trips = sorted(await probe)
    return {
        "probes": len(trips),
        "median_ms": 1000 * statistics.median(trips),
        "longest_ms": 1000 * trips[-1],
    }


def main() -> None:
    """Parses arguments, measures, prints one JSON line per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="")
    parser.add_argument("--key")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--lag-prompt", type=int, default=0)
    options = parser.parse_args()
    for _ in range(options.repeat):
        result = asyncio.run(measure_lag(options) if options.lag_prompt else measure(options))
        print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
