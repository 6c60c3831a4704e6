"""Bundles: what is needed to compute again a step that a device got wrong."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from rocmforge import __version__
from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.engine.proof.bounds import Bounds
from rocmforge.engine.proof.comparing import differ
from rocmforge.engine.proof.messages import Begin, Sample
from rocmforge.errors import ConfigurationError
from rocmforge.models.checkpoint import Identity

logger = logging.getLogger(__name__)

MOST_FILES: Final = 16
"""Bundles in a folder: the first ones say most, so no later one takes their place."""
MOST_PLACES: Final = 64
"""Of a bundle, around the worst."""


class BundlePlace(msgspec.Struct, frozen=True, kw_only=True):
    """One place, as the device and the reference computed it then."""

    place: int  # in the sequence, from 0
    kl: float | None  # nats; None where one of them had no numbers
    device: list[float | None]  # log-probabilities of the tokens that it found most probable
    reference: list[float | None]  # of the same tokens; None = it has them not among its own
    ids: list[int] | None = None  # of these tokens; None = they may not be told
    drawn: int | None = (
        None  # the token that was drawn here; None = it may not be told, or none was
    )


class ProofBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a bundle's file."""

    kind: Literal["rocmforge proof bundle"] = "rocmforge proof bundle"
    version: str = __version__
    time: float  # seconds since the epoch
    alarm: str
    model: str  # path
    identity: Identity | None
    runner: RunnerInfo
    options: LoadOptions
    bounds: Bounds
    number: int  # of the request
    adapter: int
    num_tokens: int  # of the sequence
    digest: str  # BLAKE2b-128 of its token ids, each as four bytes
    is_broken: bool  # the device found a NaN behind the last token
    places: list[BundlePlace]
    tokens: list[int] | None = None  # of prompt and answer; None = they may not be told


def write_bundle(
    begin: Begin, sample: Sample, found: Sequence[TokenLogprob], alarm: str
) -> Path | None:
    """Writes the bundle of a sample; returns its file.

    Args:
        begin: whose `bundles` says where, and what may be in it.
        sample: what the device computed.
        found: what the reference finds at the same places.
        alarm: what is wrong.

    Returns:
        None if there are as many as there may be, or the folder cannot be written.
    """
    policy = begin.bundles
    assert policy is not None, "there is a place for bundles"
    folder = Path(policy.folder)
    stem = time.strftime("proof-%Y%m%dT%H%M%SZ", time.gmtime())
    path = folder / f"{stem}-{sample.number}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if len([*folder.glob("proof-*.json")]) >= MOST_FILES:
            logger.warning("no bundle is written: %s holds %d already", folder, MOST_FILES)
            return None
        bundle = _make(begin, sample, found, alarm, keeps_tokens=policy.keeps_tokens)
        _write(path, msgspec.json.format(msgspec.json.encode(bundle), indent=1))
    except OSError as error:
        logger.warning("no bundle is written: %s", error)
        return None
    return path


def read_bundle(path: Path) -> ProofBundle:
    """Reads a bundle.

    Raises:
        ConfigurationError: the file cannot be read, or is no bundle.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProofBundle)
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path} is no bundle of this version: {error}.") from error


def digest_of(tokens: Sequence[int]) -> str:
    """Returns what a bundle says of tokens that it may not tell."""
    return blake2b(np.array(tokens, "<i4").tobytes(), digest_size=16).hexdigest()


def _make(
    begin: Begin,
    sample: Sample,
    found: Sequence[TokenLogprob],
    alarm: str,
    *,
    keeps_tokens: bool,
) -> ProofBundle:
    recorded = sample.places()
    differences = [differ(w, g) for w, g in zip(found, recorded, strict=False)]
    worst = max(range(len(differences)), key=lambda i: differences[i].kl, default=0)
    if sample.is_broken:  # behind the last of them
        worst = len(differences)
    start = max(0, min(worst - MOST_PLACES // 2, len(differences) - MOST_PLACES))
    places = []
    for index in range(start, min(start + MOST_PLACES, len(differences))):
        got, wanted = recorded[index], dict(found[index].top)
        kl = differences[index].kl
        places.append(
            BundlePlace(
                place=sample.first + index,
                kl=kl if np.isfinite(kl) else None,
                device=[logprob for _, logprob in got.top],
                reference=[wanted.get(token) for token, _ in got.top],
                ids=[token for token, _ in got.top] if keeps_tokens else None,
                drawn=got.token_id if keeps_tokens else None,
            )
        )
    return ProofBundle(
        time=time.time(),
        alarm=alarm,
        model=begin.model,
        identity=begin.identity,
        runner=begin.runner,
        options=begin.options,
        bounds=begin.bounds,
        number=sample.number,
        adapter=sample.adapter,
        num_tokens=len(sample.tokens),
        digest=digest_of(sample.tokens),
        is_broken=sample.is_broken,
        places=places,
        tokens=list(sample.tokens) if keeps_tokens else None,
    )


def _write(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, for its owner alone."""
    half = path.with_suffix(".part")
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
