"""A hub of our own on loopback, which speaks to the real huggingface_hub and errs when told to."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".gguf", ".safetensors")


class FakeHub:
    """Repositories by name, and what goes wrong with them."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.cut_after: list[int] = []  # bytes after which the next answers with content end
        self.changed: dict[str, bytes] = {}  # content that a file has instead of its own
        self.status: tuple[int, dict[str, str]] | None = None  # of every answer
        self.gated: set[str] = set()
        self.requests: Counter[str] = Counter()  # by method and path
        self.sent_bytes = 0
        self.tokens: set[str | None] = set()

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serves until the end of the block; gives the address."""
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Keeps quiet."""

    def do_HEAD(self) -> None:
        """Tells of a file."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Gives a file, or what is known of a repository."""
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests[f"{self.command} {path}"] += 1
        token = self.headers.get("Authorization")
        self.hub.tokens.add(token)
        if self.hub.status is not None:
            status, headers = self.hub.status
            return self._send(status, b"", headers)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._describe("/".join(parts[2:4]))
        repository, file = "/".join(parts[:2]), "/".join(parts[4:])
        if repository in self.hub.gated and token is None:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        if file not in self.hub.repositories.get(repository, {}):
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self._give(repository, file, with_body=with_body)

    def _describe(self, repository: str) -> None:
        files = self.hub.repositories.get(repository)
        if files is None:
            return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": "b"}
            | ({"lfs": _lfs(content)} if name.endswith(LARGE) else {})
            for name, content in files.items()
        ]
        body = json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
        return self._send(200, body, {"Content-Type": "application/json"})

    def _give(self, repository: str, file: str, *, with_body: bool) -> None:
        content = self.hub.repositories[repository][file]
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        content = self.hub.changed.get(file, content)
        status, begin = 200, 0
        wanted = self.headers.get("Range")
        if wanted is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), int(last or len(content) - 1) + 1
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            content = content[:end]
        self._send(status, content[begin:], headers, with_body=with_body)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], *, with_body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        if headers.get("ETag") and self.hub.cut_after:
            body = body[: self.hub.cut_after.pop(0)]
            self.close_connection = True
        self.hub.sent_bytes += len(body)
        with suppress(ConnectionError):  # somebody has stopped reading
            self.wfile.write(body)


def _lfs(content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"sha256": digest, "size": len(content), "pointerSize": 134}
