// How blocks that have a multiprocessor each share tiles of experts (groups.h).
//
// Tiles that fill all multiprocessors take a block each. A last round of a few would leave the
// other multiprocessors idle for as long as a tile takes, so those are shared by several blocks.
// Blocks are numbered; one that was launched takes its own number, and those that come so many
// further as blocks were launched.
#pragma once

#include "rf/experts/groups.h"
#include "rf/lane_masks.h"
#include "rf/wave.h"

namespace rf {

inline constexpr int kShareRounds = 3;  // of blocks that share tiles, at most

struct TileShare {
  int tile;  // negative: nothing is left
  int part;
  int parts;
};

// In how many parts so few tiles are done soonest, each with a block. What a block does besides
// takes about a sixteenth of what a tile does.
__device__ __forceinline__ int parts_of_tiles(int tiles, int multiprocessors, int most_parts) {
  constexpr int kTile = 16, kBesides = 1;
  int best = 1;
  int least = kTile + kBesides;
#pragma unroll 1
  for (int parts = 2; parts <= most_parts && tiles * parts <= kShareRounds * multiprocessors;
       parts *= 2) {
    const int rounds = (tiles * parts + multiprocessors - 1) / multiprocessors;
    const int time = rounds * (kTile / parts + kBesides);
    if (time >= least) continue;
    least = time;
    best = parts;
  }
  return best;
}

// Returns what block number `block` does, of the tiles with rows among `tiles`. For a whole block.
__device__ __forceinline__ TileShare find_share(const GroupTile* tiles, int num_tiles, int block,
                                                int multiprocessors, int most_parts) {
  __shared__ int count_of_wave[kMaxWaves];
  __shared__ int found;
  const int threads = static_cast<int>(blockDim.x);
  const int rounds = (num_tiles + threads - 1) / threads;
  const int first = wave_id() * rounds * kWave + lane_id();  // a wave has consecutive tiles
  const auto present = [&](int round) {
    const int tile = first + round * kWave;
    return ballot(tile < num_tiles && tiles[tile].first < tiles[tile].end);
  };

  int own = 0;
  for (int round = 0; round < rounds; ++round) own += count_lanes(present(round));
  if (lane_id() == 0) count_of_wave[wave_id()] = own;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  int before = 0, count = 0;
  for (int wave = 0; wave < threads / kWave; ++wave) {
    if (wave == wave_id()) before = count;
    count += count_of_wave[wave];
  }

  const int whole = count / multiprocessors * multiprocessors;
  const int behind = block - whole;
  TileShare share{-1, 0, 1};
  int rank = block;  // of the tile
  if (behind >= 0) {
    share.parts = parts_of_tiles(count - whole, multiprocessors, most_parts);
    share.part = behind % share.parts;
    rank = whole + behind / share.parts;
  }
  int left = rank - before;
  if (left >= 0 && left < own) {
    for (int round = 0; round < rounds; ++round) {
      const LaneMask lanes = present(round);
      const bool is_present = (lanes >> lane_id() & 1) != 0;
      if (is_present && count_lower(lanes) == left) found = first + round * kWave;
      left -= count_lanes(lanes);
    }
  }
  __syncthreads();
  share.tile = found;
  return share;
}

}  // namespace rf
