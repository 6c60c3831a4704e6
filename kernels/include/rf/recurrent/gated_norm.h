// A norm by root mean square with a gate: norm(x) * silu(z) as Gated DeltaNet has it (Yang et al.
// 2024), or norm(x * silu(z)) as Mamba-2 does (Dao and Gu 2024). The same for each kernel that does
// it: nothing is added to a product before that is rounded.
#pragma once

#include "rf/norms/norm.h"
#include "rf/recurrent/recurrent.h"

namespace rf {

// Four elements: what is normed, and what then multiplies it.
struct GatedFour {
  Vec<float, 4> value, factor;

  static __device__ __forceinline__ GatedFour of(Vec<float, 4> x, Vec<float, 4> z,
                                                 Vec<float, 4> weight, bool gate_first) {
    Vec<float, 4> gate;
    for (int k = 0; k < 4; ++k) gate[k] = silu(z[k]);
    if (gate_first) return {x * gate, weight};
    return {x, weight * gate};
  }

  __device__ __forceinline__ float squares() const {
#pragma clang fp contract(off)
    return sum_four(value * value);
  }
  // norm: `gated_norm_factor`.
  __device__ __forceinline__ Vec<float, 4> normed(float norm) const {
    return value * norm * factor;
  }
};

// squares: the sum over all of `dim` elements.
__device__ __forceinline__ float gated_norm_factor(float squares, int dim, float eps) {
#pragma clang fp contract(off)
  const float mean = squares / static_cast<float>(dim);
  return rsqrt(mean + eps);
}

// A group of a row: of x, which is normed, of the gate and of the weight.
struct GatedRows {
  const float* x;
  const float* z;
  const float* weight;
  bool gate_first;

  __device__ __forceinline__ GatedFour four(int i) const {
    return GatedFour::of(load16(x + i), load16(z + i), load16(weight + i), gate_first);
  }
};

// A group of a row, normed by one block after others have made it: with the bits of rf_gated_norm,
// where its blocks have `threads` threads.
struct GatedGroup {
  GatedRows rows;
  int dim;
  int threads;  // whole waves

  // `first`: of the group, in `out`.
  __device__ __forceinline__ void norm(const ActOutput& out, int64_t first, float eps) const {
    __shared__ float partial[kMaxWaves];
    const int waves = threads / kWave;
    const int at_once = static_cast<int>(blockDim.x) / kWave;
    for (int wave = wave_id(); wave < waves; wave += at_once) {
      float squares = 0.0f;
      for (int step = 0; step < kNormSteps; ++step) squares += four(index(step, wave)).squares();
      const float sum = wave_sum(squares);
      if (lane_id() == 0) partial[wave] = sum;
    }
    __syncthreads();
    float squares = partial[0];
    for (int wave = 1; wave < waves; ++wave) squares += partial[wave];
    const float factor = gated_norm_factor(squares, dim, eps);
    for (int wave = wave_id(); wave < waves; wave += at_once) {
      for (int step = 0; step < kNormSteps; ++step) {
        const int i = index(step, wave);
        out.store(first + i, four(i).normed(factor), i < dim);
      }
    }
  }

 private:
  __device__ __forceinline__ int index(int step, int wave) const {
    return (step * threads + wave * kWave + lane_id()) * 4;
  }
  __device__ __forceinline__ GatedFour four(int i) const {
    return i < dim ? rows.four(i) : GatedFour{};
  }
};

}  // namespace rf
