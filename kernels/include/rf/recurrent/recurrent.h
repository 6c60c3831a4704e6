// What kernels with a state for each sequence have in common.
//
// States lie in slots of an array. Before a sequence's first token of a step its state is read from
// one slot. After each of its tokens the state may be written to a slot. The last token may write
// the slot that is read, the others may not; a block writes such a part of it as it has read
// itself, so that nothing orders blocks.
#pragma once

#include "rf/platform.h"

namespace rf {

// As kernels get them, arrays of a step: see `of`.
struct RecurrentStep {
  const int32_t* sequences;    // indices of the sequences to take
  const int32_t* query_start;  // [B + 1]
  const int32_t* context_len;  // [B]
  const int32_t* reads;        // [B], slots; negative = padding, which has no state
  const int32_t* writes;       // [T], slots; negative = the state after this token is not kept
};

// One sequence of a step.
struct RecurrentSequence {
  int64_t first;  // token, of the step's
  int tokens;
  int64_t slot;           // to read
  bool reads;             // it; who begins here does not read what another has left there
  const int32_t* writes;  // [tokens]

  static __device__ __forceinline__ RecurrentSequence of(const RecurrentStep& step, int index) {
    const int sequence = step.sequences[index];
    const int first = step.query_start[sequence];
    const int tokens = step.query_start[sequence + 1] - first;
    const int64_t slot = step.reads[sequence];
    const bool reads = slot >= 0 && step.context_len[sequence] > tokens;
    return {first, tokens, slot, reads, step.writes + first};
  }

  // Where the state after the last token goes; negative = nowhere. There are tokens.
  __device__ __forceinline__ int64_t last_slot() const { return writes[tokens - 1]; }
};

// a * b + c, rounded once: what is written so has the same bits in every kernel.
template <int kCount>
__device__ __forceinline__ Vec<float, kCount> fma(Vec<float, kCount> a, Vec<float, kCount> b,
                                                  Vec<float, kCount> c) {
  return __builtin_elementwise_fma(a, b, c);
}

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
