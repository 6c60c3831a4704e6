// Rotary embedding (Su et al. 2021, RoFormer) of queries and keys that go to no cache.
#include "rf/platform.h"

namespace rf {

inline constexpr int kRopeHalfThreads = 128;

// Rotates pairs (first + i, first + i + pairs) of a head, for eight i, by the angles of a position.
__device__ __forceinline__ void rotate_eight(half* head, int first, int pairs, const float* cosine,
                                             const float* sine) {
  Vec<half, 8> low = load16(head + first), high = load16(head + first + pairs);
#pragma unroll
  for (int four = 0; four < 8; four += 4) {
    const Vec<float, 4> c = load16(cosine + first + four), s = load16(sine + first + four);
    for (int k = 0; k < 4; ++k) {
      const float x = to_float(low[four + k]), y = to_float(high[four + k]);
      low[four + k] = to_half(x * c[k] - y * s[k]);
      high[four + k] = to_half(x * s[k] + y * c[k]);
    }
  }
  store16(head + first, low);
  store16(head + first + pairs, high);
}

}  // namespace rf

// q, k: halves [T, heads * head_dim] with rows q_stride and k_stride apart, rotated in place; pairs
// lie rotary_dim / 2 apart, as in GPT-NeoX. head_dim, the strides and rotary_dim / 2 are multiples
// of 8. cosine, sine: f32 [max_context, rotary_dim / 2]. positions: [T]. Grid: (T, ceil(2 * heads *
// rotary_dim / 16 / 128)), block 128.
extern "C" __global__ __launch_bounds__(rf::kRopeHalfThreads) void rf_rope_half(
    rf::half* __restrict__ q, rf::half* __restrict__ k, const float* __restrict__ cosine,
    const float* __restrict__ sine, const int32_t* __restrict__ positions, int64_t q_stride,
    int64_t k_stride, int32_t heads, int32_t head_dim, int32_t rotary_dim) {
  const int pairs = rotary_dim / 2;
  const int chunks = pairs / 8;  // of a head
  const int i = static_cast<int>(blockIdx.y) * rf::kRopeHalfThreads + threadIdx.x;
  const int head = i / chunks;
  if (head >= 2 * heads) return;
  const int64_t token = blockIdx.x;
  rf::half* of_head = head < heads ? q + token * q_stride + head * head_dim
                                   : k + token * k_stride + (head - heads) * head_dim;
  const int64_t row = static_cast<int64_t>(positions[token]) * pairs;
  rf::rotate_eight(of_head, (i - head * chunks) * 8, pairs, cosine + row, sine + row);
}
