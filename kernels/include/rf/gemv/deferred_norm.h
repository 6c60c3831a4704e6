// A norm that is left for later: what makes a row writes its int8 codes, with the scales that they
// have without the norm's factor (1 / root mean square), and for every kActBlock columns the sum of
// their squares; what reads it makes the factor of those, and multiplies the scales with it. So no
// block of a product waits for another, and norm.h has what gives the same bits in a launch of its
// own. That is for one row: with the factors of several, registers do not suffice on some chips.
#pragma once

#include "rf/gemv/gemv_dot.h"
#include "rf/norms/norm.h"

namespace rf {

// A row of int8 activations as GEMV reads it.
struct NormedActivations : Activations {
  const float* squares;  // [quant_blocks]
  float eps;
  float factor = 0.0f;

  // Waits for what writes it; whole waves call this.
  __device__ __forceinline__ void wait() {
    wait_for_previous(q, scale, squares);
    find_factor();
  }

  // The same where that has been waited for.
  __device__ __forceinline__ void find_factor() {
    const float found = factor_of(squares, quant_blocks, quant_blocks * kActBlock, eps);
    factor = __builtin_bit_cast(float, uniform(__builtin_bit_cast(int, found)));
  }

  __device__ __forceinline__ Block load(int m, int quant_block) const {
    Block block = Activations::load(m, quant_block);
    block.scale.scale *= factor;
    return block;
  }
};

}  // namespace rf
