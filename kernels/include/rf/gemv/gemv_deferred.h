// GEMV of one row that adds what it makes to the residual, and leaves the norm of the sum for who
// reads it (deferred_norm.h): a block makes kActBlock columns, of two tiles.
#pragma once

#include "rf/activations/act.h"
#include "rf/gemv/gemv.h"
#include "rf/norms/norm.h"

namespace rf {

inline constexpr int kDeferredTiles = kActBlock / (kGroups * kGroupRows);  // of a block
// Half of the block has a tile each, so that as many waves read the matrix as in gemv.hip.
inline constexpr int kDeferredThreads = kDeferredTiles * kGemvThreads;
// What the compiler is told on NVIDIA: more threads than a block has, so that registers are left
// for a block of the next kernel.
#if RF_NVIDIA
inline constexpr int kDeferredBound = 3 * kGemvThreads;
#else
inline constexpr int kDeferredBound = kDeferredThreads;
#endif

// kThreads: that have a tile, at most.
template <int kThreads = kGemvThreads>
struct DeferredParts {
  float sums[kDeferredTiles][kThreads / kWave][1][kGroups][kGroupRows];
  alignas(16) float columns[kActBlock];
  alignas(16) float weighted[kActBlock];
};

// What the waves of a block found for column i of it. `waves`: that had a tile each.
template <int kThreads>
__device__ __forceinline__ float column_sum(const DeferredParts<kThreads>& parts, int waves,
                                            int i) {
  const int group = i / kGroupRows, j = group / kDeferredTiles;
  const auto& of_tile = parts.sums[group % kDeferredTiles];
  float sum = of_tile[0][0][j][i % kGroupRows];
  for (int wave = 1; wave < waves; ++wave) sum += of_tile[wave][0][j][i % kGroupRows];
  return sum;
}

// The columns of a block, and where the sum of the product and the residual goes.
struct DeferredColumns {
  float* residual;      // [out_features]; becomes the sum
  const float* weight;  // [out_features], of the norm
  int8_t* q;            // [out_features]
  ActScale* scale;      // [out_features / kActBlock], without the norm's factor
  float* squares;       // [out_features / kActBlock], sums of the squares of that many columns

  // Of the column of a thread, if it has one.
  float own_weight = 0.0f;
  float old = 0.0f;

  // Asks for what the columns need besides the product.
  __device__ __forceinline__ void begin() {
    if (threadIdx.x >= kActBlock) return;
    own_weight = weight[column()];
    old = residual[column()];
  }

  // `waves`: that had a tile each. biased(column, sum): the sum plus the biases of its column.
  template <int kThreads, class Biased>
  __device__ __forceinline__ void finish(DeferredParts<kThreads>& parts, int waves,
                                         const Biased& biased) const {
    __syncthreads();
    if (threadIdx.x < kActBlock) {
      const int i = threadIdx.x;
      const float sum = biased(column(), column_sum(parts, waves, i)) + old;
      residual[column()] = sum;
      parts.columns[i] = sum;
      parts.weighted[i] = weighted(sum, own_weight)[0];
    }
    if (wave_id() != 0) return;
    wave_sync();
    const int four = lane_id() % kActLanes * 4;
    const float sum = squares_of(load16(parts.columns + four));
    const int block = static_cast<int>(blockIdx.x);
    if (lane_id() == 0) squares[block] = sum;
    act_store(load16(parts.weighted + four), lane_id() < kActLanes, q + block * kActBlock,
              scale + block, 0);
  }

 private:
  static __device__ __forceinline__ int column() {
    return static_cast<int>(blockIdx.x) * kActBlock + static_cast<int>(threadIdx.x);
  }
};

// Multiplies with tiles 2 b and 2 b + 1 of the matrix, where b is `block`. Calls `begun` when the
// first weights are on their way, before it reads x.
template <class Format, class X, class Begun>
__device__ __forceinline__ void deferred_sums(const uint8_t* weight, X& x, const Outputs& outputs,
                                              int block, DeferredParts<>& parts,
                                              const Begun& begun) {
  const int threads = static_cast<int>(blockDim.x) / kDeferredTiles;
  const int own = uniform(static_cast<int>(threadIdx.x) / threads);
  const int thread = static_cast<int>(threadIdx.x) - own * threads;
  const int tile = block * kDeferredTiles + own;
  const Pieces pieces{thread / kGroupRows, threads / kGroupRows};
  float sums[1][kGroups] = {};
  gemv_sums<Format>(weight, x, outputs, tile, pieces, sums, begun);
  let_next_begin();
  store_sums(sums, x, parts.sums[own][thread / kWave]);
}

}  // namespace rf
