"""A GGUF file as a checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rocmforge.errors import ConfigurationError, RocmForgeError
from rocmforge.gguf.config.reading import read_config, read_sampling
from rocmforge.gguf.constants import ARCHITECTURE
from rocmforge.gguf.reader import GgufFile, open_gguf
from rocmforge.gguf.tokenizer import has_tokenizer, read_templates, read_tokenizer
from rocmforge.gguf.towers.mmproj import find_mmproj, open_mmproj
from rocmforge.gguf.weights import has_predictor, name_weights, read_rope_factors, read_weights
from rocmforge.models.checkpoint import Checkpoint, Contents, Identity
from rocmforge.models.config import with_predictor

logger = logging.getLogger(__name__)


def open_gguf_checkpoint(
    path: Path, *, predicts: bool = False, mmproj: Path | None = None
) -> Checkpoint:
    """Opens a model in a GGUF file, or all shards of a model given its first.

    Args:
        path: The file.
        predicts: Whether its predictor is wanted, if it has one.
        mmproj: The file of its tower; None: the one beside it, if there is one and it fits.

    Raises:
        ModelFileNotFound: The file or one of its shards is not there or cannot be read.
        ModelLoadError: The file is broken, or the model cannot be served.
    """
    file = open_gguf(path)
    try:
        return _with_tower(read_checkpoint(file, predicts=predicts), file, mmproj)
    except BaseException:
        file.close()
        raise


def _with_tower(checkpoint: Checkpoint, file: GgufFile, mmproj: Path | None) -> Checkpoint:
    """Returns the checkpoint with its tower, if it has one; one that was not asked for must fit."""
    found = (mmproj,) if mmproj is not None else find_mmproj(file.path)
    if mmproj is not None and not checkpoint.config.causal:
        raise ConfigurationError("The model is an encoder: leave --mmproj out.")
    if not found or not checkpoint.config.causal:
        return checkpoint
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        logger.warning("%s takes no images: which of %s is its tower?", file.path.name, names)
        return checkpoint
    tokens = file.get_strs("tokenizer.ggml.tokens", [])
    try:
        config, vision, tower = open_mmproj(found[0], checkpoint.config, tokens)
    except RocmForgeError as error:
        if mmproj is not None:
            raise
        logger.warning("%s takes no images: %s", file.path.name, error.message)
        return checkpoint

    def release() -> None:
        checkpoint.release()
        tower.release()

    return replace(checkpoint, config=config, vision=vision, tower=tower, release=release)


def read_checkpoint(file: GgufFile, *, predicts: bool = False) -> Checkpoint:
    """Returns the model in an open file, which is closed with the checkpoint.

    Raises:
        UnsupportedArchitecture: There is no row for it, or it uses a feature we do not have.
        UnsupportedTensor: A tensor is missing, unexpected or of the wrong shape.
        BadAdapter: It is a LoRA adapter.
        BadGguf: A key is missing, of the wrong type, or contradicts another.
    """
    config = read_config(file)
    if predicts and has_predictor(config, file):
        config = with_predictor(config)
    weights = read_weights(config, file)

    def release() -> None:
        weights.clear()
        file.close()

    return Checkpoint(
        path=file.path,
        size_bytes=file.size_bytes,
        config=config,
        weights=MappingProxyType(weights),
        name_of=name_weights(config, file),
        rope_factors=read_rope_factors(config, file),
        chat_templates=read_templates(file.metadata),
        has_tokenizer=has_tokenizer(file.metadata),
        read_tokenizer=lambda: read_tokenizer(file.metadata),
        identify=lambda: _identity(file),
        locate=file.locate,
        release=release,
        sampling=read_sampling(file),
    )


def describe_gguf(path: Path) -> Contents:
    """Returns what is in a file.

    Raises:
        ModelFileNotFound: The file or one of its shards is not there or cannot be read.
        BadGguf: It is no valid file.
        UnsupportedTensor: A tensor has an unknown type.
    """
    file = open_gguf(path)
    tensors = tuple(file.tensors.values())
    config, refusal, sampling, vision, tower = None, None, None, None, None
    try:
        with _with_tower(read_checkpoint(file, predicts=True), file, None) as checkpoint:
            config, sampling = checkpoint.config, checkpoint.sampling
            vision = checkpoint.vision
            tower = None if checkpoint.tower is None else checkpoint.tower.config
    except RocmForgeError as error:
        refusal = error.message
    model = file.get_str("tokenizer.ggml.model", "none")
    return Contents(
        path=file.path,
        size_bytes=file.size_bytes,
        gguf_version=file.version,
        architecture=file.get_str(ARCHITECTURE, "unknown"),
        name=file.get_str("general.name", file.path.stem),
        tensors=tensors,
        config=config,
        refusal=refusal,
        tokenizer=f"{model}/{file.get_str('tokenizer.ggml.pre', 'default')}",
        chat_template=file.get_str("tokenizer.chat_template", None),
        sampling=sampling,
        vision=vision,
        tower=tower,
    )


def identify_gguf(path: Path) -> Identity:
    """Returns the identity of a file; of a split model, that of the first part.

    Raises:
        ModelFileNotFound: The file or one of its shards is not there or cannot be read.
        ModelLoadError: It is broken.
    """
    with open_gguf(path) as file:
        return _identity(file)


def _identity(file: GgufFile) -> Identity:
    stat = file.path.stat()
    return Identity(stat.st_size, stat.st_mtime_ns, _digest(file))


def _digest(file: GgufFile) -> str:
    prefixes = ("tokenizer.", f"{file.get_str('general.architecture')}.")
    described = {key: value for key, value in file.metadata.items() if key.startswith(prefixes)}
    # In ASCII: strings of a file need not be valid UTF-8, which is refused elsewhere.
    encoded = json.dumps([*prefixes, described], default=_plain)
    return hashlib.sha256(encoded.encode()).hexdigest()


def _plain(value: Any) -> str:
    assert isinstance(value, np.ndarray | np.generic), "all else in metadata is plain"
    return value.tobytes().hex()
