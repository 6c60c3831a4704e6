// A block's part of y = W x for a few rows of x, with quantised W: gemv_tile.h says which.
#pragma once

#include "rf/gemv/gemv_dot.h"

namespace rf {

// How many blocks of GEMV for one row shall fit on a multiprocessor of NVIDIA GPUs, where a format
// says so; 0: as many as do. With fewer, the weights of a step come earlier.
template <class Format, int kRows>
inline constexpr int kGemvBlocks = 0;
template <class Format>
  requires requires { Format::kGemvBlocks; }
inline constexpr int kGemvBlocks<Format, 1> = Format::kGemvBlocks;

// Which pieces of K a lane takes.
struct Pieces {
  int first;
  int step;
};

// What lanes find for tile `tile` of a matrix. Calls `begun` when the first weights are on their
// way, before it reads x. `prepares`: what the format looks up is not in LDS yet.
template <class Format, int kRows, class X, class Begun>
__device__ __forceinline__ void gemv_sums(const uint8_t* weight, X& x, const Outputs& outputs,
                                          int tile, const Pieces& pieces,
                                          float (&sums)[kRows][kGroups], const Begun& begun,
                                          bool prepares = true) {
  const GemvTile<kRows> own(tile);
  Format rows[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    rows[j] = Format::of(Planes(weight, outputs.stored_rows(), own.row(j)), x.quant_blocks);
  }
  int first_quant_blocks[kRows];
  for (int m = 0; m < kRows; ++m) first_quant_blocks[m] = x.first_quant_block(m);
  gemv_dot(rows, x, first_quant_blocks, pieces.first, pieces.step, sums, [&] {
    begun();
    if (prepares) prepare<Format>();
  });
}

// The same of the lanes of a block, which wait for what writes x.
template <class Format, int kRows, class X>
__device__ __forceinline__ void gemv_sums(const uint8_t* weight, X& x, const Outputs& outputs,
                                          int tile, float (&sums)[kRows][kGroups]) {
  using Tile = GemvTile<kRows>;
  gemv_sums<Format>(weight, x, outputs, tile, {Tile::first_piece(), Tile::piece_step()}, sums,
                    [&] { x.wait(); });
}

// What the lanes of a wave found together, with both slices of each row if there are two.
template <int kRows>
__device__ __forceinline__ void store_sums(const float (&sums)[kRows][kGroups],
                                           const Activations& x,
                                           float (&to)[kRows][kGroups][kGroupRows]) {
  const auto store = [&](const auto& found) {
    constexpr int kFound = sizeof(found) / sizeof(found[0]);
#pragma unroll
    for (int m = 0; m < kFound; ++m) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const float sum = wave_sum_of_row(found[m][j]);
        if (lane_id() < kGroupRows) to[m][j][lane_id()] = sum;
      }
    }
  };
  if constexpr (kRows > 1) {
    if (x.slices == 2) {
      float both[kRows / 2][kGroups];
      add_slices(sums, both);
      store(both);
      return;
    }
  }
  store(sums);
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
