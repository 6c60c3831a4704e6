"""Installs a tiny distribution with a logits processor into a folder, for PYTHONPATH."""

from __future__ import annotations

from pathlib import Path
from typing import Final

WALK: Final = '''
from rocmforge.logits import INF, Parameter, logits_processor, reduction, where


@reduction(over="history", by="sum")
def last(history, index, length):
    return history[index] if index == length - 1 else 0


@logits_processor("walk", parameters=(Parameter("step", 1, least=0),), needs=(last,))
def walk(logit, token, last, step, vocab):
    """Allows one token only: the last one plus a step."""
    return where(token == (last + step) % vocab, logit, -INF)
'''
"""The source of a processor `walk`."""


def install(folder: Path, name: str, source: str) -> None:
    """A distribution `name` with a module `name`_sampler that holds the processor `name`."""
    (folder / f"{name}_sampler.py").write_text(source)
    info = folder / f"{name}_sampler-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-sampler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[rocmforge.logits_processors]\n{name} = {name}_sampler:{name}\n"
    )
