// Reductions over the lanes of a wave and the waves of a block.
//
// All of them are butterflies in a fixed order: the same input gives the same bits in every lane
// and in every run.
#pragma once

#include "rf/platform.h"

namespace rf {

// Most waves in a block: 1024 threads.
inline constexpr int kMaxWaves = 1024 / kWave;

// Combines the values of each aligned group of kLanes lanes; every lane gets the result.
template <int kLanes = kWave, class T, class Combine>
__device__ __forceinline__ T wave_reduce(T value, Combine combine) {
  if constexpr (kLanes > 1) {
    value = combine(value, shfl_xor<kLanes / 2>(value));
    value = wave_reduce<kLanes / 2>(value, combine);
  }
  return value;
}

template <int kLanes = kWave, class T>
__device__ __forceinline__ T wave_sum(T value) {
  return wave_reduce<kLanes>(value, [](T a, T b) { return a + b; });
}

// The sums of kCount values, a power of two, in the lanes of a wave: value i in the lanes l with
// l / (kWave / kCount) == i, with the bits of wave_sum(). Half of the values go to each half of the
// lanes, then half of those to each quarter: fewer exchanges than one value after the other takes.
template <int kCount, int kDistance = kWave / 2>
__device__ __forceinline__ float wave_sums(const float (&values)[kCount]) {
  if constexpr (kCount == 1) {
    return wave_sum<kDistance * 2>(values[0]);
  } else {
    const bool is_upper = (lane_id() & kDistance) != 0;
    float halved[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float lower = values[i], upper = values[i + kCount / 2];
      halved[i] = (is_upper ? upper : lower) + shfl_xor<kDistance>(is_upper ? lower : upper);
    }
    return wave_sums<kCount / 2, kDistance / 2>(halved);
  }
}

// Writes these sums, in their order.
template <int kCount>
__device__ __forceinline__ void store_wave_sums(const float (&values)[kCount], float* sums) {
  constexpr int kLanes = kWave / kCount;
  const float sum = wave_sums(values);
  if (lane_id() % kLanes == 0) sums[lane_id() / kLanes] = sum;
}

template <int kLanes = kWave>
__device__ __forceinline__ float wave_max(float value) {
  return wave_reduce<kLanes>(value, [](float a, float b) { return max(a, b); });
}

// The same over a block of whole waves. `scratch` is LDS of kMaxWaves elements; it may be used
// again as soon as the call returns.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T value, T* scratch, Combine combine) {
  value = wave_reduce(value, combine);
  if (lane_id() == 0) scratch[wave_id()] = value;
  __syncthreads();
  const int waves = static_cast<int>(blockDim.x) / kWave;
  value = scratch[0];
  for (int wave = 1; wave < waves; ++wave) value = combine(value, scratch[wave]);
  __syncthreads();
  return value;
}

template <class T>
__device__ __forceinline__ T block_sum(T value, T* scratch) {
  return block_reduce(value, scratch, [](T a, T b) { return a + b; });
}

// The sum of the values of the lower lanes, and in `total` that of all lanes.
template <class T>
__device__ __forceinline__ T wave_exclusive_scan(T value, T& total) {
  T inclusive = value;
#pragma unroll
  for (int distance = 1; distance < kWave; distance *= 2) {
    const T lower = shfl(inclusive, (lane_id() - distance) & (kWave - 1));
    if (lane_id() >= distance) inclusive += lower;
  }
  total = shfl(inclusive, kWave - 1);
  return inclusive - value;
}

// The same over a block; `scratch` as for block_reduce.
template <class T>
__device__ __forceinline__ T block_exclusive_scan(T value, T* scratch, T& total) {
  T wave_total;
  T before = wave_exclusive_scan(value, wave_total);
  if (lane_id() == 0) scratch[wave_id()] = wave_total;
  __syncthreads();
  const int waves = static_cast<int>(blockDim.x) / kWave;
  total = T{};
  for (int wave = 0; wave < waves; ++wave) {
    if (wave == wave_id()) before += total;
    total += scratch[wave];
  }
  __syncthreads();
  return before;
}

}  // namespace rf
