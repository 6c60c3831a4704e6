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
template <int kRows, int kTiles = kGatedTiles>
struct GatedParts {
  float sums[kTiles][kGemvThreads / kWave][kRows][kGroups][kGroupRows];
  alignas(16) float columns[kRows][kActBlock];

  // The sum of row `row` of a group of a tile, of so many waves, in the order of gemv_tile.h.
  __device__ __forceinline__ float total(int tile, int m, int group, int row, int waves) const {
    float sum = sums[tile][0][m][group][row];
    for (int wave = 1; wave < waves; ++wave) sum += sums[tile][wave][m][group][row];
    return sum;
  }
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

// Multiplies with the kTiles tiles of the matrix that `block` has.
template <class Format, int kRows, int kTiles, class X, class Teams>
__device__ __forceinline__ void gated_sums(const uint8_t* weight, X& x, const Outputs& outputs,
                                           const Teams& teams, int block,
                                           GatedParts<kRows, kTiles>& parts) {
  const int own = teams.own(), wave = wave_id() - own * teams.waves();
#pragma unroll 1
  for (int t = own; t < kTiles; t += teams.count()) {
    float sums[kRows][kGroups] = {};
    const int tile = block * kTiles + t;
    gemv_sums<Format>(weight, x, outputs, tile, teams.pieces(), sums, [&] { x.wait(); }, t == own);
    store_sums(sums, x, parts.sums[t][wave]);
  }
}

// Writes the columns of the block to rows `first_row` and following of `out`, in all of its forms:
// value(m, column) makes column `column` of them of the sums in `parts`.
template <int kRows, int kTiles, class Value>
__device__ __forceinline__ void act_finish(GatedParts<kRows, kTiles>& parts, int rows, int features,
                                           const ActOutput& out, int block, int64_t first_row,
                                           const Value& value) {
  __syncthreads();
  for (int i = threadIdx.x; i < rows * kActBlock; i += blockDim.x) {
    parts.columns[i / kActBlock][i % kActBlock] = value(i / kActBlock, i % kActBlock);
  }
  __syncthreads();
  for (int from = 0; from < rows; from += static_cast<int>(blockDim.x) / kActLanes) {
    const int row = from + static_cast<int>(threadIdx.x) / kActLanes;
    const int four = static_cast<int>(threadIdx.x) % kActLanes * 4;
    const int64_t element =
        (first_row + row) * features + static_cast<int64_t>(block) * kActBlock + four;
    const bool inside = row < rows;
    out.store(element, inside ? load16(parts.columns[inside ? row : 0] + four) : Vec<float, 4>{},
              inside);
  }
}

// The columns of gate and up, of so many waves of a tile.
template <int kRows>
__device__ __forceinline__ void gated_finish(GatedParts<kRows>& parts, int rows,
                                             const Outputs& outputs, const ActOutput& out,
                                             int waves, int block, int64_t first_row) {
  act_finish(parts, rows, outputs.out_features, out, block, first_row, [&](int m, int column) {
    const int tile = column / kGroupRows, row = column % kGroupRows;
    const float gate = parts.total(tile, m, 0, row, waves);
    return gated(gate, parts.total(tile, m, 1, row, waves), outputs.activation);
  });
}

}  // namespace rf
