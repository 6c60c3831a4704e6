// Norms of a few rows that are left for later, as gemv/deferred_norm.h says of one: who makes the
// rows writes their int8 codes and the squares, and who reads them completes the norms.
#pragma once

#include "rf/activations/act.h"
#include "rf/norms/norm.h"

namespace rf {

inline constexpr int kDeferredRows = 8;  // at most

// What completes them.
struct DeferredNorm {
  const float* squares;  // [rows, quant_blocks]; null: there is nothing to complete
  float eps;

  // Writes the factors of the rows, by all waves of a block, to LDS.
  __device__ __forceinline__ void find_factors(int rows, int quant_blocks, float* factors) const {
    const int waves = static_cast<int>(blockDim.x) / kWave;
    for (int row = uniform(wave_id()); row < rows; row += waves) {
      const float* of_row = squares + static_cast<int64_t>(row) * quant_blocks;
      const float factor = factor_of(of_row, quant_blocks, quant_blocks * kActBlock, eps);
      if (lane_id() == 0) factors[row] = factor;
    }
  }
};

// Where the sums of a product and the residual go, and what is left of their norms.
struct DeferredRows {
  const float* bias;    // [features] or null
  float* residual;      // [rows, features]; becomes the sum
  const float* weight;  // [features], of the norm
  int8_t* q;            // [rows, features]
  ActScale* scale;      // [rows, features / kActBlock], without the norms' factors
  float* squares;       // [rows, features / kActBlock], sums of the squares of that many columns
  int rows;
  int features;  // a multiple of kActBlock
};

// The columns of a block, kActBlock from kActBlock * blockIdx.x on, of up to kMostRows rows, by at
// least kLeastThreads threads.
template <int kMostRows, int kLeastThreads>
class DeferredSums {
  static constexpr int kItems = (kMostRows * kActBlock + kLeastThreads - 1) / kLeastThreads;
  static_assert(kMostRows * kActLanes <= kLeastThreads && kLeastThreads % kActBlock == 0);

 public:
  struct Lds {
    alignas(16) float sums[kMostRows][kActBlock];
    alignas(16) float weighted[kMostRows][kActBlock];
  };

  __device__ __forceinline__ explicit DeferredSums(const DeferredRows& to) : to_(to) {}

  // Asks for what the columns need besides the product.
  __device__ __forceinline__ void begin() {
    weight_ = to_.weight[column()];
    bias_ = to_.bias ? to_.bias[column()] : 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) old_[i] = row(i) < to_.rows ? to_.residual[place(i)] : 0.0f;
  }

  // total(row, i): the product of a row with column i of the block's.
  template <class Total>
  __device__ __forceinline__ void finish(Lds& lds, const Total& total) const {
    const int own = static_cast<int>(threadIdx.x) % kActBlock;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (row(i) >= to_.rows) break;
      float sum = total(row(i), own);
      if (to_.bias) sum += bias_;
      sum += old_[i];
      to_.residual[place(i)] = sum;
      lds.sums[row(i)][own] = sum;
      lds.weighted[row(i)][own] = weighted(sum, weight_)[0];
    }
    __syncthreads();
    // kActLanes lanes have a row.
    const int thread = threadIdx.x;
    if (thread / kWave * kWave >= kMostRows * kActLanes) return;
    const int of_lanes = thread / kActLanes;
    const bool is_present = of_lanes < to_.rows;
    const int row = is_present ? of_lanes : 0, four = lane_id() % kActLanes * 4;
    const int blocks = to_.features / kActBlock;
    const int64_t block = static_cast<int64_t>(row) * blocks + static_cast<int>(blockIdx.x);
    const float sum = squares_of(load16(lds.sums[row] + four));
    if (is_present && four == 0) to_.squares[block] = sum;
    act_store(load16(lds.weighted[row] + four), is_present, to_.q + block * kActBlock,
              to_.scale + block, 0);
  }

 private:
  static __device__ __forceinline__ int row(int i) {
    return (static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x)) / kActBlock;
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(blockIdx.x) * kActBlock + static_cast<int>(threadIdx.x) % kActBlock;
  }
  __device__ __forceinline__ int64_t place(int i) const {
    return static_cast<int64_t>(row(i)) * to_.features + column();
  }

  DeferredRows to_;
  float weight_ = 0.0f;
  float bias_ = 0.0f;
  float old_[kItems] = {};
};

}  // namespace rf
