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

  // The sum of four columns of a token's pairs, times their weights, in the order of pairs. Loads
  // are on their way together: kTogether places and weights, and then the rows.
  __device__ __forceinline__ Vec<float, 4> sum(int64_t token, int column, int hidden_size) const {
    constexpr int kTogether = 4;
    Vec<float, 4> total = 0.0f;
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
      Vec<float, 4> rows[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (found[k] == kElsewhere) continue;
        const int64_t row = is_sorted ? found[k] : first + k;
        rows[k] = load16(y + row * hidden_size + column);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (found[k] != kElsewhere) total += factors[k] * rows[k];
      }
    }
    return total;
  }
};

}  // namespace rf
