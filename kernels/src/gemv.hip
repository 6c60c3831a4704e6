// y = W x for a few rows of x, with quantised W: the linear layers of decode steps.
//
// Bound by reading W once. Weights stay packed until they meet int8 activations in dot4, so a
// weight costs about one and a half instructions. Compiled once per format.
#include "rf/act.h"
#include "rf/formats.h"
#include "rf/gemv_tile.h"

namespace rf {

// An int8 activation (act.h). Here its slices are rows that follow each other: with two slices,
// rows 2 i and 2 i + 1 are those of row i of the result.
struct Activations {
  const int8_t* q;
  const ActScale* scale;
  int rows;          // of the result
  int slices;        // 1 or 2
  int quant_blocks;  // K / 32

  struct Block {
    U4 q[2];
    ActScale scale;
  };
  // Where row m begins; rows beyond the last are the last again.
  __device__ __forceinline__ int first_quant_block(int m) const {
    const int lo = slices - 1;  // 0 or 1
    return (min(m >> lo, rows - 1) + (m & lo) * rows) * quant_blocks;
  }
  __device__ __forceinline__ Block load(int quant_block) const {
    const U4* values = reinterpret_cast<const U4*>(q) + 2 * static_cast<int64_t>(quant_block);
    return {{values[0], values[1]}, scale[quant_block]};
  }
};

// The product of a quant block of weights and one of activations.
template <class Format>
__device__ __forceinline__ float unit_dot(const uint32_t (&code)[8],
                                          const Scales<Format::kScales>& scales,
                                          const Activations::Block& x) {
  constexpr int kParts = Format::kScales;
  const int halves[2] = {x.scale.sum_low, x.scale.sum_high};
  float result = 0.0f;
  for (int part = 0; part < kParts; ++part) {
    const int x_sum = kParts == 1 ? halves[0] + halves[1] : halves[part];
    int sum = -Format::kZero * x_sum;
    for (int k = part * 8 / kParts; k < (part + 1) * 8 / kParts; ++k) {
      sum = dot4(code[k], x.q[k / 4][k % 4], sum);
    }
    result += scales.scale[part] * static_cast<float>(sum);
    if constexpr (Format::kOffset) result += scales.offset[part] * static_cast<float>(x_sum);
  }
  return x.scale.scale * result;
}

template <class Format, int kRows>
__device__ __forceinline__ void gemv(const uint8_t* weight, const Activations& x,
                                     const Outputs& outputs, const Result& result) {
  using Tile = GemvTile<kRows>;
  Format rows[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    rows[j] = Format::of(Planes(weight, outputs.stored_rows(), Tile::row(j)), x.quant_blocks);
  }

  int first_quant_blocks[kRows];
  for (int m = 0; m < kRows; ++m) first_quant_blocks[m] = x.first_quant_block(m);
  constexpr int kQuantBlocks = Format::kQuantBlocks;
  const int chunks = x.quant_blocks / kQuantBlocks;
  const int step = Tile::piece_step();
  const int place = Tile::first_piece() % 4;  // the same in every step, as step is a multiple of 8
  typename Format::Chunk next[kGroups];
  const auto load_next = [&](int i) {
    for (int j = 0; j < kGroups; ++j) next[j] = rows[j].load(min(i, chunks - 1));
  };

  // The weights of the next step are on their way while this one's are used. They are asked for
  // after the last activations of this step: AMD's loads complete in order, so that waiting for the
  // activations would be waiting for the weights too.
  float sums[kRows][kGroups] = {};
  load_next(Tile::first_piece());
  prepare<Format>();
  for (int i = Tile::first_piece(); i < chunks; i += step) {
    uint32_t code[kQuantBlocks][kGroups][8];
    Scales<Format::kScales> scales[kQuantBlocks][kGroups];
#pragma unroll
    for (int u = 0; u < kQuantBlocks; ++u) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        for (int k = 0; k < 8; ++k) code[u][j][k] = Format::code(next[j], u, k);
        scales[u][j] = Format::scales(next[j], place, u);
      }
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      Activations::Block values[kQuantBlocks];
#pragma unroll
      for (int u = 0; u < kQuantBlocks; ++u)
        values[u] = x.load(first_quant_blocks[m] + i * kQuantBlocks + u);
      if (m == kRows - 1) {
        issue_loads();
        load_next(i + step);
        issue_loads();
      }
#pragma unroll
      for (int u = 0; u < kQuantBlocks; ++u) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          sums[m][j] += unit_dot<Format>(code[u][j], scales[u][j], values[u]);
        }
      }
    }
  }
  if constexpr (kRows > 1) {
    if (x.slices == 2) {
      float both[kRows / 2][kGroups];
#pragma unroll
      for (int m = 0; m < kRows / 2; ++m) {
        for (int j = 0; j < kGroups; ++j) both[m][j] = sums[2 * m][j] + sums[2 * m + 1][j];
      }
      GemvTile<kRows / 2>::finish(both, outputs, result, x.rows);
      return;
    }
  }
  Tile::finish(sums, outputs, result, x.rows);
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
