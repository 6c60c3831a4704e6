// Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434): rows of the cache, and queries
// to them.
//
// A row, of the cache and of a query to it, is what rotates, then the latent vector. All heads
// share the rows of the cache: row `slot` is that of the token in this slot.
#pragma once

#include "rf/wave.h"

namespace rf {

// Elements of a query that do not rotate, where one launch does all with them.
inline constexpr int kMostPlainDim = 512;

// What rotates in a row, and the tables' rows of its position (Su et al. 2021).
struct Rotation {
  const float* row;
  const float *cosine, *sine;
  int dim;
  bool neox;

  // Element i, rotated.
  __device__ __forceinline__ float operator()(int i) const {
    const int half_dim = dim / 2;
    const int pair = neox ? i % half_dim : i / 2;
    const bool is_second = neox ? i >= half_dim : i % 2 == 1;
    const float x = row[neox ? pair : 2 * pair];
    const float y = row[neox ? pair + half_dim : 2 * pair + 1];
    return is_second ? x * sine[pair] + y * cosine[pair] : x * cosine[pair] - y * sine[pair];
  }
};

struct LatentInput {
  const float* kv;             // [T, rank + rotary_dim], rows `stride` apart
  const float* norm;           // [rank]
  const float *cosine, *sine;  // [max_context, rotary_dim / 2]
  const int32_t* positions;    // [T]
  const int64_t* slots;        // [T]; negative = a row of padding
  int64_t stride;
  int rank, rotary_dim;
  bool neox;
  float eps;
};

__device__ __forceinline__ float row_scale(float, half*) { return 1.0f; }
__device__ __forceinline__ float row_scale(float largest, int8_t*) {
  return largest > 0.0f ? 127.0f / largest : 0.0f;
}
__device__ __forceinline__ void store_element(half* to, float value) { *to = to_half(value); }
__device__ __forceinline__ void store_element(int8_t* to, float value) {
  *to = static_cast<int8_t>(rint(value));
}

// Stores the row of a token, by one wave.
template <class Stored>
__device__ __forceinline__ void latent_store(const LatentInput& in, int64_t token, Stored* cache,
                                             float* scale) {
  const int64_t slot = in.slots[token];
  if (slot < 0) return;
  const int dim = in.rotary_dim + in.rank;
  const float* latent = in.kv + token * in.stride;
  const int64_t table_row = static_cast<int64_t>(in.positions[token]) * (in.rotary_dim / 2);
  const Rotation rotation{latent + in.rank, in.cosine + table_row, in.sine + table_row,
                          in.rotary_dim, in.neox};
  float squares = 0.0f;
  for (int i = lane_id(); i < in.rank; i += kWave) squares += latent[i] * latent[i];
  const float factor = rsqrt(wave_sum(squares) / static_cast<float>(in.rank) + in.eps);

  float largest = 0.0f;
  if constexpr (sizeof(Stored) == 1) {
    for (int i = lane_id(); i < in.rank; i += kWave) {
      largest = max(largest, abs(latent[i] * factor * in.norm[i]));
    }
    for (int i = lane_id(); i < in.rotary_dim; i += kWave) largest = max(largest, abs(rotation(i)));
    largest = wave_max(largest);
    if (lane_id() == 0) scale[slot] = largest / 127.0f;
  }
  const float raised = row_scale(largest, cache);
  Stored* row = cache + slot * dim;
  for (int i = lane_id(); i < in.rotary_dim; i += kWave) {
    store_element(row + i, rotation(i) * raised);
  }
  for (int i = lane_id(); i < in.rank; i += kWave) {
    store_element(row + in.rotary_dim + i, latent[i] * factor * in.norm[i] * raised);
  }
}

// What queries are made of, and where what rotates of them goes.
struct LatentQueries {
  const float* q;              // [T, heads, plain_dim + rotary_dim], tokens `stride` apart
  const float *cosine, *sine;  // as of LatentInput
  const int32_t* positions;    // [T]
  half* rows;                  // [T, heads, rotary_dim + rank]
  int32_t* chosen;             // [T * heads], the head of each
  float* weights;              // [T * heads], 1 for each
  int64_t stride;
  int heads, plain_dim, rotary_dim, rank;
  bool neox;

  __device__ __forceinline__ const float* row(int64_t token, int head) const {
    return q + token * stride + static_cast<int64_t>(head) * (plain_dim + rotary_dim);
  }
  __device__ __forceinline__ half* out(int64_t token, int head) const {
    return rows + (token * heads + head) * (rotary_dim + rank);
  }

  // Writes what rotates of a head, by one wave, and which head it is.
  __device__ __forceinline__ void rotate(int64_t token, int head) const {
    const int64_t table_row = static_cast<int64_t>(positions[token]) * (rotary_dim / 2);
    const Rotation rotation{row(token, head) + plain_dim, cosine + table_row, sine + table_row,
                            rotary_dim, neox};
    half* to = out(token, head);
    for (int i = lane_id(); i < rotary_dim; i += kWave) to[i] = to_half(rotation(i));
    if (lane_id() == 0) {
      chosen[token * heads + head] = head;
      weights[token * heads + head] = 1.0f;
    }
  }
};

}  // namespace rf
