// Multi-head latent attention around its products: queries come apart, products of heads come
// together, and tokens get their rows of the cache.
#include "rf/attention/latent.h"

// q: f32 [T, heads, plain_dim + rotary_dim], those of a token q_stride from the next. out: [T,
// heads, plain_dim] in the forms that are not null. rows: half [T, heads, rotary_dim + rank], of
// which the rotated part is written. chosen: [T * heads], the head of each; weights: 1 for each. So
// kernels of experts multiply with the matrices of heads. Grid: (T, enough blocks for heads waves),
// block 256.
extern "C" __global__ __launch_bounds__(256) void rf_latent_queries(
    const float* __restrict__ q, const float* __restrict__ cosine, const float* __restrict__ sine,
    const int32_t* __restrict__ positions, float* __restrict__ out_f32,
    rf::half* __restrict__ out_f16, rf::half* __restrict__ rows, int32_t* __restrict__ chosen,
    float* __restrict__ weights, int64_t q_stride, int32_t heads, int32_t plain_dim,
    int32_t rotary_dim, int32_t rank, int32_t neox) {
  const int waves = static_cast<int>(blockDim.x) / rf::kWave;
  const int head = rf::uniform(static_cast<int>(blockIdx.y) * waves + rf::wave_id());
  if (head >= heads) return;
  const int64_t token = blockIdx.x;
  const rf::LatentQueries queries{q,        cosine, sine,      positions,  rows, chosen,   weights,
                                  q_stride, heads,  plain_dim, rotary_dim, rank, neox != 0};
  const float* row = queries.row(token, head);
  const int64_t first = (token * heads + head) * plain_dim;
  for (int i = rf::lane_id(); i < plain_dim; i += rf::kWave) {
    if (out_f32) out_f32[first + i] = row[i];
    if (out_f16) out_f16[first + i] = rf::to_half(row[i]);
  }
  queries.rotate(token, head);
}

// out[r, offset + i] = half(x[places[r], i]), or x[r, i] where places is null: f32 rows of
// `columns` elements become halves in rows of `stride`, all multiples of 4. Grid: enough blocks for
// rows * columns / 4 threads, block 256.
extern "C" __global__ __launch_bounds__(256) void rf_join_heads(const float* __restrict__ x,
                                                                const int32_t* __restrict__ places,
                                                                rf::half* __restrict__ out,
                                                                int32_t rows, int32_t columns,
                                                                int32_t stride, int32_t offset) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = i / (columns / 4);
  if (row >= rows) return;
  const int column = static_cast<int>(i % (columns / 4)) * 4;
  const int64_t source = places ? places[row] : row;
  const rf::Vec<float, 4> values = rf::load16(x + source * columns + column);
  rf::Vec<rf::half, 4> halves;
  for (int k = 0; k < 4; ++k) halves[k] = rf::to_half(values[k]);
  *reinterpret_cast<rf::Vec<rf::half, 4>*>(out + row * stride + offset + column) = halves;
}

// Stores rows of the cache: see LatentInput. An int8 row has one scale. Grid: T, block: one wave.
extern "C" __global__ __launch_bounds__(64) void rf_latent_store_f16(
    const float* __restrict__ kv, const float* __restrict__ norm, const float* __restrict__ cosine,
    const float* __restrict__ sine, const int32_t* __restrict__ positions,
    const int64_t* __restrict__ slots, rf::half* __restrict__ cache, int64_t stride, int32_t rank,
    int32_t rotary_dim, int32_t neox, float eps) {
  rf::latent_store<rf::half>(
      {kv, norm, cosine, sine, positions, slots, stride, rank, rotary_dim, neox != 0, eps},
      blockIdx.x, cache, nullptr);
}

extern "C" __global__ __launch_bounds__(64) void rf_latent_store_int8(
    const float* __restrict__ kv, const float* __restrict__ norm, const float* __restrict__ cosine,
    const float* __restrict__ sine, const int32_t* __restrict__ positions,
    const int64_t* __restrict__ slots, int8_t* __restrict__ cache, float* __restrict__ scale,
    int64_t stride, int32_t rank, int32_t rotary_dim, int32_t neox, float eps) {
  rf::latent_store<int8_t>(
      {kv, norm, cosine, sine, positions, slots, stride, rank, rotary_dim, neox != 0, eps},
      blockIdx.x, cache, scale);
}
