"""Reads a stream of a live server over a slow link, and prints what came in which packet.

python -m tests.api.http.slow_stream FOLDER
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from tests.api.live import live_server
from tests.support.processes import slow_link
from tests.support.processes.slow_link import FAR

TOKENS = 50
BODY = {
    "model": "tiny",
    "prompt": "hello",
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "stream": True,
}


def main() -> None:
    """Prints the seconds until something came, and the tokens of each packet with any, as JSON.

    Packets are what the server makes; reads are more, the longer this process is kept waiting.
    """
    # 20 ms a token.
    arguments = ("--host", "0.0.0.0", "--backend", "create_slow")
    with (
        live_server(Path(sys.argv[1], "log"), *arguments) as server,
        slow_link.listener() as packets,
        socket.create_connection((FAR, server.port), timeout=60) as connection,
    ):
        payload = json.dumps(BODY).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: far\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(payload), payload)
        )
        begin = time.perf_counter()
        connection.recv(1)
        first_s = time.perf_counter() - begin
        while connection.recv(65536):
            pass
        tokens = [packet.count(b'"finish_reason":null') for packet in slow_link.arrived(packets)]
    print(json.dumps({"first_s": first_s, "tokens": [count for count in tokens if count]}))


if __name__ == "__main__":
    main()
