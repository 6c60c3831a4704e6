"""API keys: who may call, and how much.

Keys come from `--api-key` and from a TOML file that is read again on SIGHUP:

    [[key]]
    name = "alice"
    sha256 = "5994471a..."      # of the key; or `key = "..."` in the clear
    scope = "user"              # the default; metrics: only GET /metrics; admin: everything
    max_sequences = 4           # at once; a request with n = 4 is four
    tokens_per_minute = 60000   # prompt and completion tokens
    weight = 2.0                # of its share while other keys wait too; the default is 1
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rocmforge.engine.ipc.params import Share
from rocmforge.errors import ConfigurationError, InvalidParameter, RateLimited

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_BUSY_RETRY_S: Final = 1.0


class Scope(StrEnum):
    """The routes that a key opens."""

    USER = "user"  # the endpoints of models
    METRICS = "metrics"  # GET /metrics, nothing else
    ADMIN = "admin"  # everything


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[key]]` of the file."""

    # Names stand in logs and metrics.
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]
    key: Annotated[str, Meta(min_length=8)] | None = None
    sha256: str | None = None
    scope: Scope = Scope.USER
    max_sequences: Annotated[int, Meta(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Meta(ge=1)] | None = None
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: tuple[KeyEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key that is accepted. The key itself is not kept, only its digest."""

    name: str
    digest: bytes  # SHA-256
    scope: Scope = Scope.USER
    max_sequences: int | None = None
    tokens_per_minute: int | None = None
    weight: float = 1.0

    @property
    def tenant(self) -> bytes:
        """A name for whoever has the key, 32 bytes, the same after a restart; not the key."""
        return hashlib.blake2b(self.digest, digest_size=32, person=b"kv cache tenant").digest()


def given_keys(keys: Sequence[str]) -> tuple[ApiKey, ...]:
    """Returns the keys of `--api-key`: the operator's own, so they open everything."""
    return tuple(
        ApiKey(name=f"api-key-{number}", digest=_digest(key), scope=Scope.ADMIN)
        for number, key in enumerate(keys, 1)
    )


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Reads the keys of a file.

    Raises:
        ConfigurationError: it cannot be read, or an entry is wrong; never quotes a key.
    """
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _KeyFile).key
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML.") from error
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{path}: {error}. Each key is a table [[key]] with `name`, and `key` or `sha256`."
        ) from error
    if not entries:
        raise ConfigurationError(f"{path} has no [[key]]: nobody could use the server.")
    keys = tuple(_checked(entry, path) for entry in entries)
    for what, values in (("name", [k.name for k in keys]), ("key", [k.digest for k in keys])):
        if len({*values}) < len(values):
            raise ConfigurationError(f"{path}: two entries have the same {what}.")
    return keys


def _checked(entry: KeyEntry, path: Path) -> ApiKey:
    if (entry.key is None) == (entry.sha256 is None):
        raise ConfigurationError(f"{path}: {entry.name} needs either `key` or `sha256`.")
    if entry.sha256 is not None and not _DIGEST.fullmatch(entry.sha256):
        raise ConfigurationError(
            f"{path}: sha256 of {entry.name} must be 64 hexadecimal digits in lower case."
        )
    if entry.sha256 == _digest("").hex():
        raise ConfigurationError(f"{path}: sha256 of {entry.name} is that of an empty key.")
    return ApiKey(
        name=entry.name,
        digest=bytes.fromhex(entry.sha256) if entry.key is None else _digest(entry.key),  # type: ignore[arg-type]
        scope=entry.scope,
        max_sequences=entry.max_sequences,
        tokens_per_minute=entry.tokens_per_minute,
        weight=entry.weight,
    )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Caller:
    """Whoever holds a key: what they use now, and have used lately. One event loop only.

    Tokens are counted after the fact in a bucket that holds what one minute allows and fills up
    steadily. A request is taken as long as something is left, so the last one may overdraw it,
    and the next has to wait that much longer.

    Args:
        key: its limits may be replaced by `limit` while requests run.
        clock: seconds, monotonic.
        index: what the engine knows of it; at least 1.
    """

    def __init__(
        self, key: ApiKey, clock: Callable[[], float] = time.monotonic, index: int = 1
    ) -> None:
        self.key = key
        self.index = index
        self.running = 0  # sequences
        self._clock = clock
        self._tokens_left = float(key.tokens_per_minute or 0)
        self._counted_at = clock()

    @property
    def share(self) -> Share:
        """Of the engine."""
        return Share(key=self.index, weight=self.key.weight, tenant=self.key.tenant)

    def limit(self, key: ApiKey) -> None:
        """Goes on under the limits of `key`; tokens count from now on if they did not before."""
        was_counted = self.key.tokens_per_minute is not None
        self._refill()
        self.key = key
        if not was_counted:
            self._tokens_left = float(key.tokens_per_minute or 0)
        self._refill()

    def admit(self, sequences: int, prompt_tokens: int) -> None:
        """Takes a request in; `release` must follow.

        Raises:
            RateLimited: not now.
            InvalidParameter: never, because it alone is more than this key may run at once.
        """
        limit = self.key.max_sequences
        if limit is not None and sequences > limit:
            raise InvalidParameter(
                f"The request asks for {sequences} sequences at once; this key may run {limit}.",
                param="n",
            )
        if limit is not None and self.running + sequences > limit:
            raise RateLimited(
                f"This key runs {self.running} sequences already and may run {limit}.",
                retry_after_s=_BUSY_RETRY_S,
            )
        self._refill()
        rate = self.key.tokens_per_minute
        if rate is not None and self._tokens_left <= 0:
            raise RateLimited(
                f"This key may use {rate} tokens a minute and has used them.",
                retry_after_s=(1 - self._tokens_left) * 60 / rate,
            )
        self.running += sequences
        self._tokens_left -= prompt_tokens

    def release(self, sequences: int, completion_tokens: int) -> None:
        """Gives back the place of a request that was admitted and has ended."""
        self.running -= sequences
        self._tokens_left -= completion_tokens

    def _refill(self) -> None:
        now = self._clock()
        rate = self.key.tokens_per_minute or 0
        filled = self._tokens_left + (now - self._counted_at) * rate / 60
        self._tokens_left = min(filled, float(rate))
        self._counted_at = now


class Keyring:
    """The keys that are accepted now. Empty: everybody is let in, and nothing is counted."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._callers: dict[str, Caller] = {}
        self._indices: dict[str, int] = {}  # of all names there ever were
        self.replace(keys)

    def __bool__(self) -> bool:
        return bool(self._callers)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Accepts these keys from now on. Who keeps a name keeps the use that was counted."""
        callers = {}
        for key in keys:
            caller = self._callers.get(key.name)
            if caller is None:
                index = self._indices.setdefault(key.name, len(self._indices) + 1)
                caller = Caller(key, index=index)
            else:
                caller.limit(key)
            callers[key.name] = caller
        self._callers = callers

    def find(self, given: bytes) -> Caller | None:
        """Finds whose key this is, in time that depends neither on the key nor on its place.

        Digests have one length, and all of them are compared.
        """
        digest = hashlib.sha256(given).digest()
        found = [c for c in self._callers.values() if hmac.compare_digest(digest, c.key.digest)]
        return found[0] if found else None
