// Activations as GEMV reads them: signed bytes in blocks of 32 with one scale.
//
// A [rows, K] activation (K a multiple of 32) is one int8 slice or two, a high and a low one (as in
// Ozaki et al. 2012), and has two arrays:
//   q      int8      [slices][rows][K]       the quantised values
//   scale  ActScale  [slices][rows][K / 32]  per block: the scale and the sums of its halves
// It stands for the sum of its slices, each x[r][k] = scale[r][k / 32].scale * q[r][k].
//
// A block's scale is max|x| / 127 and q = round to nearest even of x * (127 / max|x|); a block of
// zeros has scale 0. The low slice is what this rounding left, at most half a step, in steps of
// 1/254 of the high one's: together the slices have about 16 bits.
//
// The sums let a weight with an offset or a zero point be multiplied without touching the bytes
// again: sum((code - zero) * q) = dot4(code, q) - zero * sum(q).
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

inline constexpr float kActSteps = 127.0f;       // of a block's largest value
inline constexpr float kActFinerSteps = 254.0f;  // of one of these, in the low slice
inline constexpr int kActLanes = 8;              // lanes that share a block, four values each

// Four multiples of 1 / inverse as four signed bytes (the first in the lowest byte).
__device__ __forceinline__ int act_pack(Vec<float, 4> x, float inverse) {
  uint32_t packed = 0;
  for (int i = 0; i < 4; ++i) {
    packed |= (static_cast<uint32_t>(static_cast<int>(rint(x[i] * inverse))) & 0xff) << (8 * i);
  }
  return static_cast<int>(packed);
}

// Quantises a block with `kActLanes` consecutive lanes: lane i (lane_id() % 8) passes elements 4 i
// to 4 i + 3. Writes 32 bytes at `q` and the block's scale, and those of the low slice `lo_offset`
// elements further, unless that is 0. Every lane of the wave takes part, those with `store` false
// write nothing; `lo_offset` is the same in all. The activation is `factor` times x, which only
// its scales tell.
__device__ __forceinline__ void act_store(Vec<float, 4> x, bool store, int8_t* q, ActScale* scale,
                                          int32_t lo_offset, float factor = 1.0f) {
  float max_abs = max(max(abs(x[0]), abs(x[1])), max(abs(x[2]), abs(x[3])));
  max_abs = max(max_abs, shfl_xor<1>(max_abs));
  max_abs = max(max_abs, shfl_xor<2>(max_abs));
  max_abs = max(max_abs, shfl_xor<4>(max_abs));
  const float inverse = max_abs > 0.0f ? kActSteps / max_abs : 0.0f;
  const float step = max_abs * (1.0f / kActSteps);
  const int packed = act_pack(x, inverse);
  // Both slices' sums are made at once, as the halves of a word: none leaves the range of 16 bits.
  int sums = dot4(packed, 0x01010101, 0);
  int rest = 0;
  if (lo_offset) {
    for (int i = 0; i < 4; ++i) x[i] -= step * static_cast<int8_t>(packed >> (8 * i));
    rest = act_pack(x, inverse * kActFinerSteps);
    sums += dot4(rest, 0x01010101, 0) * 0x10000;
  }
  sums += shfl_xor<1>(sums);
  sums += shfl_xor<2>(sums);
  const int other_sums = shfl_xor<4>(sums);
  const auto first_of = [](int both) { return static_cast<int16_t>(both); };
  const auto second_of = [&](int both) {
    return static_cast<int16_t>((both - first_of(both)) / 0x10000);
  };

  if (!store) return;
  const int part = lane_id() % kActLanes;
  reinterpret_cast<int*>(q)[part] = packed;
  if (part == 0) *scale = {step * factor, first_of(sums), first_of(other_sums)};
  if (!lo_offset) return;
  reinterpret_cast<int*>(q + lo_offset)[part] = rest;
  if (part == 0) {
    scale[lo_offset / kActBlock] = {step * (1.0f / kActFinerSteps) * factor, second_of(sums),
                                    second_of(other_sums)};
  }
}

// An activation as GEMM reads it: a half, clamped to the range of finite halves.
__device__ __forceinline__ half act_half(float x) {
  constexpr float kLargest = 65504.0f;
  return to_half(min(max(x, -kLargest), kLargest));
}

}  // namespace rf
