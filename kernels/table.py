"""Reads kernels.toml, the one table of kernel sources."""

from __future__ import annotations

import itertools
import re
import runpy
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.targets import Platform

if TYPE_CHECKING:
    from rocmforge.checkpoint.formats import WeightFormat

KERNELS_DIR = Path(__file__).parent
INCLUDE_DIR = KERNELS_DIR / "include"
FORMATS_FILE = KERNELS_DIR.parent / "server/rocmforge/checkpoint/formats.py"
_KEYS = {"kernels", "translation_units", "formats", "unit_per_format"}
_INCLUDE = re.compile(r'^\s*#include "(rf/[^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """A translation unit: a source with the defines of one of its variants, compiled at once.

    `headers` are those of its weight formats, which the compiler reads before the source.
    """

    name: str
    source: Path
    defines: tuple[str, ...]
    headers: tuple[str, ...] = ()

    def files(self, platform: Platform) -> tuple[Path, ...]:
        """Returns the source and all headers that it needs on a platform, in fixed order."""
        foreign = {f"rf/platform/{other}.h" for other in Platform if other is not platform}
        found: dict[Path, None] = {}
        waiting = [self.source, *(INCLUDE_DIR / name for name in self.headers)]
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
        ValueError: a row has an unknown key, or its source or the header of a format is missing.
    """
    rows = tomllib.loads((directory / "kernels.toml").read_text())
    formats = read_formats()
    return tuple(_source(directory, name, row, formats) for name, row in rows.items())


def read_formats() -> tuple[WeightFormat, ...]:
    """Returns the weight formats that have kernels.

    Their declaration is run as a file, as a build has nothing installed that it could import.
    """
    declared: dict[str, WeightFormat] = runpy.run_path(str(FORMATS_FILE))["FORMATS"]
    return tuple(format for format in declared.values() if format.has_kernels)


def _source(
    directory: Path, name: str, row: dict[str, object], formats: tuple[WeightFormat, ...]
) -> Source:
    unknown = row.keys() - _KEYS
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
    chosen = _chosen(name, row.get("formats"), formats)
    if row.get("unit_per_format"):
        units = [_unit(f"{name}-{format.name}", path, (), [format]) for format in chosen]
    elif variants:
        units = [_unit(f"{name}-{each}", path, variants[each], chosen) for each in variants]
    else:
        units = [_unit(name, path, (), chosen)]
    names = "{" + ",".join(format.name for format in chosen) + "}"
    patterns = [pattern.replace("{format}", names) for pattern in patterns]
    return Source(
        name,
        translation_units=tuple(units),
        kernels=frozenset(itertools.chain.from_iterable(map(expand_braces, patterns))),
    )


def _chosen(
    source: str, group: object, formats: tuple[WeightFormat, ...]
) -> tuple[WeightFormat, ...]:
    if group is None:
        return ()
    groups = {
        "all": formats,
        "quantised": tuple(format for format in formats if format.is_quantised),
        "float": tuple(format for format in formats if not format.is_quantised),
    }
    if group not in groups:
        raise ValueError(f"kernels.toml: [{source}] formats is one of {', '.join(groups)}")
    return groups[str(group)]


def _unit(
    name: str, source: Path, defines: Iterable[str], formats: Iterable[WeightFormat]
) -> TranslationUnit:
    """Returns the unit; its RF_FORMATS(X) is X(name, type, weights, bytes) of each format."""
    headers = tuple(f"rf/formats/{format.name}.h" for format in formats)
    for header in headers:
        if not (INCLUDE_DIR / header).is_file():
            raise ValueError(f"a weight format needs the header {INCLUDE_DIR / header}")
    each = "".join(
        f"X({format.name}, {format.name.upper()}, {format.block_size}, {format.block_bytes}) "
        for format in formats
    )
    if headers:
        defines = (*defines, f"RF_FORMATS(X)={each}")
    return TranslationUnit(name, source, tuple(defines), headers)


def expand_braces(pattern: str) -> list[str]:
    """Expands `a_{x,y}_b` to `a_x_b`, `a_y_b`; several groups give all combinations."""
    literal_and_choices = re.split(r"\{([^}]*)\}", pattern)
    choices = [
        part.split(",") if index % 2 else [part] for index, part in enumerate(literal_and_choices)
    ]
    return ["".join(combination) for combination in itertools.product(*choices)]
