"""Opens models and adapters, in whatever kind of file they are: GGUF files, and folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rocmforge.errors import BadAdapter, ConfigurationError, ModelFileNotFound, ModelLoadError
from rocmforge.gguf.adapter import read_adapter
from rocmforge.gguf.checkpoint import describe_gguf, identify_gguf, open_gguf_checkpoint
from rocmforge.gguf.names import PERMUTED
from rocmforge.huggingface.adapter import read_folder_adapter
from rocmforge.huggingface.checkpoint import (
    describe_folder,
    identify_folder,
    open_folder_checkpoint,
)
from rocmforge.huggingface.files.folder import Folder
from rocmforge.models.checkpoint import Checkpoint, Contents, Identity
from rocmforge.models.lora import Adapter, AdapterSpec, check_shared


def open_checkpoint(
    path: Path,
    adapters: Iterable[AdapterSpec] = (),
    *,
    predicts: bool = False,
    mmproj: Path | None = None,
) -> Checkpoint:
    """Opens a model, and LoRA adapters for it; reads headers only.

    Args:
        path: The model's GGUF file, or the first shard; or a folder in Hugging Face's layout.
        adapters: The adapters.
        predicts: Whether the model's predictor is wanted; `ModelConfig.predicts` says if it has
            one.
        mmproj: The GGUF file of the tower of a model in such a file; None: the one beside it.

    Raises:
        ModelFileNotFound: A file is not there or cannot be read.
        ModelLoadError: A file is broken, or the model cannot be served.
        ConfigurationError: The model takes no adapters, or no tower.
    """
    if not path.is_dir():
        checkpoint = open_gguf_checkpoint(path, predicts=predicts, mmproj=mmproj)
    elif mmproj is not None:
        raise ConfigurationError("A folder has its tower within it: leave --mmproj out.")
    else:
        checkpoint = open_folder_checkpoint(path, predicts=predicts)
    try:
        specs = tuple(adapters)
        if specs and not checkpoint.config.causal:
            raise ConfigurationError("The model is an encoder: leave --lora out.")
        found = tuple(_read_adapter(checkpoint, spec) for spec in specs)
        for adapter in found:
            check_shared(checkpoint.weights, adapter)
    except BaseException:
        checkpoint.release()
        raise
    return replace(checkpoint, adapters=found)


def _read_adapter(checkpoint: Checkpoint, spec: AdapterSpec) -> Adapter:
    """Reads an adapter's header, in whatever kind of file it is."""
    if Path(spec.path).is_dir():
        return read_folder_adapter(checkpoint.config, spec)
    if checkpoint.path.is_dir() and checkpoint.config.architecture in PERMUTED:
        raise BadAdapter(
            spec.path,
            "GGUF files of Llama have the rows of queries and keys in another order than folders. "
            "Give the folder of the adapter, or serve the model from a GGUF file",
        )
    return read_adapter(checkpoint.config, spec)


def describe(path: Path) -> Contents:
    """Returns what is in a model's file or folder, even if it cannot be served.

    Raises:
        ModelFileNotFound: There is no such file, or it cannot be read.
        ModelLoadError: It is broken.
    """
    return describe_folder(path) if path.is_dir() else describe_gguf(path)


def identify(path: Path) -> Identity:
    """Returns what tells a model's file or folder from others; as `Checkpoint.identify`.

    Raises:
        ModelFileNotFound: There is no such file, or it cannot be read.
        ModelLoadError: It is broken.
    """
    return identify_folder(path) if path.is_dir() else identify_gguf(path)


def check_unchanged(path: Path, identity: Identity) -> None:
    """Checks that a model still says what it said; reads it again only if it was touched.

    The server reads a model's tokenizer, template and limits once, an engine process its weights
    each time that it starts. A file may be replaced in between, by one with other weights only.

    Raises:
        ModelFileNotFound: There is no such file any more.
        ModelLoadError: It is a broken one now, or another model.
    """
    if _state(path) == (identity.size, identity.modified_ns):
        return
    if identify(path).digest != identity.digest:
        raise ModelLoadError(
            f"{path} has another tokenizer or architecture than when the server started. "
            "Restart the server to serve it."
        )


def _state(path: Path) -> tuple[int, int]:
    """Returns the size of a model's file or files, and when one was last changed."""
    if path.is_dir():
        return Folder(path).state()
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelFileNotFound(f"{path}: cannot be read: {error.strerror}.") from error
    return stat.st_size, stat.st_mtime_ns
