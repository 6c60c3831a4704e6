"""Reads kernels.toml, the one table of kernel sources."""

from __future__ import annotations

import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kernels.targets import Platform

KERNELS_DIR = Path(__file__).parent
INCLUDE_DIR = KERNELS_DIR / "include"
_INCLUDE = re.compile(r'^\s*#include "(rf/[^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """A translation unit: a source with the defines of one of its variants, compiled at once."""

    name: str
    source: Path
    defines: tuple[str, ...]

    def files(self, platform: Platform) -> tuple[Path, ...]:
        """Returns the source and all headers it includes on a platform, in fixed order."""
        foreign = {f"rf/platform/{other}.h" for other in Platform if other is not platform}
        found: dict[Path, None] = {}
        waiting = [self.source]
        while waiting:
            path = waiting.pop()
            if path in found:
                continue
            found[path] = None
            names = set(_INCLUDE.findall(path.read_text())) - foreign
            waiting += [INCLUDE_DIR / name for name in names]
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Source:
    """One row of the table."""

    name: str
    translation_units: tuple[TranslationUnit, ...]
    kernels: frozenset[str]


def read_table(directory: Path = KERNELS_DIR) -> tuple[Source, ...]:
    """Returns the rows of `directory`/kernels.toml.

    Raises:
        ValueError: a row has an unknown key, or its source does not exist.
    """
    rows = tomllib.loads((directory / "kernels.toml").read_text())
    return tuple(_source(directory, name, row) for name, row in rows.items())


def _source(directory: Path, name: str, row: dict[str, object]) -> Source:
    unknown = row.keys() - {"kernels", "translation_units"}
    if unknown:
        raise ValueError(f"kernels.toml: [{name}] has unknown keys: {', '.join(sorted(unknown))}")
    path = directory / "src" / f"{name}.hip"
    if not path.is_file():
        raise ValueError(f"kernels.toml: [{name}] needs the file {path}")
    patterns, variants = row.get("kernels", []), row.get("translation_units", {})
    if not isinstance(patterns, list) or not isinstance(variants, dict):
        raise ValueError(
            f"kernels.toml: [{name}] needs a list of kernels and a table of translation_units"
        )
    return Source(
        name,
        translation_units=tuple(
            TranslationUnit(f"{name}-{variant}", path, tuple(defines))
            for variant, defines in variants.items()
        )
        or (TranslationUnit(name, path, ()),),
        kernels=frozenset(itertools.chain.from_iterable(map(expand_braces, patterns))),
    )


def expand_braces(pattern: str) -> list[str]:
    """Expands `a_{x,y}_b` to `a_x_b`, `a_y_b`; several groups give all combinations."""
    literal_and_choices = re.split(r"\{([^}]*)\}", pattern)
    choices = [
        part.split(",") if index % 2 else [part] for index, part in enumerate(literal_and_choices)
    ]
    return ["".join(combination) for combination in itertools.product(*choices)]
