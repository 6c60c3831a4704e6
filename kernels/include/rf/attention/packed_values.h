// Values of four bits: eight elements of a row to a word, each -7 to 7 times the scale of the row.
//
// Before they are rounded, each kTurned elements are multiplied by a Hadamard matrix, whose columns
// are orthogonal and of length one, so that few elements stand out and spoil the step of the others
// (QuaRot, Ashkboos et al. 2024). What attention makes of values is turned back by the same matrix.
#pragma once

#include "rf/attention/kv_cache.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kTurned = 32;
inline constexpr float kTurnedLength = 0.17677669529663687f;  // 1 / sqrt(kTurned)

// Adds and subtracts what lanes of a wave hold. All of them take part.
template <int kLanes, int kHeld, int kMask = 1>
__device__ __forceinline__ void add_across(float (&x)[kHeld]) {
  if constexpr (kMask < kLanes) {
    const float sign = lane_id() & kMask ? -1.0f : 1.0f;
#pragma unroll
    for (float& value : x) value = fma(sign, value, shfl_xor<kMask>(value));
    add_across<kLanes, kHeld, kMask * 2>(x);
  }
}

// Turns kTurned elements side by side, of which each lane has kHeld.
template <int kHeld>
__device__ __forceinline__ void turn(float (&x)[kHeld]) {
#pragma unroll
  for (int step = 1; step < kHeld; step *= 2) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i & step) continue;
      const float a = x[i], b = x[i + step];
      x[i] = a + b;
      x[i + step] = a - b;
    }
  }
  add_across<kTurned / kHeld>(x);
#pragma unroll
  for (float& value : x) value *= kTurnedLength;
}

// Element i of a word is the nibble i / 2 + i % 2 * 4, plus 8: neighbours lie 16 bits apart, and
// become halves together.
__device__ __forceinline__ uint32_t pack_nibbles(const float (&x)[8], float inverse) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto code = static_cast<uint32_t>(static_cast<int>(rint(x[i] * inverse)) + 8);
    word |= code << (4 * (i / 2 + i % 2 * 4));
  }
  return word;
}
__device__ __forceinline__ Vec<half, 8> unpack_nibbles(uint32_t word) {
  const Vec<half, 2> added{to_half(1024.0f + 8.0f), to_half(1024.0f + 8.0f)};
  Vec<half, 8> result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = (word >> (4 * i) & 0x000F000Fu) | 0x64006400u;
    const Vec<half, 2> pair = __builtin_bit_cast(Vec<half, 2>, bits) - added;
    result[2 * i] = pair[0];
    result[2 * i + 1] = pair[1];
  }
  return result;
}

// Turns codes, of which each lane has eight, but for kTurnedLength. Their sums are whole numbers up
// to 256, which halves hold: with half as many registers as float32 takes, no target spills.
template <int kMask>
__device__ __forceinline__ Vec<half, 8> add_codes_across(const Vec<half, 8>& x) {
  auto words = __builtin_bit_cast(Vec<float, 4>, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = shfl_xor<kMask>(words[i]);
  const auto other = __builtin_bit_cast(Vec<half, 8>, words);
  return (lane_id() & kMask) != 0 ? other - x : other + x;
}
__device__ __forceinline__ Vec<half, 8> turn_codes(Vec<half, 8> x) {
  const half a = to_half(1.0f), b = to_half(-1.0f);
  x = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6) +
      x * Vec<half, 8>{a, b, a, b, a, b, a, b};
  x = __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5) +
      x * Vec<half, 8>{a, a, b, b, a, a, b, b};
  x = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3) +
      x * Vec<half, 8>{a, a, a, a, b, b, b, b};
  return add_codes_across<2>(add_codes_across<1>(x));
}

}  // namespace rf
