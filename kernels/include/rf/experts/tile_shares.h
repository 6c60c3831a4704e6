// How blocks that have a multiprocessor each share tiles of experts (groups.h).
//
// Tiles that fill all multiprocessors take a block each. A last round of a few would leave the
// other multiprocessors idle for as long as a tile takes, so those are shared by several blocks.
#pragma once

#include "rf/experts/groups.h"

namespace rf {

inline constexpr int kShareRounds = 2;  // of blocks that share tiles, at most

struct TileShare {
  int tile;
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

// Returns what block number `block` does of so many tiles; the tile is none of them if nothing is
// left. No more blocks have anything to do than there are tiles, and kShareRounds for each
// multiprocessor.
__device__ __forceinline__ TileShare share_of(int block, int tiles, int multiprocessors,
                                              int most_parts) {
  const int whole = tiles / multiprocessors * multiprocessors;
  const int behind = block - whole;
  if (behind < 0) return {block, 0, 1};
  const int parts = parts_of_tiles(tiles - whole, multiprocessors, most_parts);
  return {whole + behind / parts, behind % parts, parts};
}

}  // namespace rf
