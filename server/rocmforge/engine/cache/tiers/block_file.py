"""One file holds one entry of a model's cache: a header, a keyed hash of all, and the bytes.

Whoever wants to read a file must know which prefix it stands for: its name and the key of its hash
are made from the block key, which is made from the tokens and from the tenant, and from the
fingerprint of the model. So a file of another model, key or prefix is not found, and one that was
changed, cut short or put in another's place is refused. The bytes themselves are not encrypted:
permissions keep other users from them.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from struct import Struct
from typing import Final

from rocmforge.backend.arrays import UInt8Array
from rocmforge.engine.sequence.block_keys import BlockKey

SUFFIX: Final = ".kv"
PARTIAL: Final = ".part"
"""Of files that are being written; nobody reads one."""
_MAGIC: Final = b"RFCACHE\x01"
_HEADER: Final = Struct("<8s16sQ")  # magic, name, bytes that follow
_HASH_BYTES: Final = 32
OVERHEAD: Final = _HEADER.size + _HASH_BYTES
"""Bytes of a file beside what it holds."""


class RefusedFile(Exception):
    """A file that is not what it should be; the message says why."""


@dataclass(frozen=True, slots=True)
class FileKey:
    """All that is needed to find an entry and to believe it."""

    name: str  # of the file, without its suffix
    secret: bytes  # of its hash

    @classmethod
    def of(cls, fingerprint: bytes, key: BlockKey) -> FileKey:
        """Derives it from the model's fingerprint, 32 bytes, and the key of a block."""
        name = blake2b(key, digest_size=16, key=fingerprint, person=b"name of a file")
        secret = blake2b(key, digest_size=32, key=fingerprint, person=b"hash of a file")
        return cls(name.hexdigest(), secret.digest())


def write_entry(folder: Path, key: FileKey, content: UInt8Array) -> int:
    """Writes a file that is complete as soon as it has its name; returns its bytes.

    Nothing waits for the disk: after a power failure a file may be incomplete, which its hash
    shows.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    path = folder / (key.name + SUFFIX)
    partial = folder / f"{key.name}.{os.getpid()}{PARTIAL}"
    header = _HEADER.pack(_MAGIC, bytes.fromhex(key.name), content.nbytes)
    digest = _hash(key, header, content)
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(file, "wb", buffering=0) as out:
            for part in (memoryview(header), memoryview(digest), content.data):
                written = 0
                while written < len(part):
                    written += out.write(part[written:])
        partial.rename(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    return OVERHEAD + content.nbytes


def read_entry(folder: Path, key: FileKey, target: UInt8Array) -> None:
    """Reads what a file holds; `target` is undefined if this raises.

    Raises:
        RefusedFile: it is not the whole entry that was written under that key.
        OSError: it cannot be read; FileNotFoundError: there is none.
    """
    with (folder / (key.name + SUFFIX)).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != OVERHEAD + target.nbytes:
            raise RefusedFile(f"it has {size} bytes, not {OVERHEAD + target.nbytes}")
        header, digest = bytearray(_HEADER.size), bytearray(_HASH_BYTES)
        for part in (memoryview(header), memoryview(digest), target.data):
            got = 0
            while got < len(part):
                count = file.readinto(part[got:])
                if not count:
                    raise RefusedFile("it ends early")
                got += count
    if bytes(header) != _HEADER.pack(_MAGIC, bytes.fromhex(key.name), target.nbytes):
        raise RefusedFile("its header is not that of this entry")
    if not hmac.compare_digest(bytes(digest), _hash(key, bytes(header), target)):
        raise RefusedFile("its bytes do not match its hash")


def _hash(key: FileKey, header: bytes, content: UInt8Array) -> bytes:
    # SHA-256 of the content, as processors have instructions for it: 1.6 GB/s of a core, BLAKE2b
    # 0.87. It lets other threads run meanwhile, which HMAC over all of it would not.
    return hmac.digest(key.secret, header + sha256(content.data).digest(), "sha256")
