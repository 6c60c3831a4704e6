// Adds to the embedding of tokens that of their positions and of their type.
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kEmbedAddThreads = 64;

template <class Format>
__device__ __forceinline__ void embed_add(const uint8_t* table, const int32_t* positions,
                                          const float* type, float* x, int table_rows,
                                          int quant_blocks) {
  constexpr int kPerItem = Format::kPerItem;
  const int item = static_cast<int>(blockIdx.x) * kEmbedAddThreads + threadIdx.x;
  if (item >= quant_blocks * kQuantBlock / kPerItem) return;
  const int column = item * kPerItem;
  float* to = x + static_cast<int64_t>(blockIdx.y) * quant_blocks * kQuantBlock + column;
  U4 values{};
  if (table) {
    const int stored_rows = (table_rows + kRowAlign - 1) / kRowAlign * kRowAlign;
    const Planes row(table, stored_rows, positions[blockIdx.y]);
    values = Format::of(row, quant_blocks).items[item];
  }
#pragma unroll
  for (int first = 0; first < kPerItem; first += 4) {
    Vec<float, 4> sum = load16(to + first);
    for (int k = 0; k < 4 && table; ++k) sum[k] += Format::value(values, first + k);
    if (type) sum += load16(type + column + first);
    store16(to + first, sum);
  }
}

}  // namespace rf

// table: a matrix of weights.h with `table_rows` rows of 32 quant blocks, or null. positions:
// [gridDim.y], each below `table_rows`. type: f32 [32 * quant_blocks], or null. x: f32 [gridDim.y,
// 32 * quant_blocks], to which table[position] and type are added. Grid: (ceil(16-byte items of a
// row of the table / 64), tokens), block 64.
#define RF_EMBED_ADD(name, Format, ...)                                                          \
  extern "C" __global__ __launch_bounds__(rf::kEmbedAddThreads) void rf_embed_add_##name(        \
      const uint8_t* __restrict__ table, const int32_t* __restrict__ positions,                  \
      const float* __restrict__ type, float* __restrict__ x, int table_rows, int quant_blocks) { \
    rf::embed_add<rf::Format>(table, positions, type, x, table_rows, quant_blocks);              \
  }

RF_FORMATS(RF_EMBED_ADD)
