"""kernels.toml, the sources, their tests and the backend's launchers name the same kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kernels import table
from kernels.build import check_table
from kernels.builder import ROOT, Builder
from kernels.compiler import find_compiler
from kernels.table import INCLUDE_DIR, expand_braces, read_formats, read_table
from kernels.targets import Platform, select
from rocmforge_hip.device.heads import CACHED_HEADS
from rocmforge_hip.weights.formats import FORMAT_NUMBERS

TESTS = ROOT / "tests/kernels"
LAUNCHERS = ROOT / "backends/hip/rocmforge_hip"


@cache
def kernels() -> frozenset[str]:
    """All kernels of the table."""
    return frozenset(name for source in read_table() for name in source.kernels)


def names_in(path: Path) -> Iterator[str]:
    """Patterns of the kernel names in a Python file; fields of f-strings match any word."""
    tree = ast.parse(path.read_text())
    f_strings = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts_of_f_strings = {id(part) for f_string in f_strings for part in f_string.values}
    for f_string in f_strings:
        parts = (p.value if isinstance(p, ast.Constant) else r"\w*" for p in f_string.values)
        text = "".join(map(str, parts))
        if re.fullmatch(r"rf_[\w\\*]+", text):
            yield text
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in parts_of_f_strings:
            text = str(node.value)
            if re.fullmatch(r"rf_\w+", text):
                yield text


def named_in(folder: Path) -> dict[str, set[str]]:
    """The kernels each pattern in the folder's files matches."""
    return {
        pattern: {name for name in kernels() if re.fullmatch(pattern, name)}
        for path in folder.rglob("*.py")
        for pattern in names_in(path)
    }


def test_sources_define_what_the_table_lists() -> None:
    check_table(read_table(), Builder(find_compiler(None)))


def test_every_kernel_has_a_test() -> None:
    tested = set[str]().union(*named_in(TESTS).values())
    assert kernels() - tested == set()


def test_tests_and_launchers_name_kernels_that_exist() -> None:
    # Compiled while running, and one of the faulty kernels of tests/platform.
    of_no_table = {"rf_logits_processor", "rf_last_block"}
    named = named_in(TESTS) | named_in(LAUNCHERS)
    unknown = {pattern for pattern, matches in named.items() if not matches}
    # This module names them too, in the line above.
    assert unknown == of_no_table


def test_every_kernel_is_launched_by_the_backend() -> None:
    not_launched = {"rf_mma_check"}  # the check of a device's matrix layout
    launched = set[str]().union(*named_in(LAUNCHERS).values())
    assert kernels() - launched - not_launched == set()


def test_braces_give_all_combinations() -> None:
    assert expand_braces("a_{x,y}_{1,2}") == ["a_x_1", "a_x_2", "a_y_1", "a_y_2"]
    assert expand_braces("plain") == ["plain"]


def a_table(folder: Path, row: str) -> table.Source:
    """The one source of a table with this row."""
    (folder / "src").mkdir()
    (folder / "src/odd.hip").touch()
    (folder / "kernels.toml").write_text(f"[odd]\n{row}\n")
    (source,) = read_table(folder)
    return source


def test_mixed_formats_have_the_numbers_of_the_backend(tmp_path: Path) -> None:
    (unit,) = a_table(tmp_path, 'kernels = ["rf_x"]\nformats = "mixed"').translation_units
    (numbers,) = (define for define in unit.defines if define.startswith("RF_FORMAT_NUMBERS"))
    found = {
        name.lower(): int(number) for number, name in re.findall(r"X\((\d+), (\w+)\)", numbers)
    }
    mixed = [format.name for format in read_formats() if format.is_mixed]
    assert found == {name: FORMAT_NUMBERS[name] for name in mixed}


def test_each_group_of_formats_has_a_unit_and_an_end_of_names(tmp_path: Path) -> None:
    row = 'kernels = ["odd{group}", "first"]\nformats = ["mixed", "unmixed"]'
    source = a_table(tmp_path, row)
    assert source.kernels == {"odd", "odd_unmixed", "first"}
    first, second = source.translation_units
    assert (first.name, second.name) == ("odd", "odd-unmixed")
    assert first.defines[1:3] == ("RF_GROUP=", "RF_IS_FIRST_GROUP=1")
    assert second.defines[1:3] == ("RF_GROUP=_unmixed", "RF_IS_FIRST_GROUP=0")
    headers = set(first.headers), set(second.headers)
    assert not headers[0] & headers[1]
    assert {f"rf/formats/{each.name}.h" for each in read_formats() if each.is_quantised} == (
        headers[0] | headers[1]
    )


def test_staged_formats_are_those_whose_headers_say_so() -> None:
    headers = {each: INCLUDE_DIR / f"rf/formats/{each.name}.h" for each in read_formats()}
    staged = {each for each, path in headers.items() if "bool kStaged = true;" in path.read_text()}
    assert {each.name for each in staged} == {each.name for each in headers if each.is_staged}


