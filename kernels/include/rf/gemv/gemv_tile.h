// How GEMV divides its work and brings the parts of a sum together.
//
// A block computes two groups of eight stored rows for up to kRows activation rows. Lane l of the
// block belongs to row l % 8 of both and takes every (threads / 8)-th piece of K, from piece l / 8:
// consecutive lanes read consecutive memory (weights.h), and a weight that was loaded once meets
// all activation rows.
#pragma once

#include "rf/linear.h"

namespace rf {

inline constexpr int kGemvThreads = 256;  // at most; a multiple of 64
inline constexpr int kGroups = 2;         // of a block

// The sum over the lanes of a wave that work for the same row.
__device__ __forceinline__ float wave_sum_of_row(float value) {
  value += shfl_xor<8>(value);
  value += shfl_xor<16>(value);
  if constexpr (kWave == 64) value += shfl_xor<32>(value);
  return value;
}

// kThreads: of a block, at most.
template <int kRows, int kThreads = kGemvThreads>
class GemvTile {
 public:
  // tile: which 16 stored rows of the matrix.
  explicit __device__ __forceinline__ GemvTile(int tile) : tile_(tile) {}

  // Stored row of this lane in group j. Where the layer is gated, group 0 holds gate rows and group
  // 1 the up rows that belong to them.
  __device__ __forceinline__ int row(int j) const { return first_row(j) + lane_row(); }
  __device__ __forceinline__ int first_row(int j) const { return group(j) * kGroupRows; }

  static __device__ __forceinline__ int first_piece() { return threadIdx.x / kGroupRows; }
  static __device__ __forceinline__ int piece_step() { return blockDim.x / kGroupRows; }

  // Adds up what the lanes found and writes the columns of this block.
  __device__ __forceinline__ void finish(float (&sums)[kRows][kGroups], const Outputs& outputs,
                                         const Result& result, int rows) const {
    finish(sums, outputs, rows, [&](int m, int column, float first, float second) {
      const bool is_gated = outputs.activation != kNotGated;
      const float value = is_gated ? gated(first, second, outputs.activation) : first;
      result.store(m, column, outputs.out_features, value);
    });
  }

  // The same with write(m, column, value, up) in place of the result: of a gated layer, the value
  // is that of the gate, and up what belongs to it.
  template <class Write>
  __device__ __forceinline__ void finish(float (&sums)[kRows][kGroups], const Outputs& outputs,
                                         int rows, const Write& write) const {
    __shared__ float parts[kThreads / kWave][kRows][kGroups][kGroupRows];
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const float sum = wave_sum_of_row(sums[m][j]);
        if (lane_id() < kGroupRows) parts[wave_id()][m][j][lane_row()] = sum;
      }
    }
    __syncthreads();

    const auto total = [&](int m, int j, int r) {
      float sum = parts[0][m][j][r];
      for (int wave = 1; wave < static_cast<int>(blockDim.x) / kWave; ++wave) {
        sum += parts[wave][m][j][r];
      }
      return sum;
    };
    const bool is_gated = outputs.activation != kNotGated;
    // Of a gated layer, group 0 makes the columns.
    const int group_bits = is_gated ? 0 : 1;
    for (int i = threadIdx.x; i < rows * kGroupRows << group_bits; i += blockDim.x) {
      const int r = i % kGroupRows;
      const int j = i / kGroupRows & group_bits;
      const int m = i / kGroupRows >> group_bits;
      const int column = outputs.column(group(j) * kGroupRows + r);
      if (column >= outputs.out_features) continue;
      write(m, column, total(m, j, r), is_gated ? total(m, 1, r) : 0.0f);
    }
  }

 private:
  static __device__ __forceinline__ int lane_row() { return threadIdx.x % kGroupRows; }

  __device__ __forceinline__ int group(int j) const {
    constexpr int kGateGroups = kGateRows / kGroupRows;
    return tile_ / kGateGroups * kGroups * kGateGroups + tile_ % kGateGroups + j * kGateGroups;
  }

  int tile_;
};

}  // namespace rf
