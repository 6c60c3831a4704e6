"""GET /: the page on which people chat, if the operator has not taken it away.

Its files are read once. Their addresses hold a digest of them all, so browsers may keep them for
ever and yet never mix two versions. It needs no key, as it says nothing about the server: it asks
people for theirs, and uses the API as any other client does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from litestar import Response, get, route
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from rocmforge.api.http.auth import PUBLIC

FOLDER: Final = Path(__file__).parents[1] / "page"
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *("connect-src 'self'", "font-src 'self'", "img-src 'self' data:"),
        *("script-src 'self'", "style-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        # What becomes HTML has been through the sanitiser, whoever wrote the code that does it.
        *("require-trusted-types-for 'script'", "trusted-types dompurify"),
    )
)
"""What browsers let the page do: nothing but to talk to this server. People's images are data:."""

_INDEX: Final = "index.html"
_BUILT: Final = "vendor/licences.txt"
_DIGEST: Final = b"DIGEST"  # stands in the index for that of all files
_NOT_BUILT: Final = (
    b"<!doctype html><html lang=en><title>ROCmForge</title><h1>The page is not built</h1>"
    b"<p>This server runs from a checkout that lacks the libraries of its page. Run "
    b"<code>just page</code> there and start it again. The API works: see <a href=docs>docs</a>."
)
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """The page and its files; without libraries, a page that says how to get them.

    Attributes:
        digest: Of all files.
        index: The page itself.
        files: The others, by their paths below the digest.
        is_built: Whether the libraries are there.
    """

    digest: str
    index: bytes
    files: Mapping[str, bytes]
    is_built: bool


BundleDep = NamedDependency[Bundle | None]


def read_bundle(folder: Path = FOLDER) -> Bundle:
    """Reads all files of the page into memory: 1.3 MB."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _TYPES)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    short = digest.hexdigest()[:16]
    index = files.pop(_INDEX).replace(_DIGEST, short.encode())
    if _BUILT not in files:
        return Bundle(short, _NOT_BUILT, {}, is_built=False)
    return Bundle(short, index, files, is_built=True)


@route("/", http_method=["GET", "HEAD"], opt={PUBLIC: True})
async def page(bundle: BundleDep) -> Response[bytes | None]:
    """Shows the page, or leads to the API's description where there is none."""
    if bundle is None:
        return Response(None, status_code=307, headers={"Location": "docs"})
    headers = {
        "Content-Type": _TYPES[".html"],
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    return Response(bundle.index, status_code=200 if bundle.is_built else 503, headers=headers)


@get("/page/{digest:str}/{name:path}", opt={PUBLIC: True})
async def page_file(
    bundle: BundleDep, digest: FromPath[str], name: FromPath[str]
) -> Response[bytes]:
    """Returns a file of the page; names are compared, never opened."""
    plain = name.removeprefix("/")
    if bundle is None or digest != bundle.digest or plain not in bundle.files:
        raise NotFoundException(detail=f"The page has no file {plain!r}.")
    headers = {
        "Content-Type": _TYPES["." + plain.rpartition(".")[2]],
        "Cache-Control": "public, max-age=31536000, immutable",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    return Response(bundle.files[plain], headers=headers)
