// Norms of heads and rotary embedding (Su et al. 2021, RoFormer) of queries and keys that go to no
// cache.
#include "rf/platform.h"

namespace rf {

inline constexpr int kRopeHalfThreads = 128;

// Eight pairs of a head: elements that follow each other, and those so many pairs behind them.
struct EightPairs {
  Vec<half, 8> low = {}, high = {};

  __device__ __forceinline__ void load(const half* first, int pairs) {
    low = load16(first);
    high = load16(first + pairs);
  }

  __device__ __forceinline__ void store(half* first, int pairs) const {
    store16(first, low);
    store16(first + pairs, high);
  }

  __device__ __forceinline__ float squares() const {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float x = to_float(low[k]), y = to_float(high[k]);
      sum = fma(x, x, fma(y, y, sum));
    }
    return sum;
  }

  // Multiplies the elements by a factor and weights if there are some, and rotates the pairs.
  __device__ __forceinline__ void scale_and_rotate(float factor, const float* weight, int pairs,
                                                   const float* cosine, const float* sine) {
#pragma unroll
    for (int four = 0; four < 8; four += 4) {
      const Vec<float, 4> c = load16(cosine + four), s = load16(sine + four);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float x = to_float(low[four + k]), y = to_float(high[four + k]);
        if (weight) {
          x *= factor * weight[four + k];
          y *= factor * weight[four + k + pairs];
        }
        low[four + k] = to_half(x * c[k] - y * s[k]);
        high[four + k] = to_half(x * s[k] + y * c[k]);
      }
    }
  }
};

// The sum over so many lanes that follow each other: a power of two.
__device__ __forceinline__ float sum_of_lanes(float value, int lanes) {
  for (int distance = 1; distance < lanes; distance *= 2) {
    value += shfl(value, lane_id() ^ distance);
  }
  return value;
}

}  // namespace rf

// q, k: halves with rows q_stride and k_stride apart, of `heads` and `kv_heads` heads, rotated in
// place; pairs lie rotary_dim / 2 apart, as in GPT-NeoX. head_dim, the strides and rotary_dim / 2
// are multiples of 8. q_norm, k_norm: f32 [head_dim], weights of norms by root mean square before
// that, or null; then rotary_dim is head_dim, and a power of two up to 512. cosine, sine: f32
// [rows, rotary_dim / 2]. positions: [T], rows of these. Grid: (T, ceil((heads + kv_heads) *
// rotary_dim / 16 / 128)), block 128.
extern "C" __global__ __launch_bounds__(rf::kRopeHalfThreads) void rf_rope_half(
    rf::half* __restrict__ q, rf::half* __restrict__ k, const float* __restrict__ q_norm,
    const float* __restrict__ k_norm, const float* __restrict__ cosine,
    const float* __restrict__ sine, const int32_t* __restrict__ positions, int64_t q_stride,
    int64_t k_stride, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t rotary_dim,
    float eps) {
  const int pairs = rotary_dim / 2;
  const int chunks = pairs / 8;  // of a head
  const int i = static_cast<int>(blockIdx.y) * rf::kRopeHalfThreads + threadIdx.x;
  const int head = i / chunks;
  const bool is_there = head < heads + kv_heads;  // else only to take part in sums of lanes
  const int first = i % chunks * 8;
  const int64_t token = blockIdx.x;
  const bool is_query = head < heads;
  rf::half* eight = first + (is_query ? q + token * q_stride + head * head_dim
                                      : k + token * k_stride + (head - heads) * head_dim);
  rf::EightPairs own;
  if (is_there) own.load(eight, pairs);
  float factor = 1.0f;
  if (q_norm) {
    const float mean = rf::sum_of_lanes(own.squares(), chunks) / static_cast<float>(head_dim);
    factor = rf::rsqrt(mean + eps);
  }
  if (!is_there) return;
  const float* weight = is_query ? q_norm : k_norm;
  const int64_t row = static_cast<int64_t>(positions[token]) * pairs + first;
  own.scale_and_rotate(factor, weight ? weight + first : nullptr, pairs, cosine + row, sine + row);
  own.store(eight, pairs);
}
