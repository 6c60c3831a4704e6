"""kernels/report.py: what the limits of test_metadata.py count."""

from __future__ import annotations

import pytest

from kernels.report import INSTRUCTIONS, KernelReport, kernel_code
from kernels.targets import select

ASSEMBLY = """
\t.globl\tfirst
first:                                  ; @first
; %bb.0:
\ts_load_b128 s[0:3], s[0:1], 0x0
\tglobal_load_b128 v[0:3], v0, s[0:1]
.LBB0_1:
\tv_dot4_i32_iu8 v1, v2, v3, v1
\ts_endpgm
.Lfunc_end0:
second:                              ; @second
\tscratch_store_b32 off, v0, s0
\ts_endpgm
.Lfunc_end1:
"""


def test_instructions_are_told_apart_by_kernel() -> None:
    code = kernel_code(ASSEMBLY)
    assert code["first"] == ["s_load_b128", "global_load_b128", "v_dot4_i32_iu8", "s_endpgm"]
    assert code["second"] == ["scratch_store_b32", "s_endpgm"]


@pytest.mark.parametrize(
    ("instruction", "columns"),
    [
        ("v_mfma_f32_16x16x16_f16", {"matrix"}),
        ("v_wmma_f32_16x16x16_f16", {"matrix"}),
        ("v_dot4c_i32_i8_dpp", {"dot"}),
        ("v_dot2_f32_f16", {"dot"}),
        ("global_load_dwordx4", {"load", "load16"}),
        ("global_load_dwordx2", {"load"}),
        ("ds_read_b128", {"lds"}),
        ("ds_bpermute_b32", {"lane"}),
        ("v_mov_b32_dpp", {"lane"}),
        ("scratch_load_dword", {"scratch"}),
        ("v_fma_f32", set()),
    ],
)
def test_instructions_are_counted_in_their_columns(instruction: str, columns: set[str]) -> None:
    found = {name for name, pattern in INSTRUCTIONS.items() if pattern.match(instruction)}
    assert found - {"all", "lane"} == columns - {"lane"}
    assert ("lane" in found) == ("lane" in columns or instruction.endswith("_dpp"))


@pytest.mark.parametrize(
    ("target", "vgprs", "lds", "waves"),
    [
        ("gfx1100", 96, 0, 16),
        ("gfx1100", 97, 0, 12),
        ("gfx1102", 96, 0, 10),
        ("gfx942", 64, 0, 8),
        ("gfx942", 129, 0, 3),
        ("gfx942", 16, 32 << 10, 2),
    ],
)
def test_occupancy_follows_registers_and_lds(target: str, vgprs: int, lds: int, waves: int) -> None:
    resources = {"vgprs": vgprs, "lds_bytes": lds, "max_threads": 256}
    report = KernelReport("kernel", select(target)[0], resources, {})
    assert report.waves_per_simd == waves
