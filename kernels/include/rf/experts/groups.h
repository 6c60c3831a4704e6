// Tokens in groups, one for each expert of a mixture.
//
// A pair is a token with one of the experts that it chose: pair t * chosen + c is the c-th of token
// t. Pairs are sorted by expert, within one by their numbers. What is computed for them lies in
// this order; `places` says where each pair went.
#pragma once

#include "rf/platform.h"

namespace rf {

inline constexpr int kMostGroups = 1024;  // experts, or heads that have a matrix each

// Consecutive sorted pairs of one expert, at most as many as the tile of a GEMM has rows.
struct alignas(16) GroupTile {
  int32_t expert;
  int32_t first;  // sorted pair
  int32_t end;    // up to `first`: there is nothing here
  int32_t count;  // of all tiles with pairs, which come first
};

}  // namespace rf