def test_a_source_is_compiled_for_the_formats_that_it_says(tmp_path: Path) -> None:
    source = a_table(tmp_path, 'kernels = ["rf_{format}_{1,2}"]\nformats = "float"')
    assert source.kernels == {f"rf_{name}_{i}" for name in ("f32", "f16", "bf16") for i in (1, 2)}
    (unit,) = source.translation_units
    assert unit.headers == ("rf/formats/f32.h", "rf/formats/f16.h", "rf/formats/bf16.h")
    assert unit.defines == (
        "RF_FORMATS(X)=X(f32, F32, 1, 4) X(f16, F16, 1, 2) X(bf16, BF16, 1, 2) ",
    )
    assert INCLUDE_DIR / "rf/formats/bf16.h" in unit.files(Platform.AMD)


def test_each_format_may_have_a_unit_of_its_own(tmp_path: Path) -> None:
    row = 'kernels = ["rf_{format}"]\nformats = "quantised"\nunit_per_format = true'
    units = a_table(tmp_path, row).translation_units
    assert [unit.name for unit in units] == [
        f"odd-{format.name}" for format in read_formats() if format.is_quantised
    ]
    assert {len(unit.headers) for unit in units} == {1}


def test_a_source_may_be_for_some_targets_only(tmp_path: Path) -> None:
    row = 'kernels = ["rf_{format}"]\nformats = "float"\ntargets = ["sm_90", "gfx942"]'
    (unit,) = a_table(tmp_path, row).translation_units
    assert {t.name for t in select("all") if unit.is_for(t)} == {"sm_90", "gfx942"}


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[odd\] targets is a list of some of gfx.*, sm_90"):
        a_table(tmp_path, 'kernels = ["rf_x"]\ntargets = ["sm_91"]')


def test_an_unknown_group_of_formats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[odd\] formats is one of all, quantised, float"):
        a_table(tmp_path, 'kernels = ["rf_{format}"]\nformats = "q4_k"')


def test_a_source_is_compiled_for_the_sizes_of_heads_that_it_says(tmp_path: Path) -> None:
    row = 'kernels = ["rf_{f16,int8}_{head_group}"]\nheads = "cached"'
    source = a_table(tmp_path, row)
    assert source.kernels == {
        f"rf_{cache}_{head.name}_g{group}"
        for cache in ("f16", "int8")
        for head in CACHED_HEADS
        for group in head.groups
    }
    units = {unit.name: unit.defines for unit in source.translation_units}
    assert set(units) == {f"odd-{head.name}" for head in CACHED_HEADS}
    assert units["odd-d192v128"] == (
        "RF_HEAD=d192v128",
        "RF_KEY_DIM=192",
        "RF_VALUE_DIM=128",
        "RF_VALUES_IN_KEYS=false",
        "RF_GROUPS(X)=X(4) ",
        "RF_IS_COMMON=0",
    )


def test_some_kernels_are_for_heads_whose_values_may_have_four_bits(tmp_path: Path) -> None:
    source = a_table(tmp_path, 'kernels = ["rf_{k8v4_head}"]\nheads = "cached"')
    assert source.kernels == {f"rf_{size}" for size in ("d64", "d128")}


def test_values_may_be_the_end_of_keys(tmp_path: Path) -> None:
    source = a_table(tmp_path, 'kernels = ["rf_{head}"]\nheads = "cached"')
    units = {unit.name: unit.defines for unit in source.translation_units}
    in_keys = [name for name, defines in units.items() if "RF_VALUES_IN_KEYS=true" in defines]
    assert in_keys == ["odd-d576v512"]


def test_an_unknown_group_of_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"heads is one of cached, common, w8, full, not 64"):
        a_table(tmp_path, 'kernels = ["rf_odd"]\nheads = 64')


def test_every_format_with_kernels_has_a_header_and_every_header_a_format() -> None:
    headers = {path.stem for path in (INCLUDE_DIR / "rf/formats").glob("*.h")}
    assert headers == {format.name for format in read_formats()}


def test_a_format_without_a_header_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = replace(read_formats()[0], name="q9_x")
    monkeypatch.setattr(table, "read_formats", lambda: (new,))
    with pytest.raises(ValueError, match=r"a weight format needs the header .*rf/formats/q9_x\.h"):
        a_table(tmp_path, 'kernels = ["rf_{format}"]\nformats = "all"')


def test_targets_are_selected_by_name_platform_and_group() -> None:
    assert [target.name for target in select("gfx1100, nvidia")] == ["gfx1100", "sm_80", "sm_90"]
    assert len(select("generic")) == 5
    assert {target.name for target in select("all")} - {t.name for t in select("shipped")} == {
        "host-w32",
        "host-w64",
    }


def test_unknown_target_is_named() -> None:
    with pytest.raises(ValueError, match="no kernel target is called 'gfx803'; there are gfx906"):
        select("gfx1100,gfx803")
