// Root mean square layer norm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight.
// Gemma's weights need nothing special: GGUF files hold them with the 1 already added.
#pragma once

#include "rf/norms/norm.h"

namespace rf {

// A block of a row has so many threads that a block of a large product finds no room beside it:
// those would crowd on the other multiprocessors, if there are several of each.
inline constexpr int kFewRows = 16;

__device__ __forceinline__ void let_next_begin_if_few_rows() {
  if (static_cast<int>(RF_GRID_SIZE(x)) <= kFewRows) let_next_begin();
}

// What is added to a row before it is normed, and the place of the sum.
struct NormSum {
  const float* residual = nullptr;
  float* total = nullptr;              // may be the residual's place
  const float* post_weight = nullptr;  // not null: the norm of the row is added, with this weight
  const float* scale = nullptr;        // multiplies the sum, if it is not null
};

// A norm of the row; without a weight none is made.
struct NormOutput {
  const float* weight = nullptr;
  ActOutput out = {};
};

__device__ __forceinline__ void load_row(const float* from, int hidden_size, NormRow& to) {
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    to[step] = i < hidden_size ? load16(from + i) : Vec<float, 4>{};
  }
}

// Rows [rows, hidden_size] as they are.
struct WholeRows {
  const float* x;

  __device__ __forceinline__ void load(int64_t row, int hidden_size, NormRow& to) const {
    load_row(x + row * hidden_size, hidden_size, to);
  }
};

// Threads of a block that adds up splits, at most: with 1,024 in wide waves there are 64 registers
// for each, which are too few.
inline constexpr int kMostSplitsThreads = kWave == 64 ? 512 : 1024;

// Rows that are the sums of what the splits of a product left, and of the bias, in the order and
// with the bits of rf_gemm_sum.
struct RowsInSplits {
  const float* partial;  // [splits, rows, hidden_size]
  const float* bias;     // null: none
  int splits;
  int64_t split_stride;  // elements of a split

  // Loads are on their way together, kTogether of a step.
  __device__ __forceinline__ void load(int64_t row, int hidden_size, NormRow& to) const {
    constexpr int kTogether = 4;
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int i = norm_index(step);
      to[step] = 0.0f;
      if (i >= hidden_size) continue;
      const float* x = partial + row * hidden_size + i;
      for (int split = 0; split < splits; split += kTogether) {
        Vec<float, 4> parts[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          parts[k] = load16(x + min(split + k, splits - 1) * split_stride);
        }
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          if (split + k < splits) to[step] += parts[k];
        }
      }
      if (bias) to[step] += load16(bias + i);
    }
  }
};

// Returns 1 / root mean square of a row in all threads of its block. Values beyond the row's end
// are zeros. `squares`: LDS of kMostSquares, free again when this returns.
__device__ __forceinline__ float norm_factor(const NormRow& values, int hidden_size, float eps,
                                             float* squares) {
  const int count = (hidden_size + kActBlock - 1) / kActBlock;
#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    if (step * static_cast<int>(blockDim.x) * 4 >= hidden_size) break;
    const float sum = squares_of(values[step]);
    const int block = norm_index(step) / kActBlock;
    if (lane_id() % kActLanes == 0 && block < count) squares[block] = sum;
  }
  __syncthreads();
  const float factor = factor_of(squares, count, hidden_size, eps);
  __syncthreads();
  return factor;
}

// A norm that is added to something: rounded before, as where a launch of its own makes it.
__device__ __forceinline__ Vec<float, 4> added(Vec<float, 4> x, float factor, Vec<float, 4> weights,
                                               Vec<float, 4> old) {
#pragma clang fp contract(off)
  return x * weights * factor + old;
}

// The norm of row `row` of x, by one block, which with kAdd is added to something first;
// hidden_size is a multiple of 4 (of 32 for int8) and at most 16 * blockDim.x. Without kNorm, the
// row goes to `to.out` as it is. `other`: one more norm.
// Calls `begun` when the weights are on their way, where a kernel may be launched early.
template <bool kAdd, bool kNorm = true, class Rows, class Begun>
__device__ __forceinline__ void rms_norm(int64_t row, const Rows& x, const NormSum& sum,
                                         const NormOutput& to, const NormOutput& other,
                                         int hidden_size, float eps, const Begun& begun) {
  __shared__ float squares[kMostSquares];
  const int64_t first = row * hidden_size;

  // Weights are asked for before the reduction, which hides their latency, and everything before
  // anything is stored, as that might be the same place. Those of the two norms follow each other
  // in the same registers.
  NormRow values, weights;
  const float multiplier = kAdd && sum.scale ? *sum.scale : 1.0f;
  const float* first_weight = kAdd && sum.post_weight ? sum.post_weight : to.weight;
  const auto load_first_weights = [&] {
    if (kNorm || first_weight) load_row(first_weight, hidden_size, weights);
  };
  if constexpr (kBeginsEarly) load_first_weights();
  begun();
  x.load(row, hidden_size, values);
  if constexpr (!kBeginsEarly) load_first_weights();
  if constexpr (kAdd) {
    float post_factor = 1.0f;
    if (sum.post_weight) post_factor = norm_factor(values, hidden_size, eps, squares);
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int i = norm_index(step);
      if (i >= hidden_size) continue;
      const Vec<float, 4> old = load16(sum.residual + first + i);
      values[step] = sum.post_weight ? added(values[step], post_factor, weights[step], old)
                                     : values[step] + old;
      values[step] *= multiplier;
    }
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int i = norm_index(step);
      if (i < hidden_size) store16(sum.total + first + i, values[step]);
    }
    if (kNorm && sum.post_weight) load_row(to.weight, hidden_size, weights);
  }
  float factor = 1.0f;
  if constexpr (kNorm) factor = norm_factor(values, hidden_size, eps, squares);

#pragma unroll
  for (int step = 0; step < kNormSteps; ++step) {
    const int i = norm_index(step);
    const bool inside = i < hidden_size;
    if (other.weight) {
      const Vec<float, 4> of_other = inside ? load16(other.weight + i) : Vec<float, 4>{};
      other.out.store(first + i, weighted(values[step], of_other), inside, factor);
    }
    if constexpr (kNorm) values[step] = weighted(values[step], weights[step]);
    to.out.store(first + i, values[step], inside, factor);
  }
}

}  // namespace rf
