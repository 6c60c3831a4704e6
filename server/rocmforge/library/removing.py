"""Deletes models from the cache of the hub."""

from __future__ import annotations

from pathlib import Path

from rocmforge.errors import ConfigurationError
from rocmforge.library.hub_names import hub_repository
from rocmforge.library.stores import StoredModel


def remove(model: StoredModel) -> int:
    """Deletes a model's files.

    Returns:
        How many bytes are free now that were not: what another revision holds too is kept.

    Raises:
        ConfigurationError: another program looks after it.
    """
    repository = hub_repository(model.path)
    if repository is None:
        raise ConfigurationError(
            f"{model.name} belongs to {model.origin}, whose files are not changed here "
            f"({model.path}). Delete it there."
        )
    contents = {path.resolve() for path in model.files if path.exists()}
    for path in model.files:
        path.unlink(missing_ok=True)
    needed = {link.resolve() for link in (repository / "snapshots").rglob("*") if link.is_file()}
    freed = 0
    for blob in contents - needed:
        # Without links there is no blob: the file itself was in the snapshot.
        freed += blob.stat().st_size if blob.exists() else model.num_bytes
        blob.unlink(missing_ok=True)
    _remove_empty(repository)
    return freed


def _remove_empty(repository: Path) -> None:
    """Deletes what describes a repository of which nothing is left."""
    for folder in sorted((repository / "snapshots").rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    if not any(path.is_file() for path in (repository / "snapshots").rglob("*")):
        for path in sorted(repository.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        repository.rmdir()
