// Norms of a new token's queries and keys where each is of all heads of a row together. Every block
// finds for itself what its heads are multiplied with: the rows are in the L2 cache, and a launch
// of its own would take longer.
#pragma once

#include "rf/decode/kernel.h"
#include "rf/norms/norm.h"

namespace rf {

// 1 / root mean square of the rows.
struct RowFactors {
  float query = 1.0f, key = 1.0f;
};

// Floats of LDS that joint_norm_factors wants.
inline constexpr int kJointSquares = 2 * kMostSquares;

// Reads the row of queries of a token, and the row of keys for the block that stores one, with the
// bits of rf_rms_norm_columns. All threads of a block call this; squares are free again behind the
// next barrier.
__device__ __forceinline__ RowFactors joint_norm_factors(const NewTokens& fresh, int token,
                                                         int q_features, int k_features,
                                                         float* squares) {
  // The loads of 4,096 columns are on their way together.
  constexpr int kTogether = 1024 / kDecodeThreads;
  const float* q = fresh.q + token * fresh.q_stride;
  const float* k = fresh.k + token * fresh.k_stride;
  const int q_blocks = (q_features + kActBlock - 1) / kActBlock;
  const int k_blocks = (k_features + kActBlock - 1) / kActBlock;
  const int first_key = q_blocks * kActBlock, all = first_key + k_blocks * kActBlock;
#pragma unroll 1
  for (int from = 0; from < all; from += kTogether * 4 * kDecodeThreads) {
    const auto index = [&](int step) {
      return from + 4 * (step * kDecodeThreads + static_cast<int>(threadIdx.x));
    };
    Vec<float, 4> values[kTogether];
#pragma unroll
    for (int step = 0; step < kTogether; ++step) {
      const int i = index(step);
      const bool is_key = i >= first_key;
      const int column = is_key ? i - first_key : i;
      values[step] = Vec<float, 4>{};
      if (column < (is_key ? k_features : q_features)) {
        values[step] = load16((is_key ? k : q) + column);
      }
    }
#pragma unroll
    for (int step = 0; step < kTogether; ++step) {
      const int i = index(step);
      const float sum = squares_of(values[step]);
      if (lane_id() % kActLanes == 0 && i < all) squares[i / kActBlock] = sum;
    }
  }
  __syncthreads();
  RowFactors factors;
  factors.query = factor_of(squares, q_blocks, q_features, fresh.eps);
  if (k_features > 0) {
    factors.key = factor_of(squares + q_blocks, k_blocks, k_features, fresh.eps);
  }
  return factors;
}

}  // namespace rf
