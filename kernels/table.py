"""Reads kernels.toml, the one table of kernel sources."""

from __future__ import annotations

import itertools
import re
import runpy
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.targets import TARGETS, Platform, Target

if TYPE_CHECKING:
    from rocmforge.checkpoint.formats import WeightFormat
    from rocmforge_hip.device.heads import HeadSize

KERNELS_DIR = Path(__file__).parent
INCLUDE_DIR = KERNELS_DIR / "include"
FORMATS_FILE = KERNELS_DIR.parent / "server/rocmforge/checkpoint/formats.py"
HEADS_FILE = KERNELS_DIR.parent / "backends/hip/rocmforge_hip/device/heads.py"
_KEYS = {"kernels", "formats", "unit_per_format", "heads", "targets"}
_INCLUDE = re.compile(r'^\s*#include "(rf/[^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """A translation unit: a source with the defines of one of its variants, compiled at once.

    `headers` are those of its weight formats, which the compiler reads before the source.
    `targets` are the names of those that it is compiled for, or nothing if it is for all.
    """

    name: str
    source: Path
    defines: tuple[str, ...]
    headers: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def is_for(self, target: Target) -> bool:
        """Returns whether the unit is compiled for a target."""
        return not self.targets or target.name in self.targets

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
            names = _included(path.read_bytes()) - foreign
            waiting += [INCLUDE_DIR / name for name in names]
        return tuple(sorted(found))


@cache
def _included(source: bytes) -> frozenset[str]:
    """Returns the headers that a file with this content names.

    Kept, as nearly all units include the same ones, for each target.
    """
    return frozenset(_INCLUDE.findall(source.decode()))


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


def read_heads(group: str) -> tuple[HeadSize, ...]:
    """Returns the sizes of heads of a group ("cached", "common", "w8" or "full") with kernels.

    Raises:
        ValueError: there is no such group.
    """
    declared = runpy.run_path(str(HEADS_FILE))
    groups: dict[str, tuple[HeadSize, ...]] = {
        "cached": declared["CACHED_HEADS"],
        "common": tuple(head for head in declared["CACHED_HEADS"] if head.is_common),
        "w8": tuple(head for head in declared["CACHED_HEADS"] if head.has_w8),
        "full": declared["FULL_HEADS"],
    }
    if group not in groups:
        raise ValueError(f"kernels.toml: heads is one of {', '.join(groups)}, not {group}")
    return groups[group]


def _source(
    directory: Path, name: str, row: dict[str, object], formats: tuple[WeightFormat, ...]
) -> Source:
    unknown = row.keys() - _KEYS
    if unknown:
        raise ValueError(f"kernels.toml: [{name}] has unknown keys: {', '.join(sorted(unknown))}")
    found = sorted((directory / "src").rglob(f"{name}.hip"))
    if len(found) != 1:
        raise ValueError(f"kernels.toml: [{name}] needs one file {directory}/src/**/{name}.hip")
    (path,) = found
    patterns = row.get("kernels", [])
    if not isinstance(patterns, list):
        raise ValueError(f"kernels.toml: [{name}] needs a list of kernels")
    groups = _groups(name, row.get("formats"), formats)
    chosen = groups[""]
    heads = read_heads(str(row["heads"])) if "heads" in row else ()
    targets = _targets(name, row.get("targets", []))
    if heads:
        units = [_unit(f"{name}-{head.name}", path, _head_defines(head), chosen) for head in heads]
    elif row.get("unit_per_format"):
        units = [_unit(f"{name}-{format.name}", path, (), [format]) for format in chosen]
    elif len(groups) > 1 or row.get("formats") == "mixed":
        units = [
            _unit(
                name + end.replace("_", "-"),
                path,
                (
                    _format_numbers(group, formats),
                    f"RF_GROUP={end}",
                    f"RF_IS_FIRST_GROUP={int(not end)}",
                ),
                group,
            )
            for end, group in groups.items()
        ]
    else:
        units = [_unit(name, path, (), chosen)]
    words = {
        "{format}": [format.name for format in chosen],
        "{group}": list(groups),
        "{head}": [head.name for head in heads],
        "{head_group}": [f"{head.name}_g{group}" for head in heads for group in head.groups],
        "{k8v4_head}": [head.name for head in heads if head.is_common],
        "{k8v4_head_group}": [
            f"{head.name}_g{group}" for head in heads if head.is_common for group in head.groups
        ],
    }
    for word, names in words.items():
        patterns = [p.replace(word, "{" + ",".join(names) + "}") for p in patterns]
    return Source(
        name,
        translation_units=tuple(replace(unit, targets=targets) for unit in units),
        kernels=frozenset(itertools.chain.from_iterable(map(expand_braces, patterns))),
    )


def _targets(source: str, names: object) -> tuple[str, ...]:
    known = {target.name for target in TARGETS}
    if not isinstance(names, list) or not known.issuperset(names):
        choices = ", ".join(sorted(known))
        raise ValueError(f"kernels.toml: [{source}] targets is a list of some of {choices}")
    return tuple(names)


def _groups(
    source: str, names: object, formats: tuple[WeightFormat, ...]
) -> dict[str, tuple[WeightFormat, ...]]:
    """Returns the formats of each group, by what the names of kernels for it end with.

    That is nothing for the first one.
    """
    first, *others = names if isinstance(names, list) else [names]
    return {
        "": _chosen(source, first, formats),
        **{f"_{name}": _chosen(source, name, formats) for name in others},
    }


def _chosen(
    source: str, group: object, formats: tuple[WeightFormat, ...]
) -> tuple[WeightFormat, ...]:
    if group is None:
        return ()
    groups = {
        "all": formats,
        "quantised": tuple(format for format in formats if format.is_quantised),
        "float": tuple(format for format in formats if not format.is_quantised),
        "mixed": tuple(format for format in formats if format.is_mixed),
        "unmixed": tuple(f for f in formats if f.is_quantised and not f.is_mixed),
        "streamed": tuple(format for format in formats if format.is_streamed),
        "staged": tuple(format for format in formats if format.is_staged),
        "paired": tuple(format for format in formats if format.is_paired),
        "beside_q6_k": tuple(format for format in formats if format.is_beside_q6_k),
        "exponents": tuple(f for f in formats if f.exponent_scales),
    }
    if group not in groups:
        raise ValueError(f"kernels.toml: [{source}] formats is one of {', '.join(groups)}")
    return groups[str(group)]


def _format_numbers(chosen: tuple[WeightFormat, ...], formats: tuple[WeightFormat, ...]) -> str:
    """Returns RF_FORMAT_NUMBERS(X): X(number, type), the place of each among those with kernels."""
    each = "".join(f"X({formats.index(format)}, {format.name.upper()}) " for format in chosen)
    return f"RF_FORMAT_NUMBERS(X)={each}"


def _head_defines(head: HeadSize) -> tuple[str, ...]:
    """Returns what a source for one size of heads is compiled with.

    RF_GROUPS(X) is X(group) for each number of heads that a block of decode attention may have.
    """
    groups = "".join(f"X({group}) " for group in head.groups)
    return (
        f"RF_HEAD={head.name}",
        f"RF_KEY_DIM={head.key_dim}",
        f"RF_VALUE_DIM={head.value_dim}",
        f"RF_VALUES_IN_KEYS={'true' if head.values_in_keys else 'false'}",
        f"RF_GROUPS(X)={groups}",
        f"RF_IS_COMMON={int(head.is_common)}",
    )


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
