// What GEMV does with the rows of plain numbers that a lane has: multiply them with float32
// activations.
#pragma once

#include "rf/gemv/gemv_tile.h"
#include "rf/weights/formats.h"

namespace rf {

// A float32 activation [rows, K].
struct FloatActivations {
  const float* values;
  int rows;
  int quant_blocks;  // K / 32

  // kCount values of row m from column `column`; rows beyond the last are the last again.
  template <int kCount>
  __device__ __forceinline__ void load(int m, int column, float (&out)[kCount]) const {
    const int64_t row = min(m, rows - 1);
    const float* from = values + row * quant_blocks * kQuantBlock + column;
    for (int i = 0; i < kCount; i += 4) {
      const Vec<float, 4> four = load16(from + i);
      for (int k = 0; k < 4; ++k) out[i + k] = four[k];
    }
  }
};

// Adds to `sums` what the items first, first + step, ... of these rows of weights make with the
// rows of x from `first_row` on.
template <class Format, int kRows>
__device__ __forceinline__ void gemv_dot(const Format (&rows)[kGroups], const FloatActivations& x,
                                         int first_row, int first, int step,
                                         float (&sums)[kRows][kGroups]) {
  constexpr int kPerItem = Format::kPerItem;
  const int items = x.quant_blocks * (kQuantBlock / kPerItem);
  U4 next[kGroups];
  const auto load_next = [&](int i) {
    for (int j = 0; j < kGroups; ++j) next[j] = rows[j].items[min(i, items - 1)];
  };

  // The weights of the next step are on their way while this one's are used; see gemv_dot.h.
  load_next(first);
  for (int i = first; i < items; i += step) {
    float w[kGroups][kPerItem];
    for (int j = 0; j < kGroups; ++j) {
      for (int k = 0; k < kPerItem; ++k) w[j][k] = Format::value(next[j], k);
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      float values[kPerItem];
      x.load(first_row + m, i * kPerItem, values);
      if (m == kRows - 1) {
        issue_loads();
        load_next(i + step);
        issue_loads();
      }
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        for (int k = 0; k < kPerItem; ++k) sums[m][j] += w[j][k] * values[k];
      }
    }
  }
}

}  // namespace rf
