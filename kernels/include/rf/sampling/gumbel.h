// The noise that turns an argmax into a draw from the softmax (Gumbel-max trick), as the module
// `sampling` of the reference backend defines it to the last bit: IEEE float32, no fused
// multiply-add, its own logarithm.
#pragma once

#include "rf/platform.h"

namespace rf {

// Philox4x32-10 (Salmon et al. 2011): four random words for a key and a counter.
struct PhiloxKey {
  uint32_t low, high;
};

__device__ __forceinline__ Vec<uint32_t, 4> philox4x32(PhiloxKey key, Vec<uint32_t, 4> x) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = x[0] * kMultiplier0;
    const uint64_t product1 = x[2] * kMultiplier1;
    x = Vec<uint32_t, 4>{
        static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key.low, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key.high, static_cast<uint32_t>(product0)};
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  return x;
}

// log(1 + f) + k * log(2), Cephes' logf.
__device__ __forceinline__ float log_polynomial(float f, float k) {
#pragma clang fp contract(off)
  constexpr float kCoefficients[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                     -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                     2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  float p = kCoefficients[0];
#pragma unroll
  for (int i = 1; i < 9; ++i) p = p * f + kCoefficients[i];
  const float z = f * f;
  float y = (f * z) * p;
  y = y + k * -2.12194440e-4f;
  y = y - 0.5f * z;
  return (f + y) + k * 0.693359375f;
}

// log(x) of a positive normal number: x = m * 2^k with m in [sqrt(1/2), sqrt(2)).
__device__ __forceinline__ float exact_log(float x) {
  const int bits = __builtin_bit_cast(int, x);
  const int k = (bits - 0x3f3504f3) >> 23;
  const float m = __builtin_bit_cast(float, bits - k * (1 << 23));
  return log_polynomial(m - 1.0f, static_cast<float>(k));
}

// Standard Gumbel noise from 32 random bits.
__device__ __forceinline__ float gumbel(uint32_t bits) {
#pragma clang fp contract(off)
  float v = (static_cast<float>(bits) + 0.5f) * 0x1p-32f;
  v = min(v, 1.0f - 0x1p-24f);
  const float log_of_rest = v < 0.25f ? log_polynomial(-v, 0.0f) : exact_log(1.0f - v);
  return -exact_log(-log_of_rest);
}

// Noise of the four tokens `first` (a multiple of 4) to `first + 3`.
__device__ __forceinline__ Vec<float, 4> gumbel4(uint64_t seed, int position, int first) {
  const PhiloxKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const Vec<uint32_t, 4> counter{static_cast<uint32_t>(first) / 4, static_cast<uint32_t>(position),
                                 0, 0};
  const Vec<uint32_t, 4> bits = philox4x32(key, counter);
  return {gumbel(bits[0]), gumbel(bits[1]), gumbel(bits[2]), gumbel(bits[3])};
}

}  // namespace rf
