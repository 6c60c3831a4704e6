// The way of a wave of decode attention through the tokens of a split, a step at a time.
#pragma once

#include "rf/attention/attention.h"

// Of a translation unit.
#ifndef RF_DECODE_WAVES
#define RF_DECODE_WAVES 4
#endif

namespace rf {

inline constexpr int kDecodeWaves = RF_DECODE_WAVES;  // of a block; they take steps in turn

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
  // The same for a context of `tokens` tokens.
  __device__ __forceinline__ TokenWalk until(int tokens) const {
    return {blocks, kv_head, kv_heads, begin, min(end, tokens), first, min(context, tokens)};
  }
};

// The newest token of one kv head as the cache stores it, in LDS.
template <class Stored, int kKeyDim, int kValueDim>
struct NewRow {
  using Key = typename CacheType<Stored>::Key;
  using Value = typename CacheType<Stored>::Value;
  static constexpr int kKeyWords = kKeyDim * sizeof(Key) / 4;
  static constexpr int kValueWords = kValueDim / kPacked<Value> * sizeof(Value) / 4;
  alignas(16) Key key[kKeyDim];
  alignas(16) Value value[kValueDim / kPacked<Value>];
  float k_scale, v_scale;
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
  __device__ __forceinline__ BlockWalk until(int tokens) const { return {min(end, tokens)}; }
};

// Calls visit(0), visit(1), ..., visit(kCount - 1). No loop, not even one of a single turn: what
// follows would be compiled another way.
template <int kCount, int kFirst = 0, class Visit>
__device__ __forceinline__ void for_each_chunk(Visit visit) {
  visit(kFirst);
  if constexpr (kFirst + 1 < kCount) for_each_chunk<kCount, kFirst + 1>(visit);
}

}  // namespace rf
