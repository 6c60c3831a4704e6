// Rows of the embedding table, which may be quantised.
#include "rf/weights/formats.h"

namespace rf {

inline constexpr int kEmbedThreads = 64;

template <Quantised Format>
__device__ __forceinline__ void embed(const uint8_t* table, const int32_t* tokens, float* out,
                                      int vocab_size, int quant_blocks, float scale) {
  prepare<Format>();
  const int stored_rows = (vocab_size + kRowAlign - 1) / kRowAlign * kRowAlign;
  const Format row = Format::of(Planes(table, stored_rows, tokens[blockIdx.y]), quant_blocks);
  const int i = blockIdx.x * kEmbedThreads + threadIdx.x;
  if (i >= quant_blocks / Format::kQuantBlocks) return;
  const auto chunk = row.load(i);
  float* to = out + (static_cast<int64_t>(blockIdx.y) * quant_blocks + i * Format::kQuantBlocks) *
                        kQuantBlock;
#pragma unroll
  for (int u = 0; u < Format::kQuantBlocks; ++u) {
    const auto scales = Format::scales(chunk, i % 4, u);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      store16(to + u * kQuantBlock + 4 * k, scale * four_weights<Format>(chunk, scales, u, k));
    }
  }
}

template <class Format>
__device__ __forceinline__ void embed(const uint8_t* table, const int32_t* tokens, float* out,
                                      int vocab_size, int quant_blocks, float scale) {
  constexpr int kPerItem = Format::kPerItem;
  const int stored_rows = (vocab_size + kRowAlign - 1) / kRowAlign * kRowAlign;
  const Format row = Format::of(Planes(table, stored_rows, tokens[blockIdx.y]), quant_blocks);
  const int i = blockIdx.x * kEmbedThreads + threadIdx.x;
  if (i >= quant_blocks * kQuantBlock / kPerItem) return;
  const U4 item = row.items[i];
  float* to = out + static_cast<int64_t>(blockIdx.y) * quant_blocks * kQuantBlock + i * kPerItem;
  for (int k = 0; k < kPerItem; ++k) to[k] = scale * Format::value(item, k);
}

}  // namespace rf

// table: a matrix of weights.h with `vocab_size` rows of 32 quant blocks. tokens: [gridDim.y], each
// below `vocab_size`. out: f32 [gridDim.y, 32 * quant_blocks] = scale * table[token]. Grid:
// (ceil(loads of a row / 64), tokens), block 64; a row takes quant blocks / kQuantBlocks loads, or
// 16-byte items where the table is not quantised.
#define RF_EMBED(name, Format, ...)                                                \
  extern "C" __global__ __launch_bounds__(rf::kEmbedThreads) void rf_embed_##name( \
      const uint8_t* __restrict__ table, const int32_t* __restrict__ tokens,       \
      float* __restrict__ out, int vocab_size, int quant_blocks, float scale) {    \
    rf::embed<rf::Format>(table, tokens, out, vocab_size, quant_blocks, scale);    \
  }
RF_FORMATS(RF_EMBED)
