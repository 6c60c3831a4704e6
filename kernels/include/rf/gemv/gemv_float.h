// A block's part of y = W x for a few rows of x, with W in a format of plain numbers.
//
// Bound by reading W once. The activations stay float32, as such weights are not quantised either.
#pragma once

#include "rf/gemv/gemv_dot_float.h"

namespace rf {

template <class Format, int kRows>
__device__ __forceinline__ void gemv_float(const uint8_t* weight, const FloatActivations& x,
                                           const Outputs& outputs, const Result& result) {
  using Tile = GemvTile<kRows>;
  const Tile tile(blockIdx.x);
  Format rows[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    rows[j] = Format::of(Planes(weight, outputs.stored_rows(), tile.row(j)), x.quant_blocks);
  }

  float sums[kRows][kGroups] = {};
  gemv_dot(rows, x, 0, Tile::first_piece(), Tile::piece_step(), sums);
  tile.finish(sums, outputs, result, x.rows);
}

}  // namespace rf
