// What kernels with a state for each sequence have in common.
//
// A sequence's state lies in its slot of an array. It is read before the sequence's first token of
// a step and written after its last, by the same block, so that nothing orders blocks.
#pragma once

#include "rf/platform.h"

namespace rf {

// As kernels get them, arrays of a step: see `of`.
struct RecurrentStep {
  const int32_t* sequences;    // indices of the sequences to take
  const int32_t* query_start;  // [B + 1]
  const int32_t* context_len;  // [B]
  const int32_t* slots;        // [B]; negative = padding, of which no state is kept
};

// One sequence of a step.
struct RecurrentSequence {
  int64_t first;  // token, of the step's
  int tokens;
  int64_t slot;
  bool reads, writes;  // its slot; who begins here does not read what another has left there

  static __device__ __forceinline__ RecurrentSequence of(const RecurrentStep& step, int index) {
    const int sequence = step.sequences[index];
    const int first = step.query_start[sequence];
    const int tokens = step.query_start[sequence + 1] - first;
    const int64_t slot = step.slots[sequence];
    return {first, tokens, slot, slot >= 0 && step.context_len[sequence] > tokens, slot >= 0};
  }
};

__device__ __forceinline__ float sigmoid(float x) { return rcp(1.0f + exp(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// log(1 + exp(x)), with a relative error of some 2e-6: a logarithm near 1 would have an absolute
// one, and rates of decay are small.
__device__ __forceinline__ float softplus(float x) {
  const float e = exp(-abs(x));
  const float series =
      e * (1.0f - e * (1.0f / 2 - e * (1.0f / 3 - e * (1.0f / 4 - e * (1.0f / 5)))));
  return max(x, 0.0f) + (e < 0.1f ? series : log(1.0f + e));
}

}  // namespace rf
