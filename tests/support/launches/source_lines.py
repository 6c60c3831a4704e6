"""Finds the lines of kernel source behind an instruction of a host kernel library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.dwarf.compileunit import CompileUnit
from elftools.dwarf.descriptions import describe_form_class
from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

_MARK = re.compile(r" \[code\+0x([0-9a-f]+)\]")


def with_source_lines(finding: str, library: Path) -> str:
    """The finding with its `[code+0x...]` replaced by file and line, innermost call first."""
    mark = _MARK.search(finding)
    if mark is None:
        return finding
    # The address is where the call returns to; the instruction before it is the one.
    address = int(mark[1], 16) - 1
    with library.open("rb") as file:
        dwarf = ELFFile(file).get_dwarf_info()
        places = [place for unit in dwarf.iter_CUs() for place in _places(dwarf, unit, address)]
    return _MARK.sub("".join(f"\n  at {place}" for place in places), finding)


def _places(dwarf: Any, unit: CompileUnit, address: int) -> Iterator[str]:
    line = _line_of(dwarf, unit, address)
    if line is None:
        return
    yield line
    program = dwarf.line_program_for_CU(unit)
    calls = [die for die in unit.iter_DIEs() if _is_inlined_around(dwarf, die, address)]
    for die in reversed(calls):  # the innermost comes last
        file = _file_name(program, die.attributes["DW_AT_call_file"].value)
        yield f"{file}:{die.attributes['DW_AT_call_line'].value}"


def _line_of(dwarf: Any, unit: CompileUnit, address: int) -> str | None:
    program = dwarf.line_program_for_CU(unit)
    previous = None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if previous is not None and previous.address <= address < state.address:
            return f"{_file_name(program, previous.file)}:{previous.line}"
        previous = None if state.end_sequence else state
    return None


def _file_name(program: Any, number: int) -> str:
    name: bytes = program.header["file_entry"][number - 1].name
    return Path(name.decode()).name


def _is_inlined_around(dwarf: Any, die: DIE, address: int) -> bool:
    if die.tag != "DW_TAG_inlined_subroutine":
        return False
    attributes = die.attributes
    if "DW_AT_ranges" in attributes:
        base = die.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
        offset = base.value if base else 0
        ranges = dwarf.range_lists().get_range_list_at_offset(attributes["DW_AT_ranges"].value)
        return any(r.begin_offset + offset <= address < r.end_offset + offset for r in ranges)
    low, high = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
    is_length = describe_form_class(high.form) == "constant"
    return bool(low <= address < (low + high.value if is_length else high.value))
