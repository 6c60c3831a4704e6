// Activations as GEMV reads them: signed bytes in blocks of 32 with one scale.
//
// A [rows, K] activation (K a multiple of 32) has one term or two, and two arrays:
//   q      int8      [terms][rows][K]       the quantised values
//   scale  ActScale  [terms][rows][K / 32]  per block: the scale and the sums of its halves
// It stands for the sum of its terms, each x[r][k] = scale[r][k / 32].scale * q[r][k]. The second
// term is what the first one's rounding left, rounded in the same way: together they have about 16
// bits, and GEMV multiplies with them as with twice as many rows.
//
// A block's scale is max|x| / 127 and q = round to nearest even of x * (127 / max|x|); a block of
// zeros has scale 0. The sums let a weight with an offset or a zero point be multiplied without
// touching the bytes again: sum((code - zero) * q) = dot4(code, q) - zero * sum(q).
#pragma once

#include "rf/platform.h"

namespace rf {

inline constexpr int kActBlock = 32;

struct alignas(8) ActScale {
  float scale;
  int16_t sum_low;   // of elements 0 to 15 of the block
  int16_t sum_high;  // of elements 16 to 31
};
static_assert(sizeof(ActScale) == 8);

// Four floats of a block as four signed bytes (the first in the lowest byte). `inverse` is
// act_inverse(max|x|) of the block.
__device__ __forceinline__ int act_pack(Vec<float, 4> x, float inverse) {
  uint32_t packed = 0;
  for (int i = 0; i < 4; ++i) {
    packed |= (static_cast<uint32_t>(static_cast<int>(rint(x[i] * inverse))) & 0xff) << (8 * i);
  }
  return static_cast<int>(packed);
}

__device__ __forceinline__ float act_inverse(float max_abs) {
  return max_abs > 0.0f ? 127.0f / max_abs : 0.0f;
}

inline constexpr int kActLanes = 8;  // lanes that share a block, four values each

// Quantises one term of a block with `kActLanes` consecutive lanes: lane i (lane_id() % 8) passes
// elements 4 i to 4 i + 3. Writes 32 bytes at `q` and the block's scale; every lane of the wave
// takes part, those with `store` false write nothing. Returns what the rounding left.
__device__ __forceinline__ Vec<float, 4> act_store_term(Vec<float, 4> x, bool store, int8_t* q,
                                                        ActScale* scale) {
  float max_abs = max(max(abs(x[0]), abs(x[1])), max(abs(x[2]), abs(x[3])));
  max_abs = max(max_abs, shfl_xor<1>(max_abs));
  max_abs = max(max_abs, shfl_xor<2>(max_abs));
  max_abs = max(max_abs, shfl_xor<4>(max_abs));
  const int packed = act_pack(x, act_inverse(max_abs));
  int sum = dot4(packed, 0x01010101, 0);
  sum += shfl_xor<1>(sum);
  sum += shfl_xor<2>(sum);
  const int other_sum = shfl_xor<4>(sum);
  const int part = lane_id() % kActLanes;
  const float step = max_abs * (1.0f / 127.0f);
  if (store) {
    reinterpret_cast<int*>(q)[part] = packed;
    if (part == 0) {
      *scale = ActScale{step, static_cast<int16_t>(sum), static_cast<int16_t>(other_sum)};
    }
  }
  for (int i = 0; i < 4; ++i) x[i] -= step * static_cast<int8_t>(packed >> (8 * i));
  return x;
}

// The same for all terms of a block. `second` is how many elements of `q` lie from a value's first
// term to its second, 0 = there is none; the same in all lanes.
__device__ __forceinline__ void act_store(Vec<float, 4> x, bool store, int8_t* q, ActScale* scale,
                                          int32_t second) {
  const Vec<float, 4> rest = act_store_term(x, store, q, scale);
  if (second) act_store_term(rest, store, q + second, scale + second / kActBlock);
}

// An activation as GEMM reads it: a half, clamped to the range of finite halves.
__device__ __forceinline__ half act_half(float x) {
  constexpr float kLargest = 65504.0f;
  return to_half(min(max(x, -kLargest), kLargest));
}

}  // namespace rf
