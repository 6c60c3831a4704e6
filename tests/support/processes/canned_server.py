"""An HTTP server that answers each path with the same bytes: for clients of servers not ours."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]
Asked = tuple[str, str | None, Any]
"""Path, API key and body of a request."""


class _Handler(BaseHTTPRequestHandler):
    answers: Mapping[str, Answer]
    asked: list[Asked]

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.asked.append((self.path, self.headers["Authorization"], body))
        status, data = self.answers.get(self.path, (404, b"nothing here"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Writes nothing."""


@contextmanager
def canned_server(answers: Mapping[str, Answer], asked: list[Asked]) -> Iterator[str]:
    """Gives the address of a server with such answers by path; notes what it is asked."""
    kind = type("Answering", (_Handler,), {"answers": answers, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def events(*chunks: Any, end: bytes = b"data: [DONE]\n\n") -> Answer:
    """A stream of these values."""
    texts = (json.dumps(chunk, ensure_ascii=False).encode() for chunk in chunks)
    return 200, b"".join(b"data: " + text + b"\r\n\r\n" for text in texts) + end


def delta(**fields: str) -> Any:
    """A chunk of a chat completion."""
    return {"id": "x", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


STOP = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
