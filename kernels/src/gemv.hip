// y = W x for a few rows of x, with quantised W: the linear layers of decode steps.
//
// Bound by reading W once. Weights stay packed until they meet int8 activations in dot4, so a
// weight costs about one and a half instructions. Compiled once per format.
#include "rf/gemv_dot.h"

namespace rf {

template <class Format, int kRows>
__device__ __forceinline__ void gemv(const uint8_t* weight, const Activations& x,
                                     const Outputs& outputs, const Result& result) {
  using Tile = GemvTile<kRows>;
  const Tile tile(blockIdx.x);
  Format rows[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    rows[j] = Format::of(Planes(weight, outputs.stored_rows(), tile.row(j)), x.quant_blocks);
  }

  int first_quant_blocks[kRows];
  for (int m = 0; m < kRows; ++m) first_quant_blocks[m] = x.first_quant_block(m);
  float sums[kRows][kGroups] = {};
  gemv_dot(rows, x, first_quant_blocks, Tile::first_piece(), Tile::piece_step(), sums,
           [] { prepare<Format>(); });
  if constexpr (kRows > 1) {
    if (x.slices == 2) {
      float both[kRows / 2][kGroups];
      add_slices(sums, both);
      GemvTile<kRows / 2>(blockIdx.x).finish(both, outputs, result, x.rows);
      return;
    }
  }
  tile.finish(sums, outputs, result, x.rows);
}

}  // namespace rf

// weight: a matrix of weights.h. q, scale: an activation [rows, 32 * quant_blocks] of act.h, with 1
// to kRows rows in all slices together. out: f32 [rows, out_features] = activation @ weight.T,
// gated if `activation` says so (gate.h), plus bias [out_features] where that is not null. Grid:
// stored rows / 16, block 64 to 256.
#define RF_GEMV(name, Format, kRows)                                                        \
  extern "C" __global__ __launch_bounds__(rf::kGemvThreads) void rf_gemv_##name##_r##kRows( \
      const uint8_t* __restrict__ weight, const int8_t* __restrict__ q,                     \
      const rf::ActScale* __restrict__ scale, const float* __restrict__ bias, float* out,   \
      int rows, int slices, int out_features, int quant_blocks, int activation) {           \
    rf::gemv<rf::Format, kRows>(weight, {q, scale, rows, slices, quant_blocks},             \
                                {out_features, activation}, {bias, out, nullptr});          \
  }

#define RF_GEMV_OF(name, Format, ...) \
  RF_GEMV(name, Format, 1)            \
  RF_GEMV(name, Format, 2)            \
  RF_GEMV(name, Format, 4)            \
  RF_GEMV(name, Format, 8)
RF_FORMATS(RF_GEMV_OF)
