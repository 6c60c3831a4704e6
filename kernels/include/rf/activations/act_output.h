// Where a kernel writes an activation [rows, features], in the forms that its readers want.
#pragma once

#include "rf/activations/act.h"

namespace rf {

// Any of them may be null, which leaves that form out.
struct ActOutput {
  float* f32;
  half* f16;  // clamped to the range of finite halves
  int8_t* q;  // see act.h; q_scale is given with it, and features is a multiple of kActBlock
  ActScale* q_scale;    // [rows, features / kActBlock]
  int32_t q_lo_offset;  // elements from the high slice of q to the low one; 0 = one slice

  // Writes elements `element` to element + 3, `factor` times these values, where `inside` is true.
  // Every lane of the wave takes part; for the int8 form lane i has the four elements from
  // 4 * (i % kActLanes) of a block on.
  __device__ __forceinline__ void store(int64_t element, Vec<float, 4> values, bool inside,
                                        float factor = 1.0f) const {
    if (f32 && inside) store16(f32 + element, values * factor);
    if (f16 && inside) {
      Vec<half, 4> halves;
      for (int k = 0; k < 4; ++k) halves[k] = act_half(values[k] * factor);
      *reinterpret_cast<Vec<half, 4>*>(f16 + element) = halves;
    }
    if (q) {
      const int64_t block = element / kActBlock;
      act_store(values, inside, q + block * kActBlock, q_scale + block, q_lo_offset, factor);
    }
  }
};

}  // namespace rf
