// GEMV in one kernel for all formats of a translation unit.
#pragma once

#include "rf/gemv/gemv.h"

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
