// What the norms share: how a row lies in the registers of its block.
#pragma once

#include "rf/activations/act_output.h"
#include "rf/wave.h"

namespace rf {

// A thread holds four values for each step, so a row has at most 16 * blockDim.x.
inline constexpr int kNormSteps = 4;

using NormRow = Vec<float, 4>[kNormSteps];

// Index in the row of the four values of a step.
__device__ __forceinline__ int norm_index(int step) {
  return static_cast<int>(step * blockDim.x + threadIdx.x) * 4;
}

__device__ __forceinline__ float sum_four(Vec<float, 4> x) { return (x[0] + x[1]) + (x[2] + x[3]); }

// Norms by root mean square add up the squares of kActBlock columns first, and then these sums, all
// in one order: so a product may make the former, and what reads its result the latter, and the
// norm has the same bits (gemv_deferred.h). The same holds for the products with weights.
inline constexpr int kMostSquares = kNormSteps * 4 * 1024 / kActBlock;  // sums of a row

// The sum of the squares of kActBlock columns, by kActLanes lanes with four each.
__device__ __forceinline__ float squares_of(Vec<float, 4> x) {
#pragma clang fp contract(off)
  float sum = sum_four(x * x);
  sum += shfl_xor<1>(sum);
  sum += shfl_xor<2>(sum);
  return sum + shfl_xor<4>(sum);
}

// 1 / root mean square of a row, by each wave for itself, of its `count` sums of squares.
__device__ __forceinline__ float factor_of(const float* squares, int count, int hidden_size,
                                           float eps) {
  float sum = 0.0f;
  for (int i = lane_id(); i < count; i += kWave) sum += squares[i];
  return rsqrt(wave_sum(sum) / static_cast<float>(hidden_size) + eps);
}

// As where a launch of its own makes it: rounded before anything is added.
__device__ __forceinline__ Vec<float, 4> weighted(Vec<float, 4> x, Vec<float, 4> weights) {
#pragma clang fp contract(off)
  return x * weights;
}

}  // namespace rf
