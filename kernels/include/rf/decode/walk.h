// The way of a wave of decode attention through the tokens of a split, a step at a time.
#pragma once

#include "rf/attention.h"

namespace rf {

inline constexpr int kDecodeWaves = 4;  // of a block; they take steps in turn

struct TokenWalk {
  static constexpr int kPad = 0;  // bytes between rows
  const int32_t* blocks;          // of the sequence, in the cache
  int kv_head, kv_heads;
  int begin, end;  // of the split
  int first;       // that is visible
  int context;

  __device__ __forceinline__ int block_of(int base) const {
    return blocks[min(base, context - 1) / kBlockTokens];
  }
  __device__ __forceinline__ int64_t first_row_of(int64_t block) const {
    return cache_row(block, 0, kv_head, kv_heads);
  }
  // Rows of the cache. Those beyond the context repeat the last one, since what lies in its block
  // there was never written.
  __device__ __forceinline__ int64_t row_of(int token, int64_t block_row) const {
    return block_row + min(token, context - 1) % kBlockTokens;
  }
  __device__ __forceinline__ bool sees(int token) const { return token >= first && token < end; }
};

// The first tokens of one block of the cache, in rows of their own.
template <int kPadBytes>
struct BlockWalk {
  static constexpr int kPad = kPadBytes;
  static constexpr int begin = 0;
  int end;

  __device__ __forceinline__ int block_of(int) const { return 0; }
  __device__ __forceinline__ int64_t first_row_of(int64_t) const { return 0; }
  __device__ __forceinline__ int64_t row_of(int token, int64_t) const {
    return min(token, end - 1);
  }
  __device__ __forceinline__ bool sees(int token) const { return token < end; }
};

// Calls visit(0), visit(1), ..., visit(kCount - 1). No loop, not even one of a single turn: what
// follows would be compiled another way.
template <int kCount, int kFirst = 0, class Visit>
__device__ __forceinline__ void for_each_chunk(Visit visit) {
  visit(kFirst);
  if constexpr (kFirst + 1 < kCount) for_each_chunk<kCount, kFirst + 1>(visit);
}

}  // namespace rf
