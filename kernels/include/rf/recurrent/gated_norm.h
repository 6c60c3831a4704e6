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

}  // namespace rf
