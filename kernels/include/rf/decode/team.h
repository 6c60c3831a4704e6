// What a thread block of decode attention keeps of the cache for a team: see rf/attention/teams.h.
#pragma once

#include "rf/attention/teams.h"
#include "rf/decode/walk.h"

namespace rf {

// A block of the cache, of one head, in LDS. Rows are kPad bytes apart.
template <class Stored, int kKeyDim, int kValueDim, int kPad, int kThreads>
struct TeamTile {
  using Key = typename CacheType<Stored>::Key;
  using Value = typename CacheType<Stored>::Value;
  using Chunk = Vec<uint32_t, 4>;
  static constexpr bool kHasScales = CacheType<Stored>::kHasScales;
  static constexpr int kChunk = sizeof(Chunk);

  template <int kBytes>
  struct Rows {
    static constexpr int kRowChunks = kBytes / kChunk;
    static constexpr int kChunks = kBlockTokens * kRowChunks;
    static constexpr int kEach = (kChunks + kThreads - 1) / kThreads;  // of a thread
    static_assert(kBytes % kChunk == 0);
    using Own = Chunk[kEach];

    alignas(16) char bytes[kBlockTokens][kBytes + kPad];

    static __device__ __forceinline__ void load(const void* from, int tokens, Own& own) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int chunk = i * kThreads + static_cast<int>(threadIdx.x);
        if (chunk < tokens * kRowChunks) own[i] = static_cast<const Chunk*>(from)[chunk];
      }
    }
    __device__ __forceinline__ void store(int tokens, const Own& own) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int chunk = i * kThreads + static_cast<int>(threadIdx.x);
        if (chunk >= tokens * kRowChunks) continue;
        *reinterpret_cast<Chunk*>(&bytes[chunk / kRowChunks][chunk % kRowChunks * kChunk]) = own[i];
      }
    }
  };
  using Keys = Rows<kKeyDim * sizeof(Key) / kPacked<Key>>;
  using Values = Rows<kValueDim * sizeof(Value) / kPacked<Value>>;

  // What a thread holds while it is on its way.
  struct Own {
    typename Keys::Own keys;
    typename Values::Own values;
    float scale;  // of a key in the first threads, of a value in those behind
  };

  Keys keys;
  Values values;
  float k_scale[kBlockTokens], v_scale[kBlockTokens];

  // The first `tokens` of a block, whose first row is what cache_row has.
  static __device__ __forceinline__ void load(const Cache<Stored>& cache, int64_t first_row,
                                              int tokens, Own& own) {
    Keys::load(cache.k + first_row * kKeyDim / kPacked<Key>, tokens, own.keys);
    Values::load(cache.v + first_row * kValueDim / kPacked<Value>, tokens, own.values);
    if constexpr (kHasScales) {
      static_assert(2 * kBlockTokens <= kThreads);
      const int token = static_cast<int>(threadIdx.x) % kBlockTokens;
      if (threadIdx.x < 2 * kBlockTokens && token < tokens) {
        own.scale = (threadIdx.x < kBlockTokens ? cache.k_scale : cache.v_scale)[first_row + token];
      }
    }
  }
  __device__ __forceinline__ void store(int tokens, const Own& own) {
    keys.store(tokens, own.keys);
    values.store(tokens, own.values);
    if constexpr (kHasScales) {
      const int token = static_cast<int>(threadIdx.x) % kBlockTokens;
      if (threadIdx.x < 2 * kBlockTokens && token < tokens) {
        (threadIdx.x < kBlockTokens ? k_scale : v_scale)[token] = own.scale;
      }
    }
  }
  // As waves read it, with a `BlockWalk`.
  __device__ __forceinline__ Cache<Stored> cache() {
    return {reinterpret_cast<Key*>(keys.bytes),
            reinterpret_cast<Value*>(values.bytes),
            k_scale,
            v_scale,
            nullptr,
            0,
            1};
  }
};

}  // namespace rf
