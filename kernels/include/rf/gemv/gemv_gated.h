// GEMV of gate and up that rounds what it makes to int8: a block makes 32 columns, a block of the
// activation that down is multiplied with, of four tiles after each other.
#pragma once

#include "rf/activations/act_output.h"
#include "rf/gemv/deferred_norm.h"
#include "rf/gemv/gemv.h"

namespace rf {

inline constexpr int kGatedTiles = kActBlock / kGroupRows;  // of a block

// Blocks that shall fit on a multiprocessor of NVIDIA GPUs where a norm is completed; 0: as many as
// do.
inline constexpr int kGatedBlocks = kBeginsEarly ? 3 : 0;

// What the waves of a block found for its tiles.
template <int kRows>
struct GatedParts {
  float sums[kGatedTiles][kGemvThreads / kWave][kRows][kGroups][kGroupRows];
  alignas(16) float columns[kRows][kActBlock];
};

// How the threads of a block divide its tiles: each team takes a tile at a time.
struct GatedTeams {
  int threads;  // of a team; whole waves

  __device__ __forceinline__ int count() const { return static_cast<int>(blockDim.x) / threads; }
  __device__ __forceinline__ int waves() const { return threads / kWave; }
  __device__ __forceinline__ int own() const { return uniform(wave_id() / waves()); }
  __device__ __forceinline__ Pieces pieces() const {
    const int thread = static_cast<int>(threadIdx.x) - own() * threads;
    return {thread / kGroupRows, threads / kGroupRows};
  }
};

// All threads of the block are one.
struct OneGatedTeam {
  static __device__ __forceinline__ int count() { return 1; }
  static __device__ __forceinline__ int waves() { return static_cast<int>(blockDim.x) / kWave; }
  static __device__ __forceinline__ int own() { return 0; }
  static __device__ __forceinline__ Pieces pieces() {
    return {GemvTile<1>::first_piece(), GemvTile<1>::piece_step()};
  }
};

// Multiplies with tiles 4 b to 4 b + 3 of the matrix, where b is `block`.
template <class Format, int kRows, class X, class Teams>
__device__ __forceinline__ void gated_sums(const uint8_t* weight, X& x, const Outputs& outputs,
                                           const Teams& teams, int block,
                                           GatedParts<kRows>& parts) {
  const int own = teams.own(), wave = wave_id() - own * teams.waves();
#pragma unroll 1
  for (int t = own; t < kGatedTiles; t += teams.count()) {
    float sums[kRows][kGroups] = {};
    const int tile = block * kGatedTiles + t;
    gemv_sums<Format>(weight, x, outputs, tile, teams.pieces(), sums, [&] { x.wait(); });
    store_sums(sums, x, parts.sums[t][wave]);
  }
}

// Adds up what so many waves of a tile found, in the order of gemv_tile.h, and writes the columns
// of the block to rows `first_row` and following of `out`.
template <int kRows>
__device__ __forceinline__ void gated_finish(GatedParts<kRows>& parts, int rows,
                                             const Outputs& outputs, const ActOutput& out,
                                             int waves, int block, int64_t first_row) {
  __syncthreads();
  for (int i = threadIdx.x; i < rows * kActBlock; i += blockDim.x) {
    const int m = i / kActBlock, column = i % kActBlock;
    const auto total = [&](int j) {
      const auto& of_tile = parts.sums[column / kGroupRows];
      float sum = of_tile[0][m][j][column % kGroupRows];
      for (int wave = 1; wave < waves; ++wave) sum += of_tile[wave][m][j][column % kGroupRows];
      return sum;
    };
    parts.columns[m][column] = gated(total(0), total(1), outputs.activation);
  }
  __syncthreads();
  for (int from = 0; from < rows; from += static_cast<int>(blockDim.x) / kActLanes) {
    const int row = from + static_cast<int>(threadIdx.x) / kActLanes;
    const int four = static_cast<int>(threadIdx.x) % kActLanes * 4;
    const int64_t element =
        (first_row + row) * outputs.out_features + static_cast<int64_t>(block) * kActBlock + four;
    const bool inside = row < rows;
    out.store(element, inside ? load16(parts.columns[inside ? row : 0] + four) : Vec<float, 4>{},
              inside);
  }
}

}  // namespace rf
