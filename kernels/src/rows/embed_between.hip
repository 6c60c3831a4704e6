// Rows between those of a table of positions, as towers have them whose pictures keep their shape.
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kEmbedBetweenThreads = 64;
inline constexpr int kEmbedBetweenRows = 4;

template <class Format>
__device__ __forceinline__ void embed_between(const uint8_t* table, const int32_t* rows,
                                              const float* shares, float* out, int table_rows,
                                              int quant_blocks) {
  constexpr int kPerItem = Format::kPerItem;
  const int item = static_cast<int>(blockIdx.y) * kEmbedBetweenThreads + threadIdx.x;
  if (item >= quant_blocks * kQuantBlock / kPerItem) return;
  const int stored_rows = (table_rows + kRowAlign - 1) / kRowAlign * kRowAlign;
  const int64_t token = blockIdx.x;
  Vec<float, 4> sums[kPerItem / 4] = {};
#pragma unroll
  for (int i = 0; i < kEmbedBetweenRows; ++i) {
    const Planes row(table, stored_rows, rows[token * kEmbedBetweenRows + i]);
    const U4 values = Format::of(row, quant_blocks).items[item];
    const float share = shares[token * kEmbedBetweenRows + i];
#pragma unroll
    for (int k = 0; k < kPerItem; ++k) sums[k / 4][k % 4] += share * Format::value(values, k);
  }
  float* to = out + token * quant_blocks * kQuantBlock + item * kPerItem;
#pragma unroll
  for (int four = 0; four < kPerItem / 4; ++four) store16(to + 4 * four, sums[four]);
}

}  // namespace rf

// table: a matrix of weights.h with `table_rows` rows of 32 quant blocks. rows: [gridDim.x, 4],
// each below `table_rows`. shares: f32 [gridDim.x, 4]. out: f32 [gridDim.x, 32 * quant_blocks], the
// sum of share * table[row]. Grid: (tokens, ceil(16-byte items of a row of the table / 64)), block
// 64: a grid has 65,535 blocks along its second side, and a large picture more patches.
#define RF_EMBED_BETWEEN(name, Format, ...)                                                       \
  extern "C" __global__ __launch_bounds__(rf::kEmbedBetweenThreads) void rf_embed_between_##name( \
      const uint8_t* __restrict__ table, const int32_t* __restrict__ rows,                        \
      const float* __restrict__ shares, float* __restrict__ out, int table_rows,                  \
      int quant_blocks) {                                                                         \
    rf::embed_between<rf::Format>(table, rows, shares, out, table_rows, quant_blocks);            \
  }

RF_FORMATS(RF_EMBED_BETWEEN)
