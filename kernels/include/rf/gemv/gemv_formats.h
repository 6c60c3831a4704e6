// GEMV in one kernel for all formats of a translation unit.
#pragma once

#include "rf/gemv/gemv.h"

// The name of a kernel for the formats of this translation unit: `name`, or for groups behind the
// first one (kernels.toml) name_<group>. Those have no kernels for eight rows: with so many
// formats, these do not fit into the registers of some chips.
#define RF_OF_GROUP(name) RF_JOINED(name, RF_GROUP)
#define RF_JOINED(name, end) RF_JOINED_AS_THEY_ARE(name, end)
#define RF_JOINED_AS_THEY_ARE(name, end) name##end

namespace rf {

// As gemv_sums, where `format` is the number of the format: the place of WeightFormat among those
// with kernels.
template <int kRows, class X>
__device__ __forceinline__ void gemv_sums_of(int format, const uint8_t* weight, X& x,
                                             const Outputs& outputs, int tile,
                                             float (&sums)[kRows][kGroups]) {
#define RF_CASE(number, Format) \
  case number: gemv_sums<Format>(weight, x, outputs, tile, sums); break;
  switch (format) { RF_FORMAT_NUMBERS(RF_CASE) }
#undef RF_CASE
}

// How many rows a kernel for kRows computes. On AMD's chips without dot products (gfx101x) two rows
// of several formats do not fit into registers, though four do.
#if defined(__AMDGCN__) && !RF_DOT
template <int kRows>
inline constexpr int kSummedRows = kRows == 2 ? 4 : kRows;
#else
template <int kRows>
inline constexpr int kSummedRows = kRows;
#endif

}  // namespace rf
