// y = W x for a few rows of x, with W in a format of plain numbers.
//
// Bound by reading W once. The activations stay float32, as such weights are not quantised either.
#include "rf/formats.h"
#include "rf/gemv_tile.h"

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

template <class Format, int kRows>
__device__ __forceinline__ void gemv_float(const uint8_t* weight, const FloatActivations& x,
                                           const Outputs& outputs, const Result& result) {
  using Tile = GemvTile<kRows>;
  constexpr int kPerItem = Format::kPerItem;
  Format rows[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    rows[j] = Format::of(Planes(weight, outputs.stored_rows(), Tile::row(j)), x.quant_blocks);
  }

  const int items = x.quant_blocks * (kQuantBlock / kPerItem);
  const int step = Tile::piece_step();
  U4 next[kGroups];
  const auto load_next = [&](int i) {
    for (int j = 0; j < kGroups; ++j) next[j] = rows[j].items[min(i, items - 1)];
  };

  // The weights of the next step are on their way while this one's are used; see gemv.hip.
  float sums[kRows][kGroups] = {};
  load_next(Tile::first_piece());
  for (int i = Tile::first_piece(); i < items; i += step) {
    float w[kGroups][kPerItem];
    for (int j = 0; j < kGroups; ++j) {
      for (int k = 0; k < kPerItem; ++k) w[j][k] = Format::value(next[j], k);
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      float values[kPerItem];
      x.load(m, i * kPerItem, values);
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
  Tile::finish(sums, outputs, result, x.rows);
}

}  // namespace rf

// As rf_gemv_<format>_r<rows> of gemv.hip, with x f32 [rows, 32 * quant_blocks].
#define RF_GEMV(name, Format, kRows)                                                               \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void rf_gemv_##name##_r##kRows(        \
      const uint8_t* __restrict__ weight, const float* __restrict__ x,                             \
      const float* __restrict__ bias, float* out, int rows, int out_features, int quant_blocks,    \
      int activation) {                                                                            \
    rf::gemv_float<rf::Format, kRows>(weight, {x, rows, quant_blocks}, {out_features, activation}, \
                                      {bias, out, nullptr});                                       \
  }

#define RF_GEMV_OF(name, Format, ...) \
  RF_GEMV(name, Format, 1)            \
  RF_GEMV(name, Format, 2)            \
  RF_GEMV(name, Format, 4)            \
  RF_GEMV(name, Format, 8)
RF_FORMATS(RF_GEMV_OF)
