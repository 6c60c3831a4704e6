// What kernels of prefill attention take.
#pragma once

#include "rf/attention/attention.h"

namespace rf {

struct PrefillInput {
  const half* q;               // [T, heads * key_dim]
  const int32_t* sequences;    // indices of the sequences to take
  const int32_t* query_start;  // [B + 1]
  const int32_t* context_len;  // [B]
  const int32_t* seen_ends;    // [T], behind the last position that a token sees; null = its own
  const float* sinks;          // [heads]; null = none
  int heads;
  int window;
  ScoreRule rule;
};

// What blocks leave of their split of the keys that the new tokens see, if there are several.
struct PrefillSplits {
  float* partial;     // [T, heads, count, value_dim], relative to their maximum
  float* partial_ml;  // [T, heads, count, 2]: maximum and sum
  int count;
  int tokens;  // of a split, a multiple of the keys of a tile
};

}  // namespace rf
