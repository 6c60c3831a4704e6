// What experts made of the pairs of a token, and their sum.
#pragma once

#include "rf/experts/experts.h"

namespace rf {

// Rows [pairs, hidden_size], and what each counts. Pairs that are kElsewhere have none.
struct MadePairs {
  const float* y;
  const int32_t* places;  // [pairs], the row of each; if not is_sorted, only which are there
  const float* weights;   // [pairs]
  int num_chosen;         // pairs of a token
  bool is_sorted;         // not in the order of pairs

  // Makes totals[step] the sum of a token's pairs times their weights, in the order of pairs, of
  // the four columns from index(step) on; zeros, where these are not below hidden_size. Loads are
  // on their way together: kTogether places and weights, and then the rows of kAtOnce steps.
  template <int kSteps, class Index>
  __device__ __forceinline__ void sum(int64_t token, int hidden_size, const Index& index,
                                      Vec<float, 4> (&totals)[kSteps]) const {
    constexpr int kTogether = 4;
    constexpr int kAtOnce = kSteps == 1 ? 1 : 2;
    static_assert(kSteps % kAtOnce == 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) totals[step] = 0.0f;
    for (int c = 0; c < num_chosen; c += kTogether) {
      const int64_t first = token * num_chosen + c;
      const int count = num_chosen - c;
      int32_t found[kTogether];
      float factors[kTogether];
      if (count >= kTogether) {  // one load each
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          found[k] = places[first + k];
          factors[k] = weights[first + k];
        }
      } else {
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          found[k] = k < count ? places[first + k] : kElsewhere;
          factors[k] = k < count ? weights[first + k] : 0.0f;
        }
      }
#pragma unroll
      for (int step = 0; step < kSteps; step += kAtOnce) {
        Vec<float, 4> rows[kTogether][kAtOnce];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          if (found[k] == kElsewhere) continue;
          const float* row = y + (is_sorted ? found[k] : first + k) * hidden_size;
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            const int i = index(step + j);
            rows[k][j] = i < hidden_size ? load16(row + i) : Vec<float, 4>{};
          }
        }
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          if (found[k] == kElsewhere) continue;
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) totals[step + j] += factors[k] * rows[k][j];
        }
      }
    }
  }
};

}  // namespace rf
