"""Opens models and adapters, in whatever kind of file they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rocmforge.errors import ConfigurationError, ModelFileNotFound, ModelLoadError
from rocmforge.gguf.adapter import read_adapter
from rocmforge.gguf.checkpoint import describe_gguf, identify_gguf, open_gguf_checkpoint
from rocmforge.models.checkpoint import Checkpoint, Contents, Identity
from rocmforge.models.lora import AdapterSpec


def open_checkpoint(path: Path, adapters: Iterable[AdapterSpec] = ()) -> Checkpoint:
    """Opens a model, and LoRA adapters for it; reads headers only.

    Args:
        path: The model's GGUF file, or the first shard.
        adapters: The adapters.

    Raises:
        ModelFileNotFound: A file is not there or cannot be read.
        ModelLoadError: A file is broken, or the model cannot be served.
        ConfigurationError: The model takes no adapters.
    """
    checkpoint = open_gguf_checkpoint(path)
    try:
        specs = tuple(adapters)
        if specs and not checkpoint.config.causal:
            raise ConfigurationError("The model is an encoder: leave --lora out.")
        found = tuple(read_adapter(checkpoint.config, spec) for spec in specs)
    except BaseException:
        checkpoint.release()
        raise
    return replace(checkpoint, adapters=found)


def describe(path: Path) -> Contents:
    """Returns what is in a model's file, even if it cannot be served.

    Raises:
        ModelFileNotFound: There is no such file, or it cannot be read.
        ModelLoadError: It is broken.
    """
    return describe_gguf(path)


def identify(path: Path) -> Identity:
    """Returns what tells a model's file from others; as `Checkpoint.identify`.

    Raises:
        ModelFileNotFound: There is no such file, or it cannot be read.
        ModelLoadError: It is broken.
    """
    return identify_gguf(path)


def check_unchanged(path: Path, identity: Identity) -> None:
    """Checks that a file still says what it said; reads it again only if it was touched.

    The server reads a model's tokenizer, template and limits once, an engine process its weights
    each time that it starts. A file may be replaced in between, by one with other weights only.

    Raises:
        ModelFileNotFound: There is no such file any more.
        ModelLoadError: It is a broken one now, or another model.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelFileNotFound(f"{path}: cannot be read: {error.strerror}.") from error
    if (stat.st_size, stat.st_mtime_ns) == (identity.size, identity.modified_ns):
        return
    if identify(path).digest != identity.digest:
        raise ModelLoadError(
            f"{path} has another tokenizer or architecture than when the server started. "
            "Restart the server to serve it."
        )
