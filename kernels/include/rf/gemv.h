// A block's part of y = W x for a few rows of x, with quantised W: gemv_tile.h says which.
#pragma once

#include "rf/gemv_dot.h"

namespace rf {

// How many blocks of GEMV for one row shall fit on a multiprocessor of NVIDIA's, where a format
// says so; 0: as many as do. With fewer, the weights of a step come earlier.
template <class Format, int kRows>
inline constexpr int kGemvBlocks = 0;
template <class Format>
  requires requires { Format::kGemvBlocks; }
inline constexpr int kGemvBlocks<Format, 1> = Format::kGemvBlocks;

// What the lanes of a block find for tile `tile` of a matrix.
template <class Format, int kRows>
__device__ __forceinline__ void gemv_sums(const uint8_t* weight, const Activations& x,
                                          const Outputs& outputs, int tile,
                                          float (&sums)[kRows][kGroups]) {
  using Tile = GemvTile<kRows>;
  const Tile own(tile);
  Format rows[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    rows[j] = Format::of(Planes(weight, outputs.stored_rows(), own.row(j)), x.quant_blocks);
  }
  int first_quant_blocks[kRows];
  for (int m = 0; m < kRows; ++m) first_quant_blocks[m] = x.first_quant_block(m);
  gemv_dot(rows, x, first_quant_blocks, Tile::first_piece(), Tile::piece_step(), sums, [&] {
    x.wait();
    prepare<Format>();
  });
}

// Adds them up, with both slices of each row if there are two, and writes the columns.
template <int kRows>
__device__ __forceinline__ void gemv_finish(float (&sums)[kRows][kGroups], const Activations& x,
                                            const Outputs& outputs, int tile,
                                            const Result& result) {
  if constexpr (kRows > 1) {
    if (x.slices == 2) {
      float both[kRows / 2][kGroups];
      add_slices(sums, both);
      GemvTile<kRows / 2>(tile).finish(both, outputs, result, x.rows);
      return;
    }
  }
  GemvTile<kRows>(tile).finish(sums, outputs, result, x.rows);
}

}  // namespace rf
