"""Reads a stream of a live server over a slow link, and prints when its tokens came.

python -m tests.api.http.slow_stream FOLDER
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from tests.api.live import live_server
from tests.support.slow_link import FAR

TOKENS = 50
BODY = {
    "model": "tiny",
    "prompt": "hello",
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "stream": True,
}


def main() -> None:
    """Prints [seconds, tokens] of each read, as JSON."""
    # 20 ms a token.
    arguments = ("--host", "0.0.0.0", "--backend", "create_slow")
    with live_server(Path(sys.argv[1], "log"), *arguments) as server:
        payload = json.dumps(BODY).encode()
        with socket.create_connection((FAR, server.port), timeout=60) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: far\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(payload), payload)
            )
            begin, reads = time.perf_counter(), []
            while data := connection.recv(65536):
                reads.append((time.perf_counter() - begin, data.count(b'"finish_reason":null')))
    print(json.dumps(reads))


if __name__ == "__main__":
    main()
