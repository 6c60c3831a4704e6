// Tokens in groups, one for each expert of a mixture.
//
// A pair is a token with one of the experts that it chose: pair t * chosen + c is the c-th of token
// t. Pairs are sorted by expert, within one by their numbers. What is computed for them lies in
// this order; `places` says where each pair went.
#pragma once

#include "rf/platform.h"

namespace rf {

// Consecutive sorted pairs of one expert, at most as many as the tile of a GEMM has rows.
struct alignas(16) GroupTile {
  int32_t expert;
  int32_t first;  // sorted pair
  int32_t end;    // up to `first`: there is nothing here
  int32_t unused;
};

// Where the tiles of an expert begin, whose pairs begin at `first`. Every expert has as many places
// as it may need, wherever it begins: none has to know how many tiles those before it have.
__device__ __forceinline__ int first_tile(int expert, int first, int tile_rows) {
  return first / tile_rows + expert;
}

}  // namespace rf
