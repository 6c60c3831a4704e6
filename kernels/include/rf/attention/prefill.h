// What kernels of prefill attention take.
#pragma once

#include "rf/attention/attention.h"

namespace rf {

inline constexpr int kAttentionRows = 128;  // query rows of a block: a tile of them

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

// The first `tiles` tiles of each sequence's rows, whose keys are split among `count` blocks, so
// that a last round of few blocks leaves no GPU idle; and what these blocks leave.
struct PrefillSplits {
  float* partial;  // [sequences, tokens_of(), heads, count, value_dim], relative to their maximum
  float* partial_ml;  // [sequences, tokens_of(), heads, count, 2]: maximum and sum
  int tiles;
  int count;
  int tokens;  // of a split, a multiple of the keys of a tile

  // Tokens of a sequence that have rows in these tiles, at most.
  __device__ __forceinline__ int tokens_of(int group) const {
    return (tiles * kAttentionRows + group - 1) / group;
  }
};

// What a block of prefill attention has: a sequence, some of a kv head's columns, rows, and a split
// of the keys that they see, if these are split.
//
// Grid: (sequences * blocks of columns, parts of the rows of the longest sequence). The parts are
// tiles that are not split, and then the splits of those that are; so the longest blocks of all
// sequences and heads come first, and among those the last rows, which see most keys.
struct PrefillPart {
  int number;  // of the sequence
  int columns;
  int first_row;
  int split;
  int count;  // 1: it is none

  // columns_blocks: of a sequence.
  static __device__ __forceinline__ PrefillPart own(const PrefillSplits& splits,
                                                    int columns_blocks) {
    const int x = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y);
    const int whole = static_cast<int>(gridDim.y) - splits.tiles * splits.count;
    PrefillPart own{x / columns_blocks, x % columns_blocks, 0, 0, 1};
    int tile = splits.tiles + whole - 1 - part;
    if (part >= whole) {
      tile = splits.tiles - 1 - (part - whole) / splits.count;
      own.split = (part - whole) % splits.count;
      own.count = splits.count;
    }
    own.first_row = tile * kAttentionRows;
    return own;
  }
};

}  // namespace rf
