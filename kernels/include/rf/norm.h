// What the norms share: how a row lies in the registers of its block.
#pragma once

#include "rf/act_output.h"
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

}  // namespace rf
