// What the norms share: how a row lies in the registers of its block, and where it goes.
#pragma once

#include "rf/act.h"
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

// Where the normalised rows go. Any of them may be null, which leaves that form out.
struct NormOutput {
  float* f32;         // [rows, dim]
  half* f16;          // [rows, dim]
  int8_t* q;          // [rows, dim], see act.h; q_scale is given with it
  ActScale* q_scale;  // [rows, dim / 32]

  // Four values from index i of the row that begins at `row`; every lane of the wave takes part,
  // those not `inside` write nothing.
  __device__ __forceinline__ void store(int64_t row, int i, bool inside, Vec<float, 4> y) const {
    if (f32 && inside) store16(f32 + row + i, y);
    if (f16 && inside) {
      Vec<half, 4> halves;
      for (int k = 0; k < 4; ++k) halves[k] = act_half(y[k]);
      *reinterpret_cast<Vec<half, 4>*>(f16 + row + i) = halves;
    }
    if (q) {
      const int64_t block = (row + i) / kActBlock;
      act_store(y, inside, q + block * kActBlock, q_scale + block);
    }
  }
};

}  // namespace rf
